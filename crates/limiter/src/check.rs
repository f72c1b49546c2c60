//! One request to one limit, before it is decided.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tollgate_core::{Cost, CostError, Intent, Limit, Role, UnitRequest};
use tollgate_lease::LeaseTerms;

use crate::answer::Answer;
use crate::decision::{Decision, DecisionSource};
use crate::error::Error;
use crate::joint::Demand;
use crate::key::Key;
use crate::leases::{LeasedCheck, Taken, WaitOutcome};
use crate::scope::{MAX_KEY_BYTES, RemoteScope, Scope, ScopeBackend, bounded};
use crate::store::memory::{self, MemoryBackend, SlotAlgorithm};
use crate::store::{Call, CheckRequest, UnreadPolicy};

/// A request that has not been decided yet: await it, or decide it [`now`](Check::now).
///
/// Awaiting it, or calling `into_future`, decides and charges it before the first poll
/// ([`refunded_if_dropped`](Check::refunded_if_dropped)).
#[derive(Clone, Debug)]
#[must_use = "nothing is decided until this is awaited, or `now` is called"]
pub struct Check<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: Key<'a>,
    pub(crate) role: Role,
    pub(crate) at_us: Option<u64>,
    if_dropped: DropPolicy,
    within: Option<Duration>,
    pub(crate) intent: Intent,
    cost: Result<Cost, CostError>,
    max_wait_us: Option<u64>,
}

/// The fate of a charge whose answer is dropped before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropPolicy {
    Kept,
    Refunded,
    /// The policy for the first waiter of an [`acquire`](Scope::acquire). In memory it has no effect, because the waiter
    /// reads the answer at once. On a remote store the charge is refunded. In addition, the check is not answered with
    /// a remembered refusal, because units may have come back since.
    FirstWaiter,
}

impl<'a> Check<'a> {
    #[inline]
    pub(crate) fn new(scope: &'a Scope, key: Key<'a>, intent: Intent) -> Check<'a> {
        Check {
            scope,
            key,
            role: Role::Enforced,
            at_us: None,
            if_dropped: DropPolicy::Kept,
            within: None,
            intent,
            cost: Ok(Cost::ONE),
            max_wait_us: None,
        }
    }

    /// Sets the cost, which is 1 by default. At least 1, below 2^53.
    #[inline]
    pub fn cost(self, units: u64) -> Check<'a> {
        Check { cost: Cost::new(units), ..self }
    }

    /// Sets the longest delay that the caller accepts from a shaping limit. If the delay would be longer, the
    /// request is refused and charged nothing.
    pub fn max_wait(self, max_wait: Duration) -> Check<'a> {
        let max_wait_us = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
        Check { max_wait_us: Some(max_wait_us), ..self }
    }

    /// Makes this limit a shadow in a check of several limits: its own decision is returned, but it refuses
    /// nothing.
    pub fn shadow(self) -> Check<'a> {
        Check { role: Role::Shadow, ..self }
    }

    /// Sets the caller's own deadline. A store across the network must answer 3 ms earlier, so that there is time to
    /// return the answer, or by its own deadline if that is earlier still. In a check of several limits, the shortest
    /// time applies.
    ///
    /// With 3 ms or less the request is not sent to the store, and [`OnFailure`](crate::OnFailure) decides. If clients
    /// choose this time, make sure that they cannot choose one that short.
    pub fn within(self, time: Duration) -> Check<'a> {
        Check { within: Some(time), ..self }
    }

    /// Decides at this time, in microseconds since the Unix epoch, instead of the clock's: for replaying a
    /// trace. A step back of less than 10 s does not move a key's time back.
    pub fn at_us(self, now_us: u64) -> Check<'a> {
        Check { at_us: Some(now_us), ..self }
    }

    /// Refunds the charge if the future is dropped before it returns the answer.
    ///
    /// Awaiting a check charges it before the first poll. A caller that gives up, because of a timeout or a client
    /// that disconnects, has then spent units without reading the decision. With this setting the units come back: at
    /// once in memory, and on Redis when the server has answered. A charge to a shaping limit comes back only if no
    /// later request of the key has been charged.
    ///
    /// On Redis a charge stays spent until it expires, in the following cases. None of them admits more than the
    /// limit.
    ///
    /// - The process ends, the connection breaks, or the server does not answer within 5 s after the deadline,
    ///   while the charge or its refund is in flight. At most two batches of 64 charges for each server are in flight.
    /// - The refund finds no room among the 65,536 charges that wait for a server, or the server keeps
    ///   failing.
    /// - The charge is to a bucket, and a later charge to the same key was refunded before it by another
    ///   process, or by [`refund`](Scope::refund). Within a limiter, the charges of dropped futures are
    ///   refunded in order: a refund waits until the answers to earlier checks of this kind and key were read
    ///   or dropped, and at most 1,024 refunds of one key wait in this way.
    ///
    /// No effect on [`now`](Self::now), on a [peek](Scope::peek), and in a check of several limits or
    /// a batch.
    ///
    /// ```
    /// use std::future::IntoFuture;
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let jobs = limiter.scope("jobs", "fixed-window limit=10 window=1d")?;
    /// drop(jobs.check("user:42").into_future()); // charged, although it is never polled
    /// assert_eq!(jobs.peek("user:42").now()?.remaining(), 9);
    /// drop(jobs.check("user:42").refunded_if_dropped().into_future());
    /// assert_eq!(jobs.peek("user:42").now()?.remaining(), 9);
    /// # Ok(())
    /// # }
    /// ```
    pub fn refunded_if_dropped(self) -> Check<'a> {
        Check { if_dropped: DropPolicy::Refunded, ..self }
    }

    /// Makes this the check or the peek of the first waiter of an acquire.
    pub(crate) fn for_acquire(self) -> Check<'a> {
        Check { if_dropped: DropPolicy::FirstWaiter, ..self }
    }

    /// Decides now, and returns an answer that refunds its charge if it is dropped before it is read.
    fn now_or_refunded(&self) -> Answer<Decision> {
        let decision = match self.now() {
            Ok(decision) if decision.receipt().is_some() => decision,
            other => return Answer::ready(other),
        };
        let (scope, key, at_us) = (self.scope.clone(), self.key.as_bytes().to_vec(), self.at_us);
        Answer::ready_or_else(decision, move |decision| {
            let Some(receipt) = decision.into_receipt() else { return };
            let now_us = at_us.unwrap_or_else(|| scope.limiter().clock().now_us());
            // Cannot fail, because the receipt belongs to this key, and `now` has already succeeded.
            let _ = scope.refund_at_us(&key, now_us, receipt);
        })
    }

    /// Decides without waiting.
    // Always inlined: in the caller, the compiler can usually see that this is a plain check.
    #[inline(always)]
    pub fn now(&self) -> Result<Decision, Error> {
        let scope = self.scope.local()?;
        if let Intent::Peek = self.intent {
            return self.peek_now(scope);
        }
        match &scope.1.limit {
            Limit::FixedWindow(limit) => self.charge(scope, limit),
            Limit::SlidingWindowLog(limit) => self.charge(scope, limit),
            Limit::SlidingWindowCounter(limit) => self.charge(scope, limit),
            Limit::TokenBucket(limit) => self.charge(scope, limit),
            // The mode is known here, so the algorithm need not test it for each decision.
            Limit::LeakyBucket(limit) => match limit.as_token_bucket() {
                Some(mirror) => self.charge(scope, mirror),
                None => self.charge(scope, limit),
            },
            Limit::Concurrency(_) => {
                self.unit_request()?;
                Err(self.scope.must_reserve())
            }
        }
    }

    /// Returns an error if this is a check of a limit whose units are only ever held.
    pub(crate) fn can_charge(&self) -> Result<(), Error> {
        if self.intent == Intent::Peek { Ok(()) } else { self.scope.can_check() }
    }

    #[inline(always)]
    fn charge<A: SlotAlgorithm>(
        &self,
        scope: LocalScope<'_>,
        limit: &A,
    ) -> Result<Decision, Error> {
        let Check { at_us, max_wait_us, .. } = *self;
        let key = self.key.as_bytes();
        match (self.cost, at_us, max_wait_us) {
            (Ok(Cost::ONE), None, None) if key.len() <= MAX_KEY_BYTES => {
                charge_plainly(scope, limit, key)
            }
            _ => charge(scope, limit, key, at_us, self.unit_request()?),
        }
    }

    fn peek_now(&self, (backend, memory_scope): LocalScope<'_>) -> Result<Decision, Error> {
        let now_us = self.at_us.unwrap_or_else(|| backend.clock.now_us());
        let decision =
            backend.memory.peek(memory_scope, self.key.as_bytes(), now_us, self.unit_request()?);
        Ok(Decision::uncharged(decision, DecisionSource::Store))
    }

    fn send(&self, scope: &Arc<RemoteScope>) -> Answer<Decision> {
        let request = match self.unit_request().and_then(|it| self.can_charge().map(|()| it)) {
            Ok(request) => request,
            Err(error) => return Answer::ready(Err(error)),
        };
        match &scope.lease {
            Some(lease) if self.can_be_leased() => self.take_or_send(scope, lease, request),
            _ => self.send_to_store(scope, request, self.call(scope)),
        }
    }

    /// Whether a lease may decide this check. The first waiter of an acquire asks the store, which knows when units come
    /// back.
    fn can_be_leased(&self) -> bool {
        self.intent == Intent::Charge
            && self.at_us.is_none()
            && self.if_dropped != DropPolicy::FirstWaiter
    }

    /// Decides with the lease of the key. If that cannot decide, the store does.
    fn take_or_send(
        &self,
        scope: &Arc<RemoteScope>,
        terms: &LeaseTerms,
        request: UnitRequest,
    ) -> Answer<Decision> {
        let key = self.key.as_bytes();
        let check = LeasedCheck { name: scope.name(), key, terms, cost: request.cost };
        let of_check = || (self.call(scope), self.unread_policy(key));
        match scope.remote.leases.take(check, of_check) {
            Taken::Decided(decision) if self.if_dropped == DropPolicy::Refunded => {
                let (remote, name, key) =
                    (Arc::clone(&scope.remote), Arc::clone(scope.name()), key.to_vec());
                Answer::ready_or_else(decision, move |decision| {
                    remote.leases.give_back_unread(&name, &key, &decision);
                })
            }
            Taken::Decided(decision) => Answer::ready(Ok(decision)),
            Taken::Waits(outcome) => self.after_waiting(scope, request, outcome),
            Taken::Store => self.send_to_store(scope, request, self.call(scope)),
        }
    }

    /// Returns the answer of a check that waits for a request about its key. If that does not decide the check, the store
    /// does, within what is left of the deadline.
    fn after_waiting(
        &self,
        scope: &Arc<RemoteScope>,
        request: UnitRequest,
        outcome: oneshot::Receiver<WaitOutcome>,
    ) -> Answer<Decision> {
        let (scope, handle, call) = (Arc::clone(scope), self.scope.clone(), self.call(scope));
        let (key, if_dropped, began) =
            (self.key.as_bytes().to_vec(), self.if_dropped, Instant::now());
        Answer::pending(async move {
            let answer = match outcome.await {
                Ok(WaitOutcome::Decided(decision)) => decision.read(),
                Ok(WaitOutcome::Failed(error)) => Err(error),
                Ok(WaitOutcome::Store) | Err(_) => {
                    let deadline = call.deadline.saturating_sub(began.elapsed());
                    let check = Check {
                        if_dropped,
                        ..Check::new(&handle, Key::from(key.as_slice()), Intent::Charge)
                    };
                    return check.send_to_store(&scope, request, Call { deadline, ..call }).await;
                }
            };
            scope.remote.decide_instead(answer, &scope.charge(&key, Demand::of(request)), &call)
        })
    }

    /// Returns the time, the deadline and the policy of this check.
    fn call(&self, scope: &RemoteScope) -> Call {
        let terms = scope.terms.bounded(self.within);
        Call {
            at_us: scope.remote.time(self.at_us),
            deadline: terms.deadline,
            on_failure: terms.on_failure,
        }
    }

    fn unread_policy(&self, key: &[u8]) -> UnreadPolicy {
        match (self.intent, self.if_dropped) {
            (Intent::Peek, _) | (_, DropPolicy::Kept) => UnreadPolicy::Keep,
            _ => UnreadPolicy::Refund(self.scope.wake(key)),
        }
    }

    fn send_to_store(
        &self,
        scope: &RemoteScope,
        request: UnitRequest,
        call: Call,
    ) -> Answer<Decision> {
        let key = self.key.as_bytes();
        let demand = Demand { intent: self.intent, ..Demand::of(request) };
        let charge = scope.charge(key, demand);
        let if_unread = self.unread_policy(key);
        let may_be_remembered =
            self.intent == Intent::Charge && self.if_dropped != DropPolicy::FirstWaiter;
        let (remote, again) = (scope.remote.clone(), charge.clone());
        let request = CheckRequest { charge, call, if_unread, may_be_remembered };
        let answer = remote.store.check(request);
        answer.then(move |answer| remote.decide_instead(answer, &again, &call))
    }

    /// Returns the shortest deadline of the callers.
    pub(crate) fn shortest_deadline(checks: &[Check<'_>]) -> Option<Duration> {
        checks.iter().filter_map(|check| check.within).min()
    }

    /// Returns the scope that decides this check.
    pub fn scope(&self) -> &'a Scope {
        self.scope
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// Whether this is a shadow, which refuses nothing.
    pub fn is_shadow(&self) -> bool {
        self.role == Role::Shadow
    }

    pub(crate) fn callers_deadline(&self) -> Option<Duration> {
        self.within
    }

    /// Returns what this check requests of its limit in a check of several limits.
    #[inline(always)]
    pub(crate) fn demand(&self) -> Result<Demand, Error> {
        let Check { role, intent, .. } = *self;
        Ok(Demand { request: self.unit_request()?, role, intent, hold: None })
    }

    #[inline(always)]
    pub(crate) fn unit_request(&self) -> Result<UnitRequest, Error> {
        bounded(self.key.as_bytes())?;
        Ok(UnitRequest { cost: self.cost?, max_wait_us: self.max_wait_us })
    }
}

impl Scope {
    /// Decides one request of `key`, and charges it if it is allowed. The cost is 1 unless
    /// [set](Check::cost). A [key](Key) is text, bytes or an IP address: `check("user:42")`, `check(ip)`. A
    /// key of more than 1 MiB is an error.
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
        Check::new(self, key.into(), Intent::Peek)
    }
}

impl IntoFuture for Check<'_> {
    type Output = Result<Decision, Error>;
    type IntoFuture = Answer<Decision>;

    #[inline]
    fn into_future(self) -> Answer<Decision> {
        match self.scope.backend() {
            ScopeBackend::Memory { .. } if self.if_dropped == DropPolicy::Refunded => {
                self.now_or_refunded()
            }
            ScopeBackend::Memory { .. } => Answer::ready(self.now()),
            ScopeBackend::Remote(scope) => self.send(scope),
        }
    }
}

/// The memory store, and a scope there.
type LocalScope<'s> = (&'s MemoryBackend, &'s memory::MemoryScope);

/// Charges a cost of 1 at the clock's time, with any delay.
// Never inlined: the copy of each algorithm then writes its decision only once, directly into the caller's memory.
#[inline(never)]
fn charge_plainly<A: SlotAlgorithm>(
    (backend, memory_scope): LocalScope<'_>,
    limit: &A,
    key: &[u8],
) -> Result<Decision, Error> {
    Ok(backend.memory.check_one(memory_scope, limit, key, &backend.clock))
}

#[inline(never)]
fn charge<A: SlotAlgorithm>(
    (backend, memory_scope): LocalScope<'_>,
    limit: &A,
    key: &[u8],
    at_us: Option<u64>,
    request: UnitRequest,
) -> Result<Decision, Error> {
    let memory = &backend.memory;
    let place = memory.place(memory_scope, key);
    let now_us = at_us.unwrap_or_else(|| backend.clock.now_us());
    let checked = match memory.check_known(memory_scope, limit, place, now_us, request) {
        Some(checked) => checked,
        None => memory.check_any(memory_scope, limit, key, now_us, request),
    };
    Ok(Decision::of_key(checked, place.fingerprint()))
}
