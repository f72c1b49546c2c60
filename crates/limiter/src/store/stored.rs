//! Decisions on states that a store has read, for stores that do not run the algorithms next to the states.

use tollgate_core::{
    self as core, CarryOver, ChargeReceipt, CheckResult, Cost, EndedHold, ExtendAnswer, HoldError,
    HoldGrowth, HoldReference, HoldUse, Holds, Intent, LeaseAnswer, LeaseRequest, LeaseState,
    Limit, MAX_STEP_BACK_US, Reservation, ReserveAnswer, Retry, SettleAnswer, State, UnitRequest,
    Verdict, check_all,
};

use super::{Charge, ExtendPart, KeyState};
use crate::decision::{Decision, DecisionSource};
use crate::joint::{Demand, HoldTerms, JointDecision};

/// The state of a key, as a store keeps it under the name and the key of a [`Charge`].
#[derive(Clone, Debug, PartialEq)]
pub struct StoredState {
    /// The limit that the state is under. This is not always the limit of the last charge: a key
    /// that has spent more than a new limit allows stays under the old limit for a while.
    pub limit: Limit,
    /// The state.
    pub state: State,
    /// The holds of the key. Most keys have none.
    pub holds: Holds,
}

impl StoredState {
    /// Gives back the part of a charge that still counts, and returns how many units that frees.
    pub fn refund(&mut self, now_us: u64, receipt: ChargeReceipt) -> u64 {
        self.limit.refund_beside(&mut self.state, &mut self.holds, now_us, receipt)
    }

    /// Returns when the state, written at `now_us`, can be forgotten: the time from which nothing is spent or held any
    /// more, even if the clock steps back by up to 10 s.
    ///
    /// A window of a minute that was charged in its first second is kept for the other 59, and 10 s more.
    pub fn expires_at_us(&self, now_us: u64) -> u64 {
        let one = UnitRequest::new(Cost::ONE);
        let decision = self.limit.peek_beside(&self.state, &self.holds, now_us, one);
        now_us.saturating_add(decision.reset_after_us).saturating_add(MAX_STEP_BACK_US)
    }
}

impl Charge {
    /// Decides this charge on the state of its key; `None` is a key without state. Changes the state to what
    /// must be written back; `None` removes the key. A peek does not change it.
    pub fn decide(&self, stored: &mut Option<StoredState>, now_us: u64) -> Decision {
        if self.demand().intent == Intent::Peek {
            return Decision::uncharged(self.peek(stored.as_ref(), now_us), DecisionSource::Store);
        }
        let mut carried = self.carry_over(stored.take(), now_us);
        let request = self.demand().request;
        let CarriedState { decides, state, holds, .. } = &mut carried;
        let CheckResult { decision, receipt } = decides.check_beside(state, holds, now_us, request);
        let decision = carried.decides.in_place_of(self.limit(), decision);
        *stored = carried.stored();
        Decision::of_key(CheckResult { decision, receipt }, self.fingerprint())
    }

    /// Decides the charges of one request on the states of their keys, in the same order: all are made, or
    /// none is. Changes the states to what must be written back, in one step.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_core::{UnitRequest, Cost};
    /// use tollgate_limiter::store::{Charge, Demand, Name};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let charge = |name: &str, limit: &str, units| -> Result<Charge, Box<dyn std::error::Error>> {
    ///     let demand = Demand::of(UnitRequest::new(Cost::new(units)?));
    ///     Ok(Charge::new(Arc::new(Name::new(name, name.as_bytes())), b"user:42", limit.parse()?, demand))
    /// };
    /// let small = charge("small", "fixed-window limit=3 window=1m", 2)?;
    /// let large = charge("large", "fixed-window limit=9 window=1m", 2)?;
    /// let mut states = [None, None]; // as the store has read them
    /// let first = Charge::decide_all(&[small.clone(), large.clone()], &mut states, 0);
    /// assert!(first.is_allowed());
    /// let second = Charge::decide_all(&[small, large], &mut states, 0);
    /// assert_eq!(second.refused_by(), Some(0));
    /// assert_eq!(second.each()[1].remaining(), 7); // the refused request was not charged to `large`
    /// # Ok(())
    /// # }
    /// ```
    pub fn decide_all(
        charges: &[Charge],
        stored: &mut [Option<StoredState>],
        now_us: u64,
    ) -> JointDecision {
        let mut carried: Vec<CarriedState> = charges
            .iter()
            .zip(&mut *stored)
            .map(|(charge, stored)| match charge.demand().intent {
                Intent::Charge => charge.carry_over(stored.take(), now_us),
                Intent::Peek => charge.carry_over(stored.clone(), now_us),
            })
            .collect();
        let mut parts: Vec<core::LimitCheck<'_>> = charges
            .iter()
            .zip(&mut carried)
            .map(|(charge, CarriedState { decides, state, holds, .. })| {
                limit_check(decides, state, holds, charge.demand())
            })
            .collect();
        let together = check_all(&mut parts, now_us);
        let held: Vec<_> = parts.iter().map(core::LimitCheck::hold).collect();
        let checked: Vec<CheckResult> = parts
            .into_iter()
            .filter_map(|mut part| {
                let receipt = part.take_receipt();
                part.decision().map(|&decision| CheckResult { decision, receipt })
            })
            .collect();
        let each = charges.iter().zip(&carried).zip(checked);
        let each = each.map(|((charge, CarriedState { decides, .. }), checked)| {
            let decision = decides.in_place_of(charge.limit(), checked.decision);
            Decision::of_key(CheckResult { decision, ..checked }, charge.fingerprint())
        });
        let each = each.collect();
        for ((charge, stored), carried) in charges.iter().zip(stored).zip(carried) {
            if charge.demand().intent == Intent::Charge {
                *stored = carried.stored();
            }
        }
        let joint = JointDecision::new(together, each);
        match held.iter().any(Option::is_some) {
            true => joint.with_holds(held),
            false => joint,
        }
    }

    /// Returns a copy of the state of the key, under the limit that decides on it: the answer to
    /// [`RemoteStore::state`](super::RemoteStore::state).
    pub fn key_state(&self, stored: Option<&StoredState>, now_us: u64) -> KeyState {
        let CarriedState { decides, state, holds, .. } = self.carry_over(stored.cloned(), now_us);
        KeyState { limit: decides, state, holds, now_us }
    }

    /// Charges what was used of a hold, under the limit that the key is under now. Changes the state to what must be
    /// written back.
    pub fn settle(
        &self,
        stored: &mut Option<StoredState>,
        now_us: u64,
        hold: HoldReference,
        used: HoldUse,
    ) -> SettleAnswer {
        match stored {
            Some(StoredState { limit, state, holds }) => {
                let answer = limit.settle_hold(state, holds, now_us, hold, used);
                if holds.is_empty() && *state == limit.fresh() {
                    *stored = None;
                }
                answer
            }
            None => {
                let (mut state, mut holds) = (self.limit().fresh(), Holds::default());
                self.limit().settle_hold(&mut state, &mut holds, now_us, hold, used)
            }
        }
    }

    /// Adds units to a hold if they fit, and moves its expiry. Additional units are decided as a check is: the state
    /// is first carried over to the limit of this charge, unless the hold is no longer listed. Changes the state to
    /// what must be written back.
    pub fn extend(
        &self,
        stored: &mut Option<StoredState>,
        now_us: u64,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        let mut carried = match (stored.take(), growth.more) {
            (Some(stored), Some(more)) if stored.holds.contains(hold.id) => {
                self.carry_over_for(Some(stored), now_us, more)
            }
            (Some(StoredState { limit, state, holds }), _) => {
                CarriedState { under: limit, decides: limit, state, holds }
            }
            (None, more) => self.carry_over_for(None, now_us, more.unwrap_or(Cost::ONE)),
        };
        let CarriedState { decides, state, holds, .. } = &mut carried;
        let answer = decides.extend_hold(state, holds, now_us, hold, growth);
        *stored = carried.stored();
        answer
    }

    /// Opens or renews a lease, and decides the check that waits. As for a check, the state is first carried over to the
    /// limit of this charge. A key that stays under an old limit without leases gets none. Changes the state to what must
    /// be written back.
    pub fn lease(
        &self,
        stored: &mut Option<StoredState>,
        now_us: u64,
        request: LeaseRequest,
    ) -> LeaseAnswer {
        let mut carried = self.carry_over(stored.take(), now_us);
        let CarriedState { decides, state, holds, .. } = &mut carried;
        let answer = decides.lease(state, holds, now_us, request);
        let answer =
            answer.unwrap_or_else(|_| lease_nothing(decides, state, holds, now_us, request));
        let decision = carried.decides.in_place_of(self.limit(), answer.decision);
        *stored = carried.stored();
        LeaseAnswer { decision, ..answer }
    }

    /// Extends holds on the states of their keys, in the same order: all are extended, or none is. Changes the states to
    /// what must be written back, in one step.
    pub fn extend_all(
        parts: &[ExtendPart],
        stored: &mut [Option<StoredState>],
        now_us: u64,
    ) -> Vec<ExtendAnswer> {
        let before = stored.to_vec();
        let extend = |(part, stored): (&ExtendPart, &mut Option<StoredState>)| {
            part.charge.extend(stored, now_us, part.hold, part.growth)
        };
        let mut answers: Vec<ExtendAnswer> = parts.iter().zip(&mut *stored).map(extend).collect();
        if answers.iter().all(ExtendAnswer::is_granted) {
            return answers;
        }
        let all = answers.iter_mut().zip(parts).zip(stored.iter_mut().zip(before));
        for ((answer, part), (stored, before)) in all.filter(|((it, _), _)| it.is_granted()) {
            *stored = before;
            let peeked = part.charge.peek(stored.as_ref(), now_us);
            *answer = ExtendAnswer::refused_for_another(peeked);
        }
        answers
    }

    fn peek(&self, stored: Option<&StoredState>, now_us: u64) -> core::LimitDecision {
        let request = self.demand().request;
        match stored {
            Some(StoredState { limit, state, holds }) if limit == self.limit() => {
                limit.peek_beside(state, holds, now_us, request)
            }
            other => {
                let CarriedState { decides, state, holds, .. } =
                    self.carry_over(other.cloned(), now_us);
                let decision = decides.peek_beside(&state, &holds, now_us, request);
                decides.in_place_of(self.limit(), decision)
            }
        }
    }

    /// Carries the state of the key over to the limit of this charge, if possible.
    fn carry_over(&self, stored: Option<StoredState>, now_us: u64) -> CarriedState {
        self.carry_over_for(stored, now_us, self.demand().request.cost)
    }

    /// Does the same for a request with another cost than this charge has.
    fn carry_over_for(&self, stored: Option<StoredState>, now_us: u64, cost: Cost) -> CarriedState {
        let requested = *self.limit();
        let Some(StoredState { limit: old, state, mut holds }) = stored else {
            let (state, holds) = (requested.fresh(), Holds::default());
            return CarriedState { under: requested, decides: requested, state, holds };
        };
        if old == requested {
            return CarriedState { under: old, decides: old, state, holds };
        }
        match requested.carry_over_beside(&old, state, &mut holds, now_us, cost) {
            CarryOver::Done(state) => {
                CarriedState { under: requested, decides: requested, state, holds }
            }
            CarryOver::Stays { decides, state } => {
                CarriedState { under: old, decides, state, holds }
            }
        }
    }
}

/// Returns the part that a demand has in a check of several limits.
pub(super) fn limit_check<'a>(
    decides: &'a Limit,
    state: &'a mut State,
    holds: &'a mut Holds,
    &Demand { request, role, intent, hold }: &Demand,
) -> core::LimitCheck<'a> {
    let check = core::LimitCheck::enforced(decides, state, request).beside(holds);
    let check = check.with(role, intent);
    match hold {
        Some(HoldTerms { id, hold_for }) => check.held_as(id, hold_for),
        None => check,
    }
}

/// Decides a reservation, and sets the units aside if it is admitted. A key may still be under an old shaping limit,
/// which cannot have holds but can refuse.
pub(super) fn reserve(
    decides: &Limit,
    state: &mut State,
    holds: &mut Holds,
    now_us: u64,
    reservation: Reservation,
) -> Result<ReserveAnswer, HoldError> {
    match decides.reserve(state, holds, now_us, reservation) {
        Err(error) => match decides.peek(state, now_us, UnitRequest::new(reservation.cost)) {
            decision if decision.is_allowed() => Err(error),
            decision => Ok(ReserveAnswer { decision, hold: None }),
        },
        answer => answer,
    }
}

/// Decides a request for a lease on a key that is still under an old limit, which cannot have leases.
fn lease_nothing(
    decides: &Limit,
    state: &mut State,
    holds: &mut Holds,
    now_us: u64,
    request: LeaseRequest,
) -> LeaseAnswer {
    let CheckResult { decision, receipt } = match (request.need, request.expires_us) {
        (Some(need), _) => decides.check_beside(state, holds, now_us, need.into()),
        (None, expires_us) => {
            let peeked = decides.peek_beside(state, holds, now_us, Cost::ONE.into());
            let verdict = match expires_us {
                None => Verdict::Allowed { delay_us: 0 },
                Some(_) => Verdict::Denied { retry: Retry::Never },
            };
            let decision = core::LimitDecision { verdict, ..peeked };
            CheckResult { decision, receipt: None }
        }
    };
    let lease = match request.expires_us {
        None => LeaseState::None,
        Some(_) => LeaseState::Ended(EndedHold::Unknown),
    };
    LeaseAnswer { decision, receipt, lease }
}

/// A state while it is decided on.
struct CarriedState {
    /// The limit that the state is kept under.
    under: Limit,
    /// The limit that decides.
    decides: Limit,
    state: State,
    holds: Holds,
}

impl CarriedState {
    /// Returns what is written back; `None` for a key with nothing spent or held.
    fn stored(self) -> Option<StoredState> {
        let CarriedState { under, state, holds, .. } = self;
        let has_any = !holds.is_empty() || state != under.fresh();
        has_any.then_some(StoredState { limit: under, state, holds })
    }
}
