//! A limit under a name, and the operations on its keys.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{self as core, ChargePlace, Cost, Entry, Limit, UnitRequest};
use tollgate_lease::LeaseTerms;

use crate::answer::Answer;
use crate::error::Error;
use crate::failure::{OnFailure, StoreTerms};
use crate::joint::Demand;
use crate::key::Key;
use crate::leases::LeaseOptions;
use crate::limiter::{Backend, Limiter, RemoteBackend};
use crate::names::Name;
use crate::receipt::{Fingerprint, Receipt};
use crate::store::memory::{self, MemoryBackend};
use crate::store::{Call, Charge, KeyState, Wake};

/// The longest key. Hashing a key reads all of its bytes, before the deadline of a check begins. The keys
/// that rules make for one request have at most this length together.
pub const MAX_KEY_BYTES: usize = 1 << 20;

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
/// The failure policy and the deadline belong to this handle: other handles of the same name may have others.
///
/// ```no_run
/// # use std::time::Duration;
/// # use tollgate::{Limiter, OnFailure, Redis};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Redis::at("redis://127.0.0.1:6379")?.build()?; // local, 10 ms
/// let api = limiter.scope("api", "token-bucket capacity=60 refill=1/s")?;
/// let logins = limiter.scope("logins", "fixed-window limit=5 window=1m")?;
/// let logins = logins.on_failure(OnFailure::Closed).deadline(Duration::from_millis(50));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Scope {
    limiter: Limiter,
    backend: ScopeBackend,
}

/// Where the state of a scope's keys is kept.
#[derive(Clone, Debug)]
pub(crate) enum ScopeBackend {
    Memory { backend: Arc<MemoryBackend>, memory_scope: Arc<memory::MemoryScope> },
    Remote(Arc<RemoteScope>),
}

/// A scope on a store across the network.
#[derive(Clone, Debug)]
pub(crate) struct RemoteScope {
    pub(crate) remote: Arc<RemoteBackend>,
    name: Arc<Name>,
    limit: Limit,
    pub(crate) terms: StoreTerms,
    /// Set if the limit is leased.
    pub(crate) lease: Option<LeaseTerms>,
}

impl RemoteScope {
    /// Returns a charge of a key.
    pub(crate) fn charge(&self, key: &[u8], demand: Demand) -> Charge {
        Charge::new(Arc::clone(&self.name), key, self.limit, demand)
    }

    pub(crate) fn name(&self) -> &Arc<Name> {
        &self.name
    }

    /// Returns a charge of one unit, to identify the key in a request that charges nothing.
    pub(crate) fn unit_charge(&self, key: &[u8]) -> Charge {
        self.charge(key, Demand::of(UnitRequest::new(Cost::ONE)))
    }

    /// Returns the time, the deadline and the policy of a request other than a check.
    pub(crate) fn call(&self) -> Call {
        let StoreTerms { deadline, .. } = self.terms;
        Call { at_us: self.remote.time(None), deadline, on_failure: OnFailure::Closed }
    }
}

impl Limiter {
    /// Returns a limit under a name. The name is the limit's, such as `logins`, not a user's: one scope
    /// serves all users, and the user is the key of each check.
    ///
    /// The limit is a [`Limit`], one of the algorithms, or text. For text that is not a valid limit, the error is
    /// [`Error::Limit`]. Make a scope once and keep it: making one looks its name up.
    ///
    /// ```
    /// # use tollgate::{Limit, Limiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
    /// assert_eq!(logins.check("user:42").now()?.remaining(), 4);
    /// assert_eq!(logins.check("user:7").now()?.remaining(), 4);
    ///
    /// let api = limiter.scope("api", Limit::per_second(10).burst(60))?;
    /// assert_eq!(api.check("user:42").now()?.remaining(), 59);
    ///
    /// let mistake = limiter.scope("logins", "sliding-window-log limit=5").unwrap_err();
    /// assert!(mistake.to_string().contains("window"), "{mistake}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// State belongs to the name and the key: two names with the same numbers do not share state, two scopes
    /// of the same name do.
    ///
    /// The same name may be used with other numbers, or with another algorithm: a limit can change while it is in
    /// use, and each customer can have its own. A check carries what its key has spent over to the limit of
    /// its scope, where it stays spent. A key that has spent more than the new limit allows stays under the
    /// old limit, at the new size, until enough units have come back.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let api = limiter.scope("api", "fixed-window limit=1000 window=1h")?;
    /// assert_eq!(api.check("user:42").cost(600).now()?.remaining(), 400);
    ///
    /// // The configuration is read again.
    /// let api = limiter.scope("api", "fixed-window limit=1500 window=1h")?;
    /// assert_eq!(api.peek("user:42").now()?.remaining(), 900);
    ///
    /// // One customer pays for more, from now on.
    /// let more = limiter.scope("api", "token-bucket capacity=9000 refill=9000/h")?;
    /// assert_eq!(more.check("user:42").now()?.remaining(), 8399);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// In memory there can be 32,768 limits at a time, and on a store across the network 32,768 names. Dropped limits
    /// make room for others. A name has at most 4 KiB.
    pub fn scope<L>(&self, name: &str, limit: L) -> Result<Scope, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        if name.len() > MAX_NAME_BYTES {
            return Err(Error::NameTooLong { bytes: name.len(), most: MAX_NAME_BYTES });
        }
        let limit = limit.try_into()?;
        let backend = match self.backend() {
            Backend::Memory(backend) => {
                let name = self.names().get(name, Box::default);
                let memory_scope =
                    backend.memory.scope_as_of(&name, limit, || backend.clock.now_us())?;
                ScopeBackend::Memory { backend: Arc::clone(backend), memory_scope }
            }
            Backend::Remote(remote) => {
                if limit.only_holds() && !remote.store.has_holds() {
                    return Err(Error::HoldsUnsupported);
                }
                let encode = || remote.store.encode_name(name);
                let name = self.names().get_bounded(name, encode)?;
                let (remote, terms) = (Arc::clone(remote), remote.terms);
                ScopeBackend::Remote(Arc::new(RemoteScope {
                    remote,
                    name,
                    limit,
                    terms,
                    lease: None,
                }))
            }
        };
        Ok(Scope { limiter: self.clone(), backend })
    }
}

impl Scope {
    #[inline(always)]
    pub(crate) fn backend(&self) -> &ScopeBackend {
        &self.backend
    }

    /// Whether the state is in this process, so that every answer is ready at once.
    #[inline(always)]
    pub fn is_local(&self) -> bool {
        matches!(self.backend, ScopeBackend::Memory { .. })
    }

    /// Returns the memory store and the scope there; an error if the state is on a store across the network.
    #[inline(always)]
    pub(crate) fn local(&self) -> Result<(&MemoryBackend, &memory::MemoryScope), Error> {
        match &self.backend {
            ScopeBackend::Memory { backend, memory_scope } => Ok((backend, memory_scope)),
            ScopeBackend::Remote(_) => Err(Error::MustWait),
        }
    }

    /// Whether the limit delays requests.
    pub fn is_shaping(&self) -> bool {
        self.limit().is_shaping()
    }

    /// Whether the limit's units are only ever held: true only for a concurrency limit. [Reserve](Self::reserve) its
    /// units. A check is [`Error::MustReserve`], and a peek answers for a reservation.
    pub fn only_holds(&self) -> bool {
        self.limit().only_holds()
    }

    /// Returns the error of a check, if the limit's units are only ever held.
    pub(crate) fn can_check(&self) -> Result<(), Error> {
        if self.only_holds() { Err(self.must_reserve()) } else { Ok(()) }
    }

    /// Returns the error of a check of a limit whose units are only ever held.
    // Out of line, and not a method of `Check`: the compiler then keeps the fields of a check in registers.
    #[cold]
    #[inline(never)]
    pub(crate) fn must_reserve(&self) -> Error {
        Error::MustReserve { scope: self.name().to_owned() }
    }

    /// Returns the limiter of this scope.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.registered_name().text()
    }

    /// Returns the name as it is registered.
    pub(crate) fn registered_name(&self) -> &Name {
        match &self.backend {
            ScopeBackend::Memory { memory_scope, .. } => memory_scope.name(),
            ScopeBackend::Remote(scope) => &scope.name,
        }
    }

    /// Returns the limit.
    #[inline]
    pub fn limit(&self) -> &Limit {
        match &self.backend {
            ScopeBackend::Memory { memory_scope, .. } => &memory_scope.limit,
            ScopeBackend::Remote(scope) => &scope.limit,
        }
    }

    /// Sets what happens to a check through this handle when the store fails, instead of the limiter's policy
    /// (`Redis::on_failure`). No effect in memory.
    #[must_use = "only the returned handle has the policy"]
    pub fn on_failure(self, on_failure: OnFailure) -> Scope {
        self.with_terms(|terms| terms.on_failure = on_failure)
    }

    /// Sets the deadline of requests through this handle, instead of the limiter's (`Redis::deadline`). It
    /// may be shorter or longer: at least 1 ms, at most an hour. In a check of several limits, the shortest
    /// deadline of the enforced limits applies. No effect in memory.
    ///
    /// The circuit breaker opens when a server misses the limiter's deadline, not when it misses a shorter
    /// one. A longer deadline lets a request wait longer, but not for a server whose breaker is open. So give
    /// the limiter the longest usual deadline, and give scopes that need fast answers a shorter one.
    #[must_use = "only the returned handle has the deadline"]
    pub fn deadline(self, deadline: Duration) -> Scope {
        self.with_terms(|terms| terms.set_deadline(deadline))
    }

    /// Leases the keys of this limit: this process takes units from the store ahead of the checks that will need them, and
    /// decides those checks without asking the store. All processes together admit no more than without leases.
    ///
    /// Only keys that are checked often are leased: from the eighth check within the time of a lease on. A lease is renewed in
    /// the background, and given back when its key is not checked any more. Reservations, peeks, acquires and checks at a
    /// [given time](crate::Check::at_us) always ask the store. See [`Decision::is_leased`](crate::Decision::is_leased) for what such
    /// a decision says, and `docs/guide/modes.md` for when to use leases.
    ///
    /// No effect in memory, and on a store without leases. An error if the limit cannot be leased: a concurrency limit or a
    /// shaping bucket.
    ///
    /// ```no_run
    /// # use tollgate::{LeaseOptions, Limiter, Redis};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Redis::at("redis://127.0.0.1:6379")?.build()?;
    /// let api = limiter.scope("api", "token-bucket capacity=10000 refill=10000/s")?;
    /// let api = api.leased(LeaseOptions::default())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn leased(mut self, options: LeaseOptions) -> Result<Scope, Error> {
        let terms = options.terms(self.limit())?;
        if let ScopeBackend::Remote(scope) = &mut self.backend
            && scope.remote.store.has_leases()
        {
            Arc::make_mut(scope).lease = Some(terms);
        }
        Ok(self)
    }

    /// Whether the keys of this limit are [leased](Self::leased).
    pub fn is_leased(&self) -> bool {
        matches!(&self.backend, ScopeBackend::Remote(scope) if scope.lease.is_some())
    }

    /// Returns how many processes share the limit now, under a local policy with this number; `None` in memory.
    pub(crate) fn share_processes(&self, configured: Option<u32>) -> Option<u32> {
        let ScopeBackend::Remote(scope) = &self.backend else { return None };
        Some(scope.remote.fallback.processes(configured))
    }

    /// Returns this scope on the process's own share of the limit, which `processes` share; `None` in memory, or if the
    /// share has no memory.
    pub(crate) fn share(&self, processes: u32) -> Option<Scope> {
        let ScopeBackend::Remote(scope) = &self.backend else { return None };
        let (backend, memory_scope) =
            scope.remote.fallback.share(processes, &scope.name, &scope.limit)?;
        let backend = ScopeBackend::Memory { backend, memory_scope };
        Some(Scope { limiter: self.limiter.clone(), backend })
    }

    fn with_terms(mut self, set: impl FnOnce(&mut StoreTerms)) -> Scope {
        if let ScopeBackend::Remote(scope) = &mut self.backend {
            set(&mut Arc::make_mut(scope).terms);
        }
        self
    }

    /// Gives back the part of a charge to `key` that still counts, and returns how many units that frees.
    ///
    /// The receipt must belong to the same key and to a scope with the same name; any other receipt is
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
        self.refund_at_us(key, self.limiter.clock().now_us(), receipt)
    }

    /// Does the same as [`refund_now`](Self::refund_now) at the given time, for a check that was itself decided at a
    /// [given time](crate::Check::at_us).
    pub fn refund_at_us<'k>(
        &self,
        key: impl Into<Key<'k>>,
        now_us: u64,
        receipt: Receipt,
    ) -> Result<u64, Error> {
        let (backend, memory_scope) = self.local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        let back = backend.memory.refund(memory_scope, key, now_us, receipt)?;
        self.wake_waiters(key);
        Ok(back)
    }

    /// [`refund_now`](Self::refund_now), for any store.
    pub fn refund<'k>(&self, key: impl Into<Key<'k>>, receipt: Receipt) -> Answer<u64> {
        let key = key.into();
        let ScopeBackend::Remote(scope) = &self.backend else {
            return Answer::ready(self.refund_now(key, receipt));
        };
        let key = match bounded(key.as_bytes()) {
            Ok(key) => key,
            Err(error) => return Answer::ready(Err(error)),
        };
        let Some(receipt) = receipt.charge_of(self.fingerprint(key)) else {
            return Answer::ready(Err(Error::receipt_mismatch(self.name())));
        };
        if let ChargePlace::Lease { .. } = receipt.place() {
            let back = scope.remote.leases.give_back(&scope.name, key, &receipt);
            self.wake_waiters(key);
            return Answer::ready(Ok(back));
        }
        let charge = scope.charge(key, Demand::of(UnitRequest::new(receipt.cost())));
        scope.remote.store.refund(charge, receipt, scope.call(), self.wake(key))
    }

    /// Makes the receipt of a charge to `key` again, from the stored [cost](Receipt::cost) and
    /// [place](Receipt::place) of the first receipt.
    ///
    /// The caller vouches for the numbers. Invented numbers, or a second refund, give back what other
    /// requests of the key were charged.
    pub fn receipt<'k>(
        &self,
        key: impl Into<Key<'k>>,
        cost: Cost,
        place: ChargePlace,
    ) -> Result<Receipt, Error> {
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        Ok(Receipt::new(core::ChargeReceipt::of(cost, place), self.fingerprint(key)))
    }

    pub(crate) fn fingerprint(&self, key: &[u8]) -> Fingerprint {
        match &self.backend {
            ScopeBackend::Memory { backend, memory_scope } => {
                backend.memory.place(memory_scope, key).fingerprint()
            }
            ScopeBackend::Remote(scope) => crate::store::fingerprint(&scope.name, key),
        }
    }

    /// Forgets the state of `key`, as if it had spent nothing, and its holds.
    ///
    /// On Redis, other processes see the reset within a second: until then they may refuse the key because of
    /// a remembered refusal ([`Decision::is_cached`](crate::Decision::is_cached)). This process sees it at
    /// once.
    ///
    /// Drop the receipts of charges from before the reset, and do not refund them. Under a log, such a receipt refunds
    /// nothing. Under a window or a bucket, it refunds units that were charged after the reset, for as long as the old
    /// charge would have counted without the reset.
    pub fn reset_now<'k>(&self, key: impl Into<Key<'k>>) -> Result<(), Error> {
        let (backend, memory_scope) = self.local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        backend.memory.reset(memory_scope, key);
        self.wake_waiters(key);
        Ok(())
    }

    /// [`reset_now`](Self::reset_now), for any store.
    pub fn reset<'k>(&self, key: impl Into<Key<'k>>) -> Answer<()> {
        let key = key.into();
        let ScopeBackend::Remote(scope) = &self.backend else {
            return Answer::ready(self.reset_now(key));
        };
        match bounded(key.as_bytes()) {
            Ok(key) => {
                let charge = scope.unit_charge(key);
                let (remote, own) = (Arc::clone(&scope.remote), charge.clone());
                let answer = remote.store.reset(charge, scope.call(), self.wake(key));
                answer.then(move |answer| answer.inspect(|()| remote.fallback.forget(&own)))
            }
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// Returns the charges of `key` that count, oldest first: an audit trail. Empty unless the limit is a
    /// sliding window log.
    pub fn entries_now<'k>(&self, key: impl Into<Key<'k>>) -> Result<Vec<Entry>, Error> {
        let (backend, memory_scope) = self.local()?;
        let key = key.into();
        let key = bounded(key.as_bytes())?;
        Ok(backend.memory.entries(memory_scope, key, backend.clock.now_us()))
    }

    /// [`entries_now`](Self::entries_now), for any store.
    pub fn entries<'k>(&self, key: impl Into<Key<'k>>) -> Answer<Vec<Entry>> {
        let key = key.into();
        let ScopeBackend::Remote(scope) = &self.backend else {
            return Answer::ready(self.entries_now(key));
        };
        let is_log = matches!(scope.limit, Limit::SlidingWindowLog(_));
        self.state(key).then(move |state| {
            let KeyState { limit, mut state, mut holds, now_us } = state?;
            limit.charge_expired(&mut state, &mut holds, now_us);
            // Empty for a limit that is not a log, even while its key is still under a log.
            let entries = is_log.then(|| limit.entries(&state, now_us)).flatten();
            Ok(entries.map(Iterator::collect).unwrap_or_default())
        })
    }

    /// Returns the limit that decides on `key`, its state, and the time at which to read the state. Use it to display
    /// the state, or for more detail than [`peek`](Self::peek) gives.
    pub fn state<'k>(&self, key: impl Into<Key<'k>>) -> Answer<KeyState> {
        let key = key.into();
        let key = match bounded(key.as_bytes()) {
            Ok(key) => key,
            Err(error) => return Answer::ready(Err(error)),
        };
        match &self.backend {
            ScopeBackend::Memory { backend, memory_scope } => {
                let now_us = backend.clock.now_us();
                let (limit, state, holds) = backend.memory.state(memory_scope, key, now_us);
                Answer::ready(Ok(KeyState { limit, state, holds, now_us }))
            }
            ScopeBackend::Remote(scope) => {
                scope.remote.store.state(scope.unit_charge(key), scope.call())
            }
        }
    }

    /// Wakes the first waiter of a key, so that it checks again, because units came back.
    pub fn wake_waiters(&self, key: &[u8]) {
        self.limiter.queues().nudge(self.registered_name().number(), key);
    }

    /// Returns a function that wakes the first waiter of a key, for the store to call once units are back.
    pub(crate) fn wake(&self, key: &[u8]) -> Wake {
        let (scope, key) = (self.clone(), key.to_vec());
        Arc::new(move || scope.wake_waiters(&key))
    }

    /// Whether a check is an error when the store fails to decide it.
    pub(crate) fn fails_closed(&self) -> bool {
        match &self.backend {
            ScopeBackend::Memory { .. } => true,
            ScopeBackend::Remote(scope) => scope.terms.on_failure == OnFailure::Closed,
        }
    }
}
