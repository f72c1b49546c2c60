//! Marks, which remember refunded receipts as states of a limiter.
//!
//! A mark is a charge to a bucket of capacity 1 whose key is the receipt's id. All servers that share the store see it.
//! It expires by itself, and its memory is bounded like that of any key. The time that it stays depends only on the
//! receipt, so all servers look for it under the same limit.

use std::sync::OnceLock;
use std::time::Duration;

use tollgate::{Error, Limiter, OnFailure, Receipt, Scope};
use tollgate_core::{ChargePlace, MAX_FILL_US, Rate, TokenBucket};

/// The name of the marks' scopes. It contains a space, so no limit or rule of a file can have it.
const NAME: &str = "refunded receipts";

/// The lengths are the durations for which marks can stay. There are eight between 2^23 us (8.4 s) and 2^24 us, another
/// eight between 2^24 us and 2^25 us, and so on, up to the 100 years that the slowest bucket takes. So a mark stays at
/// most an eighth longer than it must, and the marks need few of the limits that a limiter can have.
const SHORTEST_LOG2_US: u32 = 23;
const DOUBLINGS: u32 = 29;
const STEPS_LOG2: u32 = 3;
const LENGTHS: usize = (DOUBLINGS as usize) << STEPS_LOG2;

/// Longer than the deadline of checks, because a mark with an unknown outcome makes the receipt unusable.
const DEADLINE: Duration = Duration::from_secs(1);

/// The scopes of marks by the time that marks stay. They are kept, so that their limits are never dropped and replaced
/// by shorter ones.
#[derive(Debug)]
pub(super) struct Marks {
    /// The limiter of the marks; `None` if they are in the limiter of the charges.
    own: Option<Limiter>,
    scopes: [OnceLock<Scope>; LENGTHS],
}

/// A mark that was set.
pub(super) struct Mark {
    scope: Scope,
    receipt: Receipt,
    /// When the mark was set and when it expires, by the store's clock.
    pub(super) at_us: u64,
    pub(super) until_us: u64,
}

/// The result of setting a mark.
pub(super) enum MarkOutcome {
    Set(Mark),
    AlreadySet,
    /// There is no memory for a mark.
    NoMemory,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { own: None, scopes: [const { OnceLock::new() }; LENGTHS] }
    }
}

impl Marks {
    /// Returns marks in a limiter of their own, of at most `max_bytes`.
    pub(super) fn within(max_bytes: usize) -> Marks {
        let own = Limiter::builder().max_bytes(max_bytes).build();
        Marks { own: Some(own), ..Marks::default() }
    }

    /// Sets the mark of a receipt, if it is not set. It stays for at least `at_least_us`.
    pub(super) async fn set(
        &self,
        limiter: &Limiter,
        id: &[u8],
        at_least_us: u64,
    ) -> Result<MarkOutcome, Error> {
        let scope = self.scope(limiter, at_least_us)?;
        let decision = scope.check(id).await?;
        let lasts_us = decision.decided().reset_after_us;
        let Some(receipt) = decision.into_receipt() else {
            return Ok(MarkOutcome::AlreadySet);
        };
        let ChargePlace::Bucket { over_us: until_us, .. } = receipt.place() else {
            // Not reached: the limit is a bucket.
            return Ok(MarkOutcome::AlreadySet);
        };
        let at_us = until_us.saturating_sub(lasts_us);
        let mark = Mark { scope, receipt, at_us, until_us };
        if mark.is_in_overflow_state() {
            mark.remove(id).await?;
            return Ok(MarkOutcome::NoMemory);
        }
        Ok(MarkOutcome::Set(mark))
    }

    fn scope(&self, limiter: &Limiter, at_least_us: u64) -> Result<Scope, Error> {
        let (number, lasts_us) = length(at_least_us);
        // OK because `length` returns a number below `LENGTHS`.
        let kept = &self.scopes[number];
        if let Some(scope) = kept.get() {
            return Ok(scope.clone());
        }
        let limiter = self.own.as_ref().unwrap_or(limiter);
        let bucket = TokenBucket::new(1, Rate::new(1, Duration::from_micros(lasts_us))?)?;
        let scope = limiter.scope(NAME, bucket)?.on_failure(OnFailure::Closed).deadline(DEADLINE);
        Ok(kept.get_or_init(|| scope).clone())
    }
}

/// Returns the number of a length and its duration in microseconds: the shortest length that is at least `at_least_us`, or
/// the longest length if all are shorter.
///
/// For 24 h and 10 s, which is 10.1 * 2^33 us, the length is 11 * 2^33 us: 26 h 15 min.
fn length(at_least_us: u64) -> (usize, u64) {
    let at_least_us = at_least_us.clamp(1 << SHORTEST_LOG2_US, MAX_FILL_US);
    let step_log2 = at_least_us.ilog2() - STEPS_LOG2;
    // 8 to 16 steps. 16 steps are as long as 8 steps of the next doubling, and get the same number.
    let steps = at_least_us.div_ceil(1 << step_log2);
    let doublings = at_least_us.ilog2() - SHORTEST_LOG2_US;
    let number = (u64::from(doublings) << STEPS_LOG2) + steps - (1 << STEPS_LOG2);
    (number as usize, (steps << step_log2).min(MAX_FILL_US))
}

impl Mark {
    /// Returns whether the mark may be in the overflow state, which new keys share while the memory store is at its
    /// ceiling. Such a mark would not be found once there is room again. No mark has the empty id, so a peek at the
    /// empty id reads the overflow state.
    fn is_in_overflow_state(&self) -> bool {
        // A scope on Redis cannot peek with `now`: the error counts as false. Redis has no overflow state.
        self.scope.peek(b"").now().is_ok_and(|decision| !decision.is_allowed())
    }

    /// Removes the mark, so that the receipt can be refunded again.
    pub(super) async fn remove(self, id: &[u8]) -> Result<(), Error> {
        self.scope.refund(id, self.receipt).await.map(|_| ())
    }
}

#[cfg(test)]
impl Marks {
    /// Returns the number of limits that the marks use.
    pub(super) fn limit_count(&self) -> usize {
        self.scopes.iter().filter(|scope| scope.get().is_some()).count()
    }
}

#[cfg(test)]
mod tests;
