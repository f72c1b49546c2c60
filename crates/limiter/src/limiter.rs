//! The limiter: a store, a clock, and the registry of names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_lease::LeaseCounters;

use crate::answer::Answer;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::failure::{OnFailure, StoreTerms};
use crate::health::Health;
use crate::joint::JointDecision;
use crate::leases::LeaseDriver;
use crate::names::NameRegistry;
use crate::queues::WaitQueues;
use crate::store::memory::{CeilingCounts, MemoryBackend, MemoryStore, Usage};
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
    inner: Arc<LimiterState>,
}

struct LimiterState {
    backend: Backend,
    names: NameRegistry,
    /// The clock of everything except decisions on a remote store. The store decides at its own time, unless the
    /// caller has set a clock.
    clock: Clock,
    queues: WaitQueues,
}

/// The store of a limiter.
#[derive(Debug)]
pub(crate) enum Backend {
    Memory(Arc<MemoryBackend>),
    Remote(Arc<RemoteBackend>),
}

/// A store across the network, with what a limiter adds to it.
#[derive(Debug)]
pub(crate) struct RemoteBackend {
    pub(crate) store: Arc<dyn RemoteStore>,
    pub(crate) fallback: Arc<Fallback>,
    pub(crate) leases: Arc<LeaseDriver>,
    /// The terms of scopes that set none.
    pub(crate) terms: StoreTerms,
    /// The caller's clock, if decisions use it instead of the store's.
    clock: Option<Clock>,
}

impl RemoteBackend {
    /// Returns the time to decide at; `None` for the store's own time.
    pub(crate) fn time(&self, at_us: Option<u64>) -> Option<u64> {
        at_us.or_else(|| self.clock.as_ref().map(Clock::now_us))
    }

    /// Applies the failure policy, if the store failed to decide. Otherwise notes the decision for the policy.
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
            Ok(decision) => {
                self.fallback.note(charge, &decision, call);
                Ok(decision)
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
            Ok(joint) => {
                for (charge, decision) in charges.iter().zip(joint.each()) {
                    self.fallback.note(charge, decision, call);
                }
                Ok(joint)
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
    /// `None` removes the ceiling: every key is kept.
    max_bytes: Option<usize>,
    room_for: usize,
    max_waiting: usize,
}

impl Builder {
    /// Sets the source of time. The default is the machine's clock; tests set another.
    pub fn clock(self, clock: impl Into<Clock>) -> Builder {
        Builder { clock: Some(clock.into()), ..self }
    }

    /// Sets the most bytes that the state of keys may take. The default is 64 MiB, enough for 1.3 million
    /// keys.
    ///
    /// At the ceiling no key's state is evicted; new keys share one overflow state for each name. The count includes
    /// the allocator's overhead: with glibc, after 10 million invented keys, a process had grown by no more than its
    /// ceiling. There is one exception: logs that are made and freed in many different sizes leave holes in the heap
    /// that the allocator cannot reuse. In a test made for that, a process grew 15% above the ceiling. An empty limiter
    /// takes 2 KiB for each MiB of its ceiling: 128 KiB for 64 MiB. When a limiter is dropped, the memory of its keys
    /// stays with the process, for limiters that are built later.
    pub fn max_bytes(self, max_bytes: usize) -> Builder {
        Builder { max_bytes: Some(max_bytes), ..self }
    }

    /// Keeps every key for ever, without a ceiling: for replaying a trace. A key that has no spent units any more is kept
    /// too, because the time of a trace may go back to a moment at which the key still had some.
    pub fn keep_every_key(self) -> Builder {
        Builder { max_bytes: None, ..self }
    }

    /// Makes [`build`](Self::build) allocate the memory for this many keys, as far as the ceiling allows, so
    /// that checks of new keys need not.
    ///
    /// Checks of new keys then seldom wait for memory. A hash spreads the keys over the shards, and not quite evenly:
    /// out of a million keys about a thousandth still make their shard grow, at 20 to 35 us each. Where Linux offers
    /// huge pages on request (`madvise` or `always` in `/sys/kernel/mm/transparent_hugepage/enabled`), the memory
    /// consists of huge pages: with a million keys a check took 0.7 to 1.0 times as long, with the larger gains on a
    /// busy machine. Logs of more than three entries allocate their memory when they need it, from what is left under
    /// the ceiling. On Redis this is ignored.
    ///
    /// ```
    /// let limiter = tollgate::Limiter::builder().room_for(100_000).build();
    /// assert!(limiter.usage().bytes > 4 << 20);
    /// ```
    pub fn room_for(self, keys: usize) -> Builder {
        Builder { room_for: keys, ..self }
    }

    /// Sets how many requests may wait in [`Scope::acquire`](crate::Scope::acquire) at a time, for all keys
    /// together. The default is 65,536. Behind the first waiter of one key, up to 4,096 requests may wait.
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
        let fallback = Fallback::new(self.max_bytes);
        let fallback = Arc::new(match &self.clock {
            Some(clock) => fallback.on_clock(clock.clone()),
            None => fallback,
        });
        let store = Arc::new(connect(&fallback)?);
        let terms = StoreTerms { deadline: DEADLINE, on_failure: OnFailure::default() };
        Ok(RemoteBuilder { builder: self, store, fallback, terms })
    }

    /// Builds the limiter.
    pub fn build(self) -> Limiter {
        let memory = MemoryStore::new(self.max_bytes);
        memory.make_room_for(self.room_for);
        let clock = self.clock.unwrap_or_default();
        let backend = Backend::Memory(Arc::new(MemoryBackend { memory, clock: clock.clone() }));
        Limiter::new(backend, clock, self.max_waiting)
    }
}

/// How long a store across the network has for a request, by default.
pub const DEADLINE: Duration = Duration::from_millis(10);

/// Settings of a [`Limiter`] on a store across the network.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct RemoteBuilder {
    builder: Builder,
    store: Arc<dyn RemoteStore>,
    fallback: Arc<Fallback>,
    terms: StoreTerms,
}

impl RemoteBuilder {
    /// Sets how long the store has for a request, including the time in its queue. The default is 10 ms; at
    /// least 1 ms, at most an hour. A scope may have [its own](crate::Scope::deadline).
    pub fn deadline(mut self, deadline: Duration) -> RemoteBuilder {
        self.terms.set_deadline(deadline);
        self
    }

    /// Sets what happens to a check when the store fails. The default is [`OnFailure::Local`], with the number of
    /// processes that the store knows. A scope may have [its own](crate::Scope::on_failure). The memory for
    /// [`OnFailure::Local`], shared by all scopes, is bounded by [`Builder::max_bytes`].
    pub fn on_failure(mut self, on_failure: OnFailure) -> RemoteBuilder {
        self.terms.on_failure = on_failure;
        self
    }

    /// Builds the limiter.
    pub fn build(self) -> Limiter {
        let RemoteBuilder { builder, store, fallback, terms } = self;
        let Builder { clock, max_waiting, .. } = builder;
        let leases = LeaseDriver::new(&store, &fallback, terms.deadline, clock.as_ref());
        let remote = RemoteBackend { store, fallback, leases, terms, clock: clock.clone() };
        Limiter::new(Backend::Remote(Arc::new(remote)), clock.unwrap_or_default(), max_waiting)
    }
}

impl Limiter {
    /// Returns a limiter in this process's memory, on the machine's clock.
    pub fn memory() -> Limiter {
        Limiter::builder().build()
    }

    /// Returns the settings of a limiter, to be changed.
    pub fn builder() -> Builder {
        Builder { clock: None, max_bytes: Some(64 << 20), room_for: 0, max_waiting: 65_536 }
    }

    fn new(backend: Backend, clock: Clock, max_waiting: usize) -> Limiter {
        let (names, queues) = (NameRegistry::default(), WaitQueues::new(max_waiting));
        Limiter { inner: Arc::new(LimiterState { backend, names, clock, queues }) }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.inner.backend
    }

    pub(crate) fn names(&self) -> &NameRegistry {
        &self.inner.names
    }

    pub(crate) fn queues(&self) -> &WaitQueues {
        &self.inner.queues
    }

    /// Returns the clock of the limiter. A remote store decides at its own time, unless the clock was
    /// [set](Builder::clock).
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Whether units can be [held](crate::Scope::reserve): in memory always, elsewhere if the store has holds.
    pub fn has_holds(&self) -> bool {
        match self.backend() {
            Backend::Memory(_) => true,
            Backend::Remote(remote) => remote.store.has_holds(),
        }
    }

    /// Whether limits can be [leased](crate::Scope::leased). In memory they need not be.
    pub fn has_leases(&self) -> bool {
        match self.backend() {
            Backend::Memory(_) => false,
            Backend::Remote(remote) => remote.store.has_leases(),
        }
    }

    /// Returns what the [leases](crate::Scope::leased) of this process did so far.
    pub fn lease_counters(&self) -> LeaseCounters {
        match self.backend() {
            Backend::Memory(_) => LeaseCounters::default(),
            Backend::Remote(remote) => remote.leases.counters(),
        }
    }

    /// Gives the unused units of all leases back, for a process that is about to end. Dropping the last clone of the limiter
    /// does the same, without waiting for the store. A check after it may open a lease again.
    pub fn end_leases(&self) -> Answer<()> {
        match self.backend() {
            Backend::Memory(_) => Answer::ready(Ok(())),
            Backend::Remote(remote) => remote.leases.end_all(),
        }
    }

    /// Whether both are one limiter, or clones of one.
    pub(crate) fn is_same(&self, other: &Limiter) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns how many requests wait in [`Scope::acquire`](crate::Scope::acquire), for all keys together.
    pub fn waiting(&self) -> usize {
        self.inner.queues.waiting()
    }

    /// Whether the state is in this process, so that every answer is ready at once.
    pub fn is_local(&self) -> bool {
        matches!(self.inner.backend, Backend::Memory(_))
    }

    /// Returns the state of the servers; `None` for a limiter in memory.
    pub fn health(&self) -> Option<Health> {
        match &self.inner.backend {
            Backend::Memory(_) => None,
            Backend::Remote(remote) => Some(remote.store.health()),
        }
    }

    /// Returns the number of limiters that share the limits of the store, this one included, as the store last counted
    /// them. By default [`OnFailure::Local`] divides limits by this number. `None` for a limiter in memory, for a store that
    /// does not count, and until the first count.
    pub fn live_processes(&self) -> Option<u32> {
        match &self.inner.backend {
            Backend::Memory(_) => None,
            Backend::Remote(remote) => remote.fallback.live_processes(),
        }
    }

    /// Returns how many keys and bytes the memory store has, and how often it had no room; zeros for a limiter on
    /// Redis.
    pub fn usage(&self) -> Usage {
        match &self.inner.backend {
            Backend::Memory(backend) => backend.memory.usage(),
            Backend::Remote(_) => Usage::default(),
        }
    }

    /// Returns how often the memory store had no room, since it was built; zeros for a limiter on Redis. Unlike
    /// [`usage`](Self::usage) this takes no lock, so a program can call it often.
    pub fn ceiling_counts(&self) -> CeilingCounts {
        match &self.inner.backend {
            Backend::Memory(backend) => backend.memory.ceiling_counts(),
            Backend::Remote(_) => CeilingCounts::default(),
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
