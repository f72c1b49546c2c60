//! A reservation of one limit, before it is decided and after.

use std::future::IntoFuture;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate_core::{
    Cost, CostError, HoldError, HoldId, HoldReference, HoldTime, Reservation, ReserveAnswer, Role,
};

use crate::answer::Answer;
use crate::decision::{Decision, DecisionSource};
use crate::error::Error;
use crate::failure::OnFailure;
use crate::hold::{Hold, HoldSource};
use crate::joint::{Demand, JointDecision};
use crate::key::Key;
use crate::limiter::RemoteBackend;
use crate::scope::{RemoteScope, Scope, ScopeBackend, bounded};
use crate::store::{Call, Charge, JointRequest};

/// How long units are held by default. A concurrency limit has a time of its own.
pub const DEFAULT_HOLD_FOR: Duration = Duration::from_secs(60);

/// A reservation that has not been decided yet: await it, or decide it [`now`](HoldRequest::now).
///
/// Awaiting it, or calling `into_future`, sends it before the first poll. If the future is dropped before it returns the
/// hold, the Redis store releases the units when the reply comes. Other stores leave them held until the hold expires, except
/// under a concurrency limit, where they are [released](Hold#dropped-holds).
#[derive(Clone, Debug)]
#[must_use = "nothing is reserved until this is awaited, or `now` is called"]
pub struct HoldRequest<'a> {
    scope: &'a Scope,
    key: Key<'a>,
    at_us: Option<u64>,
    cost: Result<Cost, CostError>,
    hold_for: Result<HoldTime, HoldError>,
    within: Option<Duration>,
    role: Role,
}

impl Scope {
    /// Returns how long units are held unless the reservation says otherwise: the limit's own time for a concurrency
    /// limit, and 60 s for any other.
    pub fn hold_for(&self) -> Duration {
        let own = self.limit().hold_for();
        own.map_or(DEFAULT_HOLD_FOR, |time| Duration::from_micros(time.as_us()))
    }

    /// Sets units of `key` aside, if a check of them would be allowed. The cost is 1 unless [set](HoldRequest::cost), and
    /// the units are held for 60 s unless [set](HoldRequest::hold_for); under a concurrency limit for the limit's own time.
    ///
    /// For costs that are known only afterwards, such as the tokens of an LLM call: reserve an estimate, make the call,
    /// and [settle](Hold::settle) what it used. Held units count as spent, so that calls at the same time do not exceed
    /// the limit together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("llm", "token-bucket capacity=10000 refill=10000/m")?;
    /// let reserved = tokens.reserve("team:7").cost(4_000).hold_for(Duration::from_secs(120)).now()?;
    /// # let before = reserved.decision().remaining();
    /// # assert_eq!(before, 6_000);
    /// let Some(hold) = reserved.into_hold() else {
    ///     return Ok(()); // refused: `retry_after()` says when to try again
    /// };
    /// // The call is made, and used 1,250 tokens. The other 2,750 are free at once.
    /// let settled = hold.settle_now(1_250)?;
    /// assert_eq!(settled.charged_units(), 1_250);
    /// # assert!(tokens.peek("team:7").now()?.remaining() >= 8_750);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A key has at most 1,024 holds at a time. A [shaping](Scope::is_shaping) limit cannot have holds: an error. If a
    /// store across the network fails, [`OnFailure`](crate::OnFailure) decides as for a check: `open` admits the
    /// reservation and holds nothing, `local` holds the units on this process's share of the limit, `closed` is an
    /// error ([`Hold::is_degraded`]).
    pub fn reserve<'a>(&'a self, key: impl Into<Key<'a>>) -> HoldRequest<'a> {
        HoldRequest {
            scope: self,
            key: key.into(),
            at_us: None,
            cost: Ok(Cost::ONE),
            hold_for: self.hold_for().try_into(),
            within: None,
            role: Role::Enforced,
        }
    }
}

impl<'a> HoldRequest<'a> {
    /// Sets the units to set aside, 1 by default. At least 1, below 2^53.
    pub fn cost(self, units: u64) -> HoldRequest<'a> {
        HoldRequest { cost: Cost::new(units), ..self }
    }

    /// Sets how long the units are held unless the hold is settled or [extended](Hold::extend) before: 1 us to 366 days.
    /// The default is 60 s; under a concurrency limit it is the limit's own time.
    pub fn hold_for(self, time: Duration) -> HoldRequest<'a> {
        HoldRequest { hold_for: HoldTime::try_from(time), ..self }
    }

    /// Decides at this time, in microseconds since the Unix epoch, instead of the clock's. [`Hold::at_us`] does the same
    /// for the operations on the hold.
    pub fn at_us(self, now_us: u64) -> HoldRequest<'a> {
        HoldRequest { at_us: Some(now_us), ..self }
    }

    /// Sets the caller's own deadline, as [`Check::within`](crate::Check::within) does.
    pub fn within(self, time: Duration) -> HoldRequest<'a> {
        HoldRequest { within: Some(time), ..self }
    }

    /// Makes this limit a shadow in a [reservation of several limits](crate::Limiter::reserve_all): its own decision is
    /// returned, and its units are held if they fit, but it refuses nothing.
    pub fn shadow(self) -> HoldRequest<'a> {
        HoldRequest { role: Role::Shadow, ..self }
    }

    /// Decides without waiting.
    pub fn now(&self) -> Result<HoldDecision, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let (key, reservation) = (self.bounded_key()?, self.reservation()?);
        let now_us = self.at_us.unwrap_or_else(|| backend.clock.now_us());
        let ReserveAnswer { decision, hold } =
            backend.memory.reserve(memory_scope, key, now_us, reservation)?;
        let decision = Decision::uncharged(decision, DecisionSource::Store);
        let hold = hold.map(|reference| Hold::new(self.scope.clone(), key, reference));
        Ok(HoldDecision { decision, hold })
    }

    fn send(&self, scope: &RemoteScope) -> Answer<HoldDecision> {
        let (key, demand) = match (self.bounded_key(), self.demand()) {
            (Ok(key), Ok(demand)) => (key, demand),
            (Err(error), _) | (_, Err(error)) => return Answer::ready(Err(error)),
        };
        if !scope.remote.store.has_holds() {
            return Answer::ready(Err(Error::HoldsUnsupported));
        }
        let terms = scope.terms.bounded(self.within);
        let at_us = scope.remote.time(self.at_us);
        let call = Call { at_us, deadline: terms.deadline, on_failure: terms.on_failure };
        let request = JointRequest { charges: vec![scope.charge(key, demand)], call };
        let (remote, again) = (Arc::clone(&scope.remote), request.clone());
        let answer = scope.remote.store.check_all(request);
        let mut pending = pending_holds(&[self.scope], &again);
        answer.then(move |answer| {
            let joint = decided_instead(&remote, answer, &again, &mut pending)?;
            let hold = pending.pop().flatten();
            let hold = hold.and_then(|pending| decided_hold(pending, &joint, 0, &again));
            // OK because a store returns one decision for each charge.
            let decision = joint.into_each().pop().ok_or(Error::AnswerTaken)?;
            Ok(HoldDecision { decision, hold })
        })
    }

    fn bounded_key(&self) -> Result<&[u8], Error> {
        bounded(self.key.as_bytes())
    }

    fn reservation(&self) -> Result<Reservation, Error> {
        self.scope.limit().can_hold()?;
        Ok(Reservation { id: next_id(), cost: self.cost?, hold_for: self.hold_for? })
    }

    /// Returns what this reservation requests of its limit.
    pub(crate) fn demand(&self) -> Result<Demand, Error> {
        Ok(Demand { role: self.role, ..Demand::of_reservation(self.reservation()?) })
    }

    /// Does the same as [`demand`](Self::demand), with an error for a key that is too long.
    pub(crate) fn bounded_demand(&self) -> Result<Demand, Error> {
        self.bounded_key()?;
        self.demand()
    }

    /// Returns the scope that decides this reservation.
    pub fn scope(&self) -> &'a Scope {
        self.scope
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    pub(crate) fn given_at_us(&self) -> Option<u64> {
        self.at_us
    }

    pub(crate) fn callers_deadline(&self) -> Option<Duration> {
        self.within
    }
}

/// Returns a hold for each charge of a reservation that sets units aside, before the store has answered. `scopes` has the
/// scope of each charge.
pub(crate) fn pending_holds(scopes: &[&Scope], request: &JointRequest) -> Vec<Option<Hold>> {
    let pending = |(scope, charge): (&&Scope, &Charge)| {
        let reservation = charge.demand().reservation()?;
        Some(Hold::pending((*scope).clone(), charge.key(), reservation.id))
    };
    scopes.iter().zip(&request.charges).map(pending).collect()
}

/// Applies the failure policy, if the store failed. If the store cannot have made the reservation, nothing is released.
pub(crate) fn decided_instead(
    remote: &RemoteBackend,
    answer: Result<JointDecision, Error>,
    request: &JointRequest,
    pending: &mut [Option<Hold>],
) -> Result<JointDecision, Error> {
    if let Err(error) = &answer
        && !matches!(error, Error::Store(error) if error.may_have_charged())
    {
        for hold in pending.iter_mut().filter_map(Option::as_mut) {
            hold.keep_open();
        }
    }
    remote.decide_all_instead(answer, request)
}

/// Returns the hold of the charge at this index, if its units were set aside: on the store, or by the failure policy.
pub(crate) fn decided_hold(
    pending: Hold,
    joint: &JointDecision,
    index: usize,
    JointRequest { charges, call }: &JointRequest,
) -> Option<Hold> {
    let (decision, charge) = (joint.each().get(index)?, charges.get(index)?);
    let scope = pending.scope();
    match (joint.hold(index), decision.is_degraded()) {
        (Some(reference), false) => Some(pending.granted(reference.expires_us)),
        (Some(reference), true) => {
            let OnFailure::Local { processes } = call.on_failure else { return None };
            let processes = scope.share_processes(processes)?;
            let share = scope.share(processes)?;
            Some(pending.elsewhere(share, reference, HoldSource::Share { processes }))
        }
        (None, true) if joint.is_allowed() && decision.is_allowed() => {
            let reservation = charge.demand().reservation()?;
            let now_us = call.at_us.unwrap_or_else(|| scope.limiter().clock().now_us());
            let expires_us = now_us.saturating_add(reservation.hold_for.as_us());
            let reference = HoldReference { id: reservation.id, expires_us };
            Some(pending.elsewhere(scope.clone(), reference, HoldSource::Nowhere))
        }
        (None, true) => None,
        (None, false) => {
            pending.leave();
            None
        }
    }
}

impl IntoFuture for HoldRequest<'_> {
    type Output = Result<HoldDecision, Error>;
    type IntoFuture = Answer<HoldDecision>;

    fn into_future(self) -> Answer<HoldDecision> {
        match self.scope.backend() {
            ScopeBackend::Memory { .. } => Answer::ready(self.now()),
            ScopeBackend::Remote(scope) => self.send(scope),
        }
    }
}

/// Returns an id that no other hold has: the sum of a count and a random number that is drawn once in each process.
fn next_id() -> HoldId {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let start = START.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    HoldId::of_hold(start.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// The answer to a reservation: the decision, and the hold if it was admitted.
#[derive(Debug)]
#[must_use = "the reservation may have been refused: branch on `into_hold()`"]
pub struct HoldDecision {
    decision: Decision,
    hold: Option<Hold>,
}

impl HoldDecision {
    /// Whether the reservation was admitted.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns how long a refused reservation must wait, exactly, provided that the holds of the key are left to
    /// expire; `None` for a reservation that was admitted, and for a cost above the limit. If a memory store at its
    /// ceiling has no memory for the hold, this is the time until a hold expires, or 1 s if the expiry of no hold
    /// would free memory.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    /// Returns the decision. It has no receipt: a settlement returns the receipt of what it charged.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the hold; `None` for a refused reservation.
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Takes the decision and the hold.
    pub fn into_parts(self) -> (Decision, Option<Hold>) {
        (self.decision, self.hold)
    }

    /// Takes the hold; `None` for a refused reservation.
    pub fn into_hold(self) -> Option<Hold> {
        self.hold
    }
}
