//! Marks: which receipts were given back, remembered by the limiter itself.
//!
//! A mark is a charge to a bucket of one, under the receipt's id. It is there for all servers that share the
//! store, goes away by itself, and is as bounded as any key. How long it stays depends on the receipt alone, so
//! all servers look for it under the same limit.

use std::sync::OnceLock;
use std::time::Duration;

use tollgate::{Error, Limiter, OnFailure, Receipt, Scope};
use tollgate_core::{ChargePlace, MAX_FILL_US, Rate, TokenBucket};

/// What the marks are under. No limit and no rule of a file has a space in its name.
const NAME: &str = "refunded receipts";

/// How long marks stay: 8 s, and from there to the double in eight steps, and so on, up to the 100 years that
/// the slowest bucket takes. So none stays longer than it must by more than an eighth, and all take few of the
/// limits there can be.
const SHORTEST_LOG2_US: u32 = 23;
const DOUBLINGS: u32 = 29;
const STEPS_LOG2: u32 = 3;
const LENGTHS: usize = (DOUBLINGS as usize) << STEPS_LOG2;

/// Longer than a check may take: to give up on a mark is to give up the receipt.
const DEADLINE: Duration = Duration::from_secs(1);

/// Where marks are, by how long they stay. Kept, so that none of their limits makes room for others, and its
/// marks go on under one that is shorter.
#[derive(Debug)]
pub(super) struct Marks {
    /// `None` if they are where the units are.
    own: Option<Limiter>,
    scopes: [OnceLock<Scope>; LENGTHS],
}

/// A mark that was set.
pub(super) struct Mark {
    scope: Scope,
    receipt: Receipt,
    /// When, by the store's clock, and until when it stays.
    pub(super) at_us: u64,
    pub(super) until_us: u64,
}

/// What comes of setting a mark.
pub(super) enum Set {
    Now(Mark),
    /// It was there.
    Before,
    /// There is no memory for one.
    NoRoom,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { own: None, scopes: [const { OnceLock::new() }; LENGTHS] }
    }
}

impl Marks {
    /// In memory of their own: so many bytes at most.
    pub(super) fn within(max_bytes: usize) -> Marks {
        let own = Limiter::builder().max_bytes(max_bytes).build();
        Marks { own: Some(own), ..Marks::default() }
    }

    /// Sets a mark that stays at least so long, unless it is set.
    pub(super) async fn set(
        &self,
        limiter: &Limiter,
        id: &[u8],
        at_least_us: u64,
    ) -> Result<Set, Error> {
        let scope = self.scope(limiter, at_least_us)?;
        let decision = scope.check(id).await?;
        let lasts_us = decision.decided().reset_after_us;
        let Some(receipt) = decision.into_receipt() else { return Ok(Set::Before) };
        let ChargePlace::Bucket { over_us: until_us, .. } = receipt.place() else {
            // Not reached: the limit is a bucket.
            return Ok(Set::Before);
        };
        let at_us = until_us.saturating_sub(lasts_us);
        let mark = Mark { scope, receipt, at_us, until_us };
        if mark.shares_its_place() {
            mark.take_back(id).await?;
            return Ok(Set::NoRoom);
        }
        Ok(Set::Now(mark))
    }

    fn scope(&self, limiter: &Limiter, at_least_us: u64) -> Result<Scope, Error> {
        let (step, lasts_us) = length(at_least_us);
        // OK because a step is below the number of lengths.
        let kept = &self.scopes[step];
        if let Some(scope) = kept.get() {
            return Ok(scope.clone());
        }
        let limiter = self.own.as_ref().unwrap_or(limiter);
        let bucket = TokenBucket::new(1, Rate::new(1, Duration::from_micros(lasts_us))?)?;
        let scope = limiter.scope(NAME, bucket)?.on_failure(OnFailure::Closed).deadline(DEADLINE);
        Ok(kept.get_or_init(|| scope).clone())
    }
}

/// The shortest length that is long enough, but for what outlasts the slowest bucket: its number, and itself.
///
/// For 24 h and 10 s, which is 10.1 * 2^33 us, it is 11 * 2^33 us: 26 h 15 min.
fn length(at_least_us: u64) -> (usize, u64) {
    let at_least_us = at_least_us.clamp(1 << SHORTEST_LOG2_US, MAX_FILL_US);
    let step_log2 = at_least_us.ilog2() - STEPS_LOG2;
    // From 8 to 16, which has the number of the next doubling's 8.
    let steps = at_least_us.div_ceil(1 << step_log2);
    let doublings = at_least_us.ilog2() - SHORTEST_LOG2_US;
    let number = (u64::from(doublings) << STEPS_LOG2) + steps - (1 << STEPS_LOG2);
    (number as usize, (steps << step_log2).min(MAX_FILL_US))
}

impl Mark {
    /// Whether it may be where all keys are for which a store in memory has no room: others would not see it
    /// once there is. No mark has the empty id, so that is where one looks with it.
    fn shares_its_place(&self) -> bool {
        // On a server there is room or an error.
        self.scope.peek(b"").now().is_ok_and(|decision| !decision.is_allowed())
    }

    /// Takes it back: the receipt is as good as before.
    pub(super) async fn take_back(self, id: &[u8]) -> Result<(), Error> {
        self.scope.refund(id, self.receipt).await.map(|_| ())
    }
}

#[cfg(test)]
impl Marks {
    /// How many limits they take.
    pub(super) fn made(&self) -> usize {
        self.scopes.iter().filter(|scope| scope.get().is_some()).count()
    }
}

#[cfg(test)]
mod tests;
