//! The limiter: a store, a clock, and limits by name.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Limit;

use crate::acquire::Lines;
use crate::answer::Answer;
use crate::check::Check;
use crate::clock::Clock;
use crate::error::Error;
use crate::scope::Scope;
use crate::store::memory::{Memory, Usage};
use crate::together::{Together, decide_together};

/// Decides requests against limits, and keeps what every key has spent. Cheap to clone; clones
/// share everything.
///
/// ```
/// use tollgate::{Limit, Limiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::memory();
/// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m".parse::<Limit>()?)?;
/// assert!(logins.check("203.0.113.9").now()?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
    pub(crate) lines: Lines,
}

/// Settings of a [`Limiter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    clock: Clock,
    /// `None` keeps every key.
    max_bytes: Option<usize>,
    max_waiting: usize,
}

impl Builder {
    /// Where the time comes from; the machine, unless a test says otherwise.
    pub fn clock(self, clock: impl Into<Clock>) -> Builder {
        Builder { clock: clock.into(), ..self }
    }

    /// The most bytes that keys' state may take: 64 MiB unless said, enough for 1.3 million keys.
    ///
    /// At the ceiling nobody's state is dropped; new keys then share one state for each limit. What
    /// the allocator takes is counted: with glibc, after 10 million invented keys, a process had
    /// grown by no more than its ceiling. Only logs that come and go in ever other sizes leave holes
    /// that it cannot use: 15% above the ceiling in a test made for that. An empty limiter takes a
    /// thirtieth of its ceiling.
    pub fn max_bytes(self, max_bytes: usize) -> Builder {
        Builder { max_bytes: Some(max_bytes), ..self }
    }

    /// Keeps every key for ever, without a ceiling: to replay a trace, whose time may go back to
    /// when a key had something spent.
    pub fn keep_every_key(self) -> Builder {
        Builder { max_bytes: None, ..self }
    }

    /// The most that may wait in [`Scope::acquire`] at a time, for all keys together: 65,536 unless
    /// said. Behind the first of one key, 4,096 may.
    pub fn max_waiting(self, max_waiting: usize) -> Builder {
        Builder { max_waiting, ..self }
    }

    /// The limiter.
    pub fn build(self) -> Limiter {
        let Builder { clock, max_bytes, max_waiting } = self;
        let (memory, lines) = (Memory::new(max_bytes), Lines::new(max_waiting));
        Limiter { inner: Arc::new(Inner { memory, clock, lines }) }
    }
}

impl Limiter {
    /// A limiter in this process's memory, on the machine's clock.
    pub fn memory() -> Limiter {
        Limiter::builder().build()
    }

    /// A limiter with other settings.
    pub fn builder() -> Builder {
        Builder { clock: Clock::system(), max_bytes: Some(64 << 20), max_waiting: 65_536 }
    }

    /// A limit under a name. State belongs to the name and the key: two names with the same numbers
    /// do not share it, the same name twice does.
    pub fn scope(&self, name: &str, limit: impl Into<Limit>) -> Result<Scope, Error> {
        let kept = self.inner.memory.scope(name, limit.into())?;
        Ok(Scope::new(self.clone(), kept))
    }

    /// Decides one request on several limits: all of them are charged, or none.
    ///
    /// ```
    /// # use tollgate::{Limit, Limiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let user = limiter.scope("user", "token-bucket capacity=60 refill=1/s".parse::<Limit>()?)?;
    /// let all = limiter.scope("all", "fixed-window limit=1000 window=1s".parse::<Limit>()?)?;
    /// let together = limiter.check_all_now(&[user.check("user:42").cost(5), all.check("all")])?;
    /// assert_eq!(together.remaining(), Some(11)); // eleven more requests like this one fit
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_all_now(&self, checks: &[Check<'_>]) -> Result<Together, Error> {
        decide_together(self, checks)
    }

    /// [`check_all_now`](Self::check_all_now), for any store.
    pub fn check_all(&self, checks: &[Check<'_>]) -> Answer<Together> {
        Answer::ready(self.check_all_now(checks))
    }

    /// Decides many requests, independent of each other, each on one or more limits.
    pub fn batch(&self, requests: &[&[Check<'_>]]) -> Answer<Vec<Result<Together, Error>>> {
        Answer::ready(Ok(requests.iter().map(|checks| self.check_all_now(checks)).collect()))
    }

    /// How many stand in line in [`Scope::acquire`], for all keys together.
    pub fn waiting(&self) -> usize {
        self.inner.lines.waiting()
    }

    /// What the store holds.
    pub fn usage(&self) -> Usage {
        self.inner.memory.usage()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
