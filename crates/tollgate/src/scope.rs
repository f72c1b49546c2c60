//! A limit under a name, and what can be done with a key of it.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{self as core, Cost, Entry, Intent, Limit, Place, State};

use crate::acquire::Acquire;
use crate::answer::Answer;
use crate::check::Check;
use crate::error::Error;
use crate::failure::OnFailure;
use crate::key::Key;
use crate::limiter::{Inner, Limiter};
use crate::receipt::{Holder, Receipt};
#[cfg(feature = "redis")]
use crate::store::redis;
use crate::store::{Store, memory};

/// The longest key: hashing it is a pass over all of its bytes, before the deadline of a check begins.
/// The keys that rules make of one request have at most this length together.
pub(crate) const MAX_KEY_BYTES: usize = 1 << 20;

/// The longest name: a limiter keeps up to 32,768 of them.
pub(crate) const MAX_NAME_BYTES: usize = 4_096;

/// Returns the key, or an error if it is too long. Does not read it.
pub(crate) fn bounded(key: &[u8]) -> Result<&[u8], Error> {
    let most = MAX_KEY_BYTES;
    match key.len() {
        bytes if bytes > most => Err(Error::KeyTooLong { bytes, most }),
        _ => Ok(key),
    }
}

/// A limit under a name. Cheap to clone.
///
/// What a failing store means is the handle's: others of the same name may say otherwise.
///
#[cfg_attr(feature = "redis", doc = "```no_run")]
#[cfg_attr(not(feature = "redis"), doc = "```ignore")]
/// # use std::time::Duration;
/// # use tollgate::{Limiter, OnFailure};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::redis("redis://127.0.0.1:6379")?; // open, 10 ms
/// let api = limiter.scope("api", "token-bucket capacity=60 refill=1/s")?;
/// let logins = limiter.scope("logins", "fixed-window limit=5 window=1m")?;
/// let logins = logins.on_failure(OnFailure::Closed).deadline(Duration::from_millis(50));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Scope {
    pub(crate) limiter: Limiter,
    pub(crate) kept: Arc<memory::Scope>,
    pub(crate) store: Store,
}

impl Scope {
    pub(crate) fn new(limiter: Limiter, kept: Arc<memory::Scope>, store: Store) -> Scope {
        Scope { limiter, kept, store }
    }

    /// An error if its state is not in this process.
    #[inline(always)]
    pub(crate) fn is_local(&self) -> Result<(), Error> {
        match &self.store {
            Store::Memory => Ok(()),
            #[cfg(feature = "redis")]
            Store::Redis(_) => Err(Error::MustWait),
        }
    }

    /// Whether its limit delays requests.
    pub(crate) fn is_shaping(&self) -> bool {
        self.limit().is_shaping()
    }

    /// The limiter that it belongs to.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.kept.name()
    }

    /// The limit.
    #[inline]
    pub fn limit(&self) -> &Limit {
        &self.kept.limit
    }

    /// What a check through this handle comes to when the store fails, instead of what the limiter says
    /// (`RedisBuilder::on_failure`). In memory it makes no difference.
    #[must_use = "only the handle that comes back has it"]
    pub fn on_failure(self, on_failure: OnFailure) -> Scope {
        Scope { store: self.store.on_failure(on_failure), ..self }
    }

    /// How long a request through this handle may take, instead of what the limiter says
    /// (`RedisBuilder::deadline`), be it shorter or longer: at least 1 ms, at most an hour. Of several
    /// limits in one check the shortest of the enforced ones holds. In memory it makes no difference.
    ///
    /// A server is left alone for missing the limiter's deadline, not for missing a shorter one. Those who
    /// have longer wait longer, but not for a server that is left alone: give the limiter the longest
    /// deadline that is usual, and scopes in a hurry their own.
    #[must_use = "only the handle that comes back has it"]
    pub fn deadline(self, deadline: Duration) -> Scope {
        Scope { store: self.store.deadline(deadline), ..self }
    }

    /// Decides one request of `key`, and charges it if it is allowed. The cost is 1 unless
    /// [set](Check::cost). A [key](Key) is text, bytes or an IP address: `check("user:42")`, `check(ip)`. It
    /// has at most 1 MiB; a longer one is an error.
    ///
    /// The charge happens when the check is awaited or [`now`](Check::now) is called, before the future
    /// is first polled. Dropping the future, as a timeout does, keeps the charge, unless the check is
    /// [`refunded_if_dropped`](Check::refunded_if_dropped).
    #[inline]
    pub fn check<'a>(&'a self, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::new(self, key.into(), Intent::Charge)
    }

    /// Decides one request of `key` and charges nothing.
    pub fn peek<'a>(&'a self, key: impl Into<Key<'a>>) -> Check<'a> {
        Check::new(self, key.into(), Intent::Look)
    }

    /// Waits until one request of `key` may go, in order with the others that acquire it; a cost of 1
    /// unless said.
    ///
    /// The key is a reference to text or bytes. For an IP address, make a
    /// [`ClientAddress`](crate::ClientAddress) and pass a reference to it.
    pub fn acquire<'a, K: AsRef<[u8]> + ?Sized>(&'a self, key: &'a K) -> Acquire<'a> {
        Acquire::new(self, key.as_ref())
    }

    /// Gives back what of a charge to `key` still counts; how much more remains then.
    ///
    /// The receipt must be of the same key and of a scope with the same name; any other is
    /// [`Error::ReceiptMismatch`], and nothing changes.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("llm", "token-bucket capacity=10000 refill=100/s")?;
    /// let reserved = tokens.check("user:42").cost(1_000).now()?.into_receipt();
    /// if let Some(receipt) = reserved {
    ///     tokens.refund_now("user:42", receipt)?; // and charge what it really took
    /// }
    /// # assert_eq!(tokens.peek("user:42").now()?.remaining(), 10_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn refund_now<'k>(&self, key: impl Into<Key<'k>>, receipt: Receipt) -> Result<u64, Error> {
        self.refund_at_us(key, self.limiter.inner.clock.now_us(), receipt)
    }

    /// [`refund_now`](Self::refund_now) of a check that was [at](Check::at_us) a time of the caller's.
    pub(crate) fn refund_at_us<'k>(
        &self,
        key: impl Into<Key<'k>>,
        now_us: u64,
        receipt: Receipt,
    ) -> Result<u64, Error> {
        self.is_local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        let Inner { memory, lines, .. } = &*self.limiter.inner;
        let back = memory.refund(&self.kept, key, now_us, receipt)?;
        lines.nudge(self, key);
        Ok(back)
    }

    /// [`refund_now`](Self::refund_now), for any store.
    pub fn refund<'k>(&self, key: impl Into<Key<'k>>, receipt: Receipt) -> Answer<u64> {
        let key = key.into();
        match &self.store {
            Store::Memory => Answer::ready(self.refund_now(key, receipt)),
            #[cfg(feature = "redis")]
            Store::Redis(scope) => match bounded(key.as_bytes()) {
                Ok(key) => match receipt.charge_of(scope.holder(key)) {
                    Some(charge) => scope.refund(key, &charge, self.nudge_later(key)),
                    None => Answer::ready(Err(Error::receipt_mismatch(self.name()))),
                },
                Err(error) => Answer::ready(Err(error)),
            },
        }
    }

    /// Makes the receipt of a charge to `key` again, from what was written down of the first one: its
    /// [cost](Receipt::cost) and its [place](Receipt::place).
    ///
    /// The caller vouches for it. Numbers that are made up, or refunded twice, give back what other
    /// requests of the key were charged.
    pub fn receipt<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: Cost,
        place: Place,
    ) -> Result<Receipt, Error> {
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        Ok(Receipt::new(core::Receipt::of(cost, place), self.holder(key)))
    }

    fn holder(&self, key: &[u8]) -> Holder {
        match &self.store {
            Store::Memory => self.limiter.inner.memory.place(&self.kept, key).holder(),
            #[cfg(feature = "redis")]
            Store::Redis(scope) => scope.holder(key),
        }
    }

    /// Forgets `key`: it has spent nothing.
    ///
    /// On Redis, other processes see it within a second: until then they may refuse the key by a
    /// refusal that they remember ([`Decision::is_cached`](crate::Decision::is_cached)). This process
    /// sees it at once.
    ///
    /// A receipt from before gives back nothing of a log, and nothing while nothing is spent. Of a window or a
    /// bucket that would still count its units, it gives them back of what was spent since.
    pub fn reset_now<'k>(&self, key: impl Into<Key<'k>>) -> Result<(), Error> {
        self.is_local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        let Inner { memory, lines, .. } = &*self.limiter.inner;
        memory.reset(&self.kept, key);
        lines.nudge(self, key);
        Ok(())
    }

    /// [`reset_now`](Self::reset_now), for any store.
    pub fn reset<'k>(&self, key: impl Into<Key<'k>>) -> Answer<()> {
        let key = key.into();
        match &self.store {
            Store::Memory => Answer::ready(self.reset_now(key)),
            #[cfg(feature = "redis")]
            Store::Redis(scope) => match bounded(key.as_bytes()) {
                Ok(key) => scope.reset(key, self.nudge_later(key)),
                Err(error) => Answer::ready(Err(error)),
            },
        }
    }

    /// The charges of `key` that count, oldest first: an audit trail. Empty unless the limit is a
    /// sliding window log.
    pub fn entries_now<'k>(&self, key: impl Into<Key<'k>>) -> Result<Vec<Entry>, Error> {
        self.is_local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        let Inner { memory, clock, .. } = &*self.limiter.inner;
        Ok(memory.entries(&self.kept, key, clock.now_us()))
    }

    /// [`entries_now`](Self::entries_now), for any store.
    pub fn entries<'k>(&self, key: impl Into<Key<'k>>) -> Answer<Vec<Entry>> {
        let key = key.into();
        match &self.store {
            Store::Memory => Answer::ready(self.entries_now(key)),
            #[cfg(feature = "redis")]
            Store::Redis(scope) => match bounded(key.as_bytes()) {
                Ok(key) => scope.entries(key),
                Err(error) => Answer::ready(Err(error)),
            },
        }
    }

    /// Lets the first in the key's line ask again, once its units are back on the server.
    #[cfg(feature = "redis")]
    pub(crate) fn nudge_later(&self, key: &[u8]) -> redis::Nudge {
        let (scope, key) = (self.clone(), key.to_vec());
        Arc::new(move || scope.limiter.inner.lines.nudge(&scope, &key))
    }

    /// Whether a check that the store fails to decide is an error.
    pub(crate) fn fails_closed(&self) -> bool {
        match &self.store {
            Store::Memory => true,
            #[cfg(feature = "redis")]
            Store::Redis(scope) => scope.fails_closed(),
        }
    }

    /// Returns the limit that decides on `key`, its state, and the time at which to read the state: for
    /// pictures, and for more detail than [`peek`](Self::peek) gives.
    pub fn state<'k>(&self, key: impl Into<Key<'k>>) -> Answer<(Limit, State, u64)> {
        let key = key.into();
        let key = match bounded(key.as_bytes()) {
            Ok(key) => key,
            Err(error) => return Answer::ready(Err(error)),
        };
        match &self.store {
            Store::Memory => {
                let Inner { memory, clock, .. } = &*self.limiter.inner;
                let now_us = clock.now_us();
                let (limit, state) = memory.state(&self.kept, key, now_us);
                Answer::ready(Ok((limit, state, now_us)))
            }
            #[cfg(feature = "redis")]
            Store::Redis(scope) => scope.state(key),
        }
    }
}
