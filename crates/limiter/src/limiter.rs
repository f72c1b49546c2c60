//! The limiter: a store, a clock, and the registry of names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::failure::{OnFailure, Terms};
use crate::health::Health;
use crate::joint::JointDecision;
use crate::lines::Lines;
use crate::names::Names;
use crate::store::memory::{CeilingCounts, Memory, Usage};
use crate::store::{Call, Charge, Fallback, JointRequest, RemoteStore};

/// Decides requests against limits, and keeps what every key has spent. Cheap to clone; clones
/// share everything.
///
/// ```
/// use tollgate::Limiter;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::memory();
/// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
/// assert!(logins.check("203.0.113.9").now()?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    names: Names,
    /// Of everything but decisions on a remote store, which has its own.
    clock: Clock,
    lines: Lines,
}

/// The store of a limiter.
#[derive(Debug)]
pub(crate) enum Store {
    Memory(Arc<Local>),
    Remote(Arc<Remote>),
}

/// The memory store, with the clock that it decides at.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
}

/// A store across the network, with what a limiter adds to it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) store: Arc<dyn RemoteStore>,
    fallback: Arc<Fallback>,
    /// Of scopes that have none of their own.
    pub(crate) terms: Terms,
    /// The caller's clock, where it decides instead of the store's.
    clock: Option<Clock>,
}

impl Remote {
    /// Returns the time to decide at; the store's own, if `None`.
    pub(crate) fn time(&self, at_us: Option<u64>) -> Option<u64> {
        at_us.or_else(|| self.clock.as_ref().map(Clock::now_us))
    }

    /// Decides by the failure policy what the store failed to decide.
    pub(crate) fn decide_instead(
        &self,
        answer: Result<Decision, Error>,
        charge: &Charge,
        call: &Call,
    ) -> Result<Decision, Error> {
        match answer {
            Err(Error::Store(error)) => {
                self.fallback.decide(charge, call).ok_or(Error::Store(error))
            }
            answer => answer,
        }
    }

    /// [`decide_instead`](Self::decide_instead), for a check of several limits.
    pub(crate) fn decide_all_instead(
        &self,
        answer: Result<JointDecision, Error>,
        JointRequest { charges, call }: &JointRequest,
    ) -> Result<JointDecision, Error> {
        match answer {
            Err(Error::Store(error)) => {
                self.fallback.decide_all(charges, call).ok_or(Error::Store(error))
            }
            answer => answer,
        }
    }
}

/// Settings of a [`Limiter`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder {
    clock: Option<Clock>,
    /// `None` keeps every key.
    max_bytes: Option<usize>,
    room_for: usize,
    max_waiting: usize,
}

impl Builder {
    /// Where the time comes from; the machine, unless a test says otherwise.
    pub fn clock(self, clock: impl Into<Clock>) -> Builder {
        Builder { clock: Some(clock.into()), ..self }
    }

    /// The most bytes that keys' state may take: 64 MiB unless said, enough for 1.3 million keys.
    ///
    /// At the ceiling nobody's state is dropped; new keys then share one state for each name. What
    /// the allocator takes is counted: with glibc, after 10 million invented keys, a process had
    /// grown by no more than its ceiling. Only logs that come and go in ever other sizes leave holes
    /// that it cannot use: 15% above the ceiling in a test made for that. An empty limiter takes 2 KiB
    /// for each MiB of its ceiling: 128 KiB of 64 MiB. When it is dropped, the memory of its keys stays with the process, for
    /// the limiters that come after it.
    pub fn max_bytes(self, max_bytes: usize) -> Builder {
        Builder { max_bytes: Some(max_bytes), ..self }
    }

    /// Keeps every key for ever, without a ceiling: to replay a trace, whose time may go back to
    /// when a key had something spent.
    pub fn keep_every_key(self) -> Builder {
        Builder { max_bytes: None, ..self }
    }

    /// Has [`build`](Self::build) ask the system for the memory of so many keys, as far as it is under the ceiling,
    /// rather than each check that brings some in.
    ///
    /// Those then seldom wait: keys are spread by chance, so that of a million about a thousandth still have to make
    /// room, 20 to 40 us each. And where Linux has huge pages for who asks (`madvise` or `always` in
    /// `/sys/kernel/mm/transparent_hugepage/enabled`) the memory is of those: with a million keys a check took 0.7 to
    /// 1.0 times as long, the less the busier the machine. Logs of more than three entries take theirs when they need
    /// it, of what is left under the ceiling. On Redis this is ignored.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().room_for(100_000).build();
    /// assert!(limiter.usage().bytes > 4 << 20);
    /// ```
    pub fn room_for(self, keys: usize) -> Builder {
        Builder { room_for: keys, ..self }
    }

    /// The most that may wait in [`Scope::acquire`](crate::Scope::acquire) at a time, for all keys together: 65,536 unless
    /// said. Behind the first of one key, 4,096 may.
    pub fn max_waiting(self, max_waiting: usize) -> Builder {
        Builder { max_waiting, ..self }
    }

    /// Returns the settings of a limiter on a store across the network.
    ///
    /// `connect` makes the store. It gets the [`Fallback`] of the limiter, for stores that decide parts of a request
    /// with it.
    pub fn store<S: RemoteStore>(
        self,
        connect: impl FnOnce(&Arc<Fallback>) -> Result<S, Error>,
    ) -> Result<RemoteBuilder, Error> {
        let fallback = Arc::new(Fallback::new(self.max_bytes));
        let store = Arc::new(connect(&fallback)?);
        let terms = Terms { deadline: DEADLINE, on_failure: None };
        Ok(RemoteBuilder { builder: self, store, fallback, terms })
    }

    /// The limiter.
    pub fn build(self) -> Limiter {
        let memory = Memory::new(self.max_bytes);
        memory.make_room_for(self.room_for);
        let clock = self.clock.unwrap_or_default();
        let store = Store::Memory(Arc::new(Local { memory, clock: clock.clone() }));
        Limiter::new(store, clock, self.max_waiting)
    }
}

/// How long a store across the network has for a request, unless it is set.
pub const DEADLINE: Duration = Duration::from_millis(10);

/// Settings of a [`Limiter`] on a store across the network.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RemoteBuilder {
    builder: Builder,
    store: Arc<dyn RemoteStore>,
    fallback: Arc<Fallback>,
    terms: Terms,
}

impl RemoteBuilder {
    /// Sets how long the store has for a request, waiting for other requests included; 10 ms unless set. At least
    /// 1 ms, at most an hour. A scope may have [its own](crate::Scope::deadline).
    pub fn deadline(mut self, deadline: Duration) -> RemoteBuilder {
        self.terms.set_deadline(deadline);
        self
    }

    /// Sets what a check comes to when the store fails. Without this, checks are [open](OnFailure::Open), and
    /// [acquires](crate::Acquire) wait for their turn in this process. A scope may have
    /// [its own](crate::Scope::on_failure). The memory for [`OnFailure::Local`], one for all scopes, is what
    /// [`Builder::max_bytes`] says.
    pub fn on_failure(mut self, on_failure: OnFailure) -> RemoteBuilder {
        self.terms.on_failure = Some(on_failure);
        self
    }

    /// The limiter.
    pub fn build(self) -> Limiter {
        let RemoteBuilder { builder, store, fallback, terms } = self;
        let Builder { clock, max_waiting, .. } = builder;
        let remote = Remote { store, fallback, terms, clock: clock.clone() };
        Limiter::new(Store::Remote(Arc::new(remote)), clock.unwrap_or_default(), max_waiting)
    }
}

impl Limiter {
    /// A limiter in this process's memory, on the machine's clock.
    pub fn memory() -> Limiter {
        Limiter::builder().build()
    }

    /// A limiter with other settings.
    pub fn builder() -> Builder {
        Builder { clock: None, max_bytes: Some(64 << 20), room_for: 0, max_waiting: 65_536 }
    }

    fn new(store: Store, clock: Clock, max_waiting: usize) -> Limiter {
        let (names, lines) = (Names::default(), Lines::new(max_waiting));
        Limiter { inner: Arc::new(Inner { store, names, clock, lines }) }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn names(&self) -> &Names {
        &self.inner.names
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    /// Returns the clock of the limiter. A remote store decides at its own time, unless the clock was
    /// [set](Builder::clock).
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Whether both are one limiter, or clones of one.
    pub(crate) fn is_same(&self, other: &Limiter) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// How many stand in line in [`Scope::acquire`](crate::Scope::acquire), for all keys together.
    pub fn waiting(&self) -> usize {
        self.inner.lines.waiting()
    }

    /// Whether its state is in this process, so that every answer is ready at once.
    pub fn is_local(&self) -> bool {
        matches!(self.inner.store, Store::Memory(_))
    }

    /// How the servers are; `None` of a limiter in memory.
    pub fn health(&self) -> Option<Health> {
        match &self.inner.store {
            Store::Memory(_) => None,
            Store::Remote(remote) => Some(remote.store.health()),
        }
    }

    /// What the memory store holds; nothing, of a limiter on Redis.
    pub fn usage(&self) -> Usage {
        match &self.inner.store {
            Store::Memory(local) => local.memory.usage(),
            Store::Remote(_) => Usage::default(),
        }
    }

    /// Returns how often the memory store had no room, since it was made. Unlike [`usage`](Self::usage) this takes no
    /// lock, so a program can call it often.
    pub fn ceiling_counts(&self) -> CeilingCounts {
        match &self.inner.store {
            Store::Memory(local) => local.memory.ceiling_counts(),
            Store::Remote(_) => CeilingCounts::default(),
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
