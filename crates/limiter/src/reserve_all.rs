//! A reservation of several limits: the units of all of them are set aside or charged, or of none.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Intent, Role};

use crate::answer::Answer;
use crate::check::Check;
use crate::check_all::{CallerPart, CallerParts, empty_decision};
use crate::error::Error;
use crate::failure::StoreTerms;
use crate::hold::Hold;
use crate::hold_request::{HoldRequest, decided_hold, decided_instead, pending_holds};
use crate::joint::{Demand, JointDecision};
use crate::joint_hold::JointHold;
use crate::limiter::{Backend, Limiter, RemoteBackend};
use crate::scope::{Scope, ScopeBackend};
use crate::store::memory::JointPart;
use crate::store::{Call, Charge, JointRequest};

/// One limit's part in a [reservation of several limits](Limiter::reserve_all): made from a [`HoldRequest`], whose units
/// are set aside, or from a [`Check`], which is charged at once or is a peek.
#[derive(Clone, Debug)]
pub struct ReservationPart<'a>(PartKind<'a>);

#[derive(Clone, Debug)]
enum PartKind<'a> {
    Hold(HoldRequest<'a>),
    Check(Check<'a>),
}

impl<'a> From<HoldRequest<'a>> for ReservationPart<'a> {
    fn from(hold: HoldRequest<'a>) -> ReservationPart<'a> {
        ReservationPart(PartKind::Hold(hold))
    }
}

impl<'a> From<Check<'a>> for ReservationPart<'a> {
    fn from(check: Check<'a>) -> ReservationPart<'a> {
        ReservationPart(PartKind::Check(check))
    }
}

impl ReservationPart<'_> {
    fn scope(&self) -> &Scope {
        match &self.0 {
            PartKind::Hold(hold) => hold.scope(),
            PartKind::Check(check) => check.scope(),
        }
    }

    fn key(&self) -> &[u8] {
        match &self.0 {
            PartKind::Hold(hold) => hold.key(),
            PartKind::Check(check) => check.key(),
        }
    }

    fn demand(&self) -> Result<Demand, Error> {
        match &self.0 {
            PartKind::Hold(hold) => hold.bounded_demand(),
            PartKind::Check(check) => check.can_charge().and_then(|()| check.demand()),
        }
    }

    fn role(&self) -> Role {
        match &self.0 {
            PartKind::Hold(hold) => hold.role(),
            PartKind::Check(check) => check.role,
        }
    }

    fn at_us(&self) -> Option<u64> {
        match &self.0 {
            PartKind::Hold(hold) => hold.given_at_us(),
            PartKind::Check(check) => check.at_us,
        }
    }

    fn within(&self) -> Option<Duration> {
        match &self.0 {
            PartKind::Hold(hold) => hold.callers_deadline(),
            PartKind::Check(check) => check.callers_deadline(),
        }
    }
}

impl Limiter {
    /// Decides one request on several limits, and sets the units of some of them aside: all limits admit the request, or
    /// nothing is charged or held. A part is a [reservation](Scope::reserve), a [check](Scope::check), which is charged at
    /// once, or a [peek](Scope::peek).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("tokens", "token-bucket capacity=10000 refill=10000/m")?;
    /// let requests = limiter.scope("requests", "fixed-window limit=60 window=1m")?;
    /// let reserved = limiter.reserve_all_now(&[
    ///     tokens.reserve("team:7").cost(4_000).hold_for(Duration::from_secs(120)).into(),
    ///     requests.check("team:7").into(),
    /// ])?;
    /// let Some(hold) = reserved.into_hold() else {
    ///     return Ok(()); // refused: `retry_after()` says when to try again
    /// };
    /// hold.settle_now(|_| 1_250)?; // of the tokens; the request was charged at once
    /// # assert_eq!(requests.peek("team:7").now()?.remaining(), 59);
    /// # assert!(tokens.peek("team:7").now()?.remaining() >= 8_750);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Parts with the same name and key become one part, as in [`check_all`](Self::check_all). If one of them is a
    /// reservation, the units of all are held, for the longest of their times. A settlement of `used` units then
    /// charges `used` plus the units of the checks among these parts, and a release charges the units of these checks.
    ///
    /// If a store across the network fails, the strictest [`OnFailure`](crate::OnFailure) of the enforced limits decides,
    /// as for a single [reservation](Scope::reserve).
    pub fn reserve_all(&self, parts: &[ReservationPart<'_>]) -> Answer<JointHoldDecision> {
        let Backend::Remote(remote) = self.backend() else {
            return Answer::ready(self.reserve_all_now(parts));
        };
        let merged = match MergedReservation::of(self, parts) {
            Ok(merged) => merged,
            Err(error) => return Answer::ready(Err(error)),
        };
        let request = match merged.request(remote, parts) {
            Ok(Some(request)) => request,
            Ok(None) => return Answer::ready(Ok(JointHoldDecision::admitted_without_parts())),
            Err(error) => return Answer::ready(Err(error)),
        };
        let (remote, again) = (Arc::clone(remote), request.clone());
        let scopes: Vec<&Scope> = merged.parts.iter().map(|part| part.scope).collect();
        let mut pending = pending_holds(&scopes, &request);
        for (hold, part) in pending.iter_mut().zip(&merged.parts) {
            *hold = hold.take().map(|hold| hold.with_checked(part.checked_units));
        }
        let callers = merged.callers;
        let answer = remote.store.check_all(request);
        answer.then(move |answer| {
            let joint = decided_instead(&remote, answer, &again, &mut pending)?;
            let decided = |(index, pending): (usize, Option<Hold>)| {
                decided_hold(pending?, &joint, index, &again)
            };
            let holds = pending.into_iter().enumerate().map(decided).collect();
            JointHoldDecision::new(joint, holds, &callers)
        })
    }

    /// [`reserve_all`](Self::reserve_all), in memory.
    pub fn reserve_all_now(
        &self,
        parts: &[ReservationPart<'_>],
    ) -> Result<JointHoldDecision, Error> {
        let Backend::Memory(backend) = self.backend() else { return Err(Error::MustWait) };
        let merged = MergedReservation::of(self, parts)?;
        let now_us = time(parts).unwrap_or_else(|| backend.clock.now_us());
        let mut each = Vec::with_capacity(merged.parts.len());
        let memory_parts =
            merged.parts.iter().map(MergedPart::in_memory).collect::<Result<Vec<_>, _>>()?;
        let answer = backend.memory.reserve_all(&memory_parts, now_us, &mut each);
        let hold = |(index, part): (usize, &MergedPart<'_>)| {
            let reference = answer.holds.get(index).copied().flatten()?;
            let hold = Hold::new(part.scope.clone(), part.key, reference);
            Some(hold.with_checked(part.checked_units))
        };
        let holds = merged.parts.iter().enumerate().map(hold).collect();
        let joint = JointDecision::new(answer.combined, each);
        JointHoldDecision::new(joint, holds, &merged.callers)
    }
}

/// Returns the time at which a reservation is decided: that of the first part that sets a time.
fn time(parts: &[ReservationPart<'_>]) -> Option<u64> {
    parts.iter().find_map(ReservationPart::at_us)
}

/// The parts of a reservation. Parts of one key are merged into one.
struct MergedReservation<'a> {
    parts: Vec<MergedPart<'a>>,
    callers: CallerParts,
}

/// The parts of one key under one name.
struct MergedPart<'a> {
    scope: &'a Scope,
    key: &'a [u8],
    demand: Demand,
    /// The units of checks that were merged with a reservation.
    checked_units: u64,
}

impl<'a> MergedReservation<'a> {
    fn of(
        limiter: &Limiter,
        parts: &'a [ReservationPart<'a>],
    ) -> Result<MergedReservation<'a>, Error> {
        let mut merged: Vec<MergedPart<'a>> = Vec::with_capacity(parts.len());
        let mut callers = Vec::with_capacity(parts.len());
        let demands = parts.iter().map(ReservationPart::demand).collect::<Result<Vec<_>, _>>()?;
        for (part, &demand) in parts.iter().zip(&demands) {
            let (scope, key) = (part.scope(), part.key());
            if !scope.limiter().is_same(limiter) {
                return Err(Error::DifferentLimiters);
            }
            let number = scope.registered_name().number();
            let same = merged.iter().position(|other: &MergedPart<'_>| {
                other.scope.registered_name().number() == number && other.key == key
            });
            let charge = same.unwrap_or(merged.len());
            callers.push(CallerPart { charge, intent: demand.intent });
            match same {
                Some(same) => merged[same].add(scope, demand),
                None => merged.push(MergedPart { scope, key, demand, checked_units: 0 }),
            }
        }
        for (demand, caller) in demands.iter().zip(&callers) {
            merged[caller.charge].note_checked(demand);
        }
        Ok(MergedReservation { parts: merged, callers: CallerParts(callers) })
    }

    /// Returns the request to a store across the network; `None` without parts.
    fn request(
        &self,
        remote: &RemoteBackend,
        parts: &[ReservationPart<'_>],
    ) -> Result<Option<JointRequest>, Error> {
        let most = remote.store.max_charges();
        if parts.len() > most {
            return Err(Error::TooManyCharges { count: parts.len(), most });
        }
        let holds = self.parts.iter().any(|part| part.demand.hold.is_some());
        if holds && !remote.store.has_holds() {
            return Err(Error::HoldsUnsupported);
        }
        let mut charges: Vec<Charge> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let ScopeBackend::Remote(scope) = part.scope.backend() else {
                return Err(Error::DifferentLimiters);
            };
            charges.push(scope.charge(part.key, part.demand));
        }
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts {
            if let ScopeBackend::Remote(scope) = part.scope().backend() {
                terms.push((part.role(), scope.terms));
            }
        }
        let Some(terms) = StoreTerms::of_all(&terms) else { return Ok(None) };
        let within = parts.iter().filter_map(ReservationPart::within).min();
        let terms = terms.bounded(within);
        let at_us = remote.time(time(parts));
        let call = Call { at_us, deadline: terms.deadline, on_failure: terms.on_failure };
        Ok(Some(JointRequest { charges, call }))
    }
}

impl<'a> MergedPart<'a> {
    fn in_memory(&self) -> Result<JointPart<'a>, Error> {
        let (_, scope) = self.scope.local()?;
        Ok(JointPart { scope, key: self.key, demand: self.demand })
    }

    /// Merges another part of the same key into this one.
    fn add(&mut self, scope: &'a Scope, demand: Demand) {
        if demand.outranks(&self.demand) {
            self.scope = scope;
        }
        self.demand = self.demand.merged(demand);
    }

    /// Notes the units of a check that was merged with a reservation: each settlement adds them to the used units.
    fn note_checked(&mut self, own: &Demand) {
        let is_replaced = self.demand.outranks(own);
        let is_check = own.hold.is_none() && own.intent == Intent::Charge;
        if self.demand.hold.is_some() && is_check && !is_replaced {
            self.checked_units = self.checked_units.saturating_add(own.request.cost.units());
        }
    }
}

/// The answer to a reservation of several limits: the decision, and the hold if it was admitted.
#[derive(Debug)]
#[must_use = "the reservation may have been refused: branch on `into_hold()`"]
pub struct JointHoldDecision {
    joint: JointDecision,
    hold: Option<JointHold>,
}

impl JointHoldDecision {
    /// `holds` has one entry for each merged part.
    fn new(
        joint: JointDecision,
        holds: Vec<Option<Hold>>,
        callers: &CallerParts,
    ) -> Result<JointHoldDecision, Error> {
        let joint = callers.answer(joint)?;
        if !joint.is_allowed() {
            return Ok(JointHoldDecision { joint, hold: None });
        }
        let mut index_of = Vec::with_capacity(holds.len());
        let mut held = Vec::with_capacity(holds.len());
        for hold in holds {
            index_of.push(hold.is_some().then_some(held.len()));
            held.extend(hold);
        }
        let of_part = |part: &CallerPart| match part.intent {
            Intent::Charge => index_of.get(part.charge).copied().flatten(),
            Intent::Peek => None,
        };
        let of_parts = callers.0.iter().map(of_part).collect();
        Ok(JointHoldDecision { joint, hold: Some(JointHold::new(held, of_parts)) })
    }

    fn admitted_without_parts() -> JointHoldDecision {
        JointHoldDecision { joint: empty_decision(), hold: Some(JointHold::default()) }
    }

    /// Whether every enforced limit admits the request.
    pub fn is_allowed(&self) -> bool {
        self.joint.is_allowed()
    }

    /// Returns how long a refused reservation must wait, exactly, provided that open holds are left to expire; `None` for
    /// a reservation that was admitted, and for one that can never be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.joint.retry_after()
    }

    /// Returns the decision. Only parts that were charged at once have receipts.
    pub fn decision(&self) -> &JointDecision {
        &self.joint
    }

    /// Returns the hold; `None` for a refused reservation. It is [empty](JointHold::is_empty) if no part of an admitted
    /// reservation set units aside.
    pub fn hold(&self) -> Option<&JointHold> {
        self.hold.as_ref()
    }

    /// Takes the hold; `None` for a refused reservation.
    pub fn into_hold(self) -> Option<JointHold> {
        self.hold
    }

    /// Takes the decision, with the receipts, and the hold.
    pub fn into_parts(self) -> (JointDecision, Option<JointHold>) {
        (self.joint, self.hold)
    }
}
