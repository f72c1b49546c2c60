//! Decisions on a key that has holds.
//!
//! Held units count in addition to the spent units, and do not come back while they are held. At its expiry a hold
//! turns into a charge of the same units. So the sum of spent and held units grows only when a request is admitted, or
//! when a hold is settled with more units than it has.
//!
//! A limit whose units are [only held](BesideHolds::ONLY_HOLDS) charges nothing: units that are settled, or whose hold
//! expires, are free at once.

use super::{Algorithm, MAX_STEP_BACK_US, MAX_TIME_US};
use crate::decision::{
    ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};
use crate::holds::{
    EndedHold, ExtendAnswer, Extension, GrantedExtension, HoldGrowth, HoldReference, HoldTime,
    HoldUse, Holds, MAX_HOLDS, OpenHold, Reservation, ReserveAnswer, SettleAnswer, Settlement,
    units_of,
};
use crate::range::MAX_UNITS;

/// An algorithm that decides on keys with holds.
// Sealed like `Decide`, which it requires.
#[allow(unreachable_pub)]
pub trait BesideHolds: Algorithm {
    /// Whether the limit's units are only ever held, and never charged.
    const ONLY_HOLDS: bool = false;

    /// The largest size that a limit of this algorithm can have.
    const MOST_UNITS: u64 = MAX_UNITS;

    /// The most units that a key may have spent and held together, also after a settlement beyond its hold. With more,
    /// the times until they have left would not be exact in doubles.
    fn most_taken(&self) -> u64 {
        MAX_UNITS
    }

    /// Stores the key's standing at `now_us` as its state. The key's floor, before which its time cannot go back, then
    /// moves forward too.
    fn store_standing(&self, state: &mut Self::State, now_us: u64);

    /// The latest time at which a lease taken at `at_us` may expire. Under a window that is its last microsecond, so that
    /// what a process takes from a lease is charged in the window of its use.
    fn lease_ends_us(&self, _at_us: u64) -> u64 {
        MAX_TIME_US
    }

    /// Called after each operation that changed the key, with the holds that are left.
    fn after_change(&self, _: &mut Self::State, _: &Holds) {}

    /// Charges the units of a hold at its expiry, whether they fit or not.
    fn charge_expired(&self, state: &mut Self::State, hold: &OpenHold) {
        charge_anyway(self, state, hold.expires_us, hold.units);
    }

    /// The earliest time, not before `at_us`, at which at most `most` units are spent if nothing more is charged. `most`
    /// is below the size.
    fn when_spent_at_most_us(&self, state: &Self::State, at_us: u64, most: u64) -> u64 {
        if Self::ONLY_HOLDS {
            return at_us;
        }
        // A request for the other `size - most` units fits from exactly that time on.
        let request = UnitRequest::new(Cost::of(self.size() - most));
        let verdict = self.verdict(state, &self.standing(state, at_us), request);
        at_us.saturating_add(verdict.retry_after_us().unwrap_or(0))
    }

    /// The units spent at `at_us`, including the units of the `expired` holds, which the state does not have yet.
    fn spent_with(&self, state: &Self::State, expired: &[OpenHold], at_us: u64) -> u64 {
        let mut state = state.clone();
        for hold in expired {
            self.charge_expired(&mut state, hold);
        }
        self.spent(&self.standing(&state, at_us))
    }

    /// The earliest time, not before `at_us`, at which at most `most` units are spent and held together if nothing
    /// else arrives and the holds are left to expire.
    fn when_taken_at_most_us(
        &self,
        state: &Self::State,
        (expired, open): (&[OpenHold], &[OpenHold]),
        at_us: u64,
        most: u64,
    ) -> u64 {
        let mut state = state.clone();
        for hold in expired {
            self.charge_expired(&mut state, hold);
        }
        let (mut from_us, mut held) = (at_us, units_of(open));
        for hold in open {
            if let Some(most_spent) = most.checked_sub(held) {
                let falls_us = self.when_spent_at_most_us(&state, from_us, most_spent);
                if falls_us <= hold.expires_us {
                    return falls_us;
                }
            }
            self.charge_expired(&mut state, hold);
            held -= hold.units;
            from_us = hold.expires_us;
        }
        self.when_spent_at_most_us(&state, from_us, most)
    }
}

/// Charges units at `at_us`, whether they fit or not. Returns their receipt, or `None` if nothing is charged: for 0
/// units, and under a limit whose units are only held.
fn charge_anyway<A: BesideHolds + ?Sized>(
    limit: &A,
    state: &mut A::State,
    at_us: u64,
    units: u64,
) -> Option<ChargeReceipt> {
    if A::ONLY_HOLDS {
        return None;
    }
    let cost = Cost::new(units).ok()?;
    let standing = limit.standing(state, at_us);
    let standing = limit.charge(state, standing, cost);
    // The holds are left out of `over_us`. OK because `over_us` matters only when the count of charges starts again,
    // and a store keeps the state of a key that has holds.
    let over_us = at_us.saturating_add(limit.reset_after_us(&standing));
    Some(ChargeReceipt::of(cost, limit.place(&standing, over_us)))
}

/// The units that a key has taken of its limit at one instant.
pub(crate) struct TakenUnits {
    /// The units that are spent or held.
    pub(crate) taken: u64,
    /// The held units alone.
    pub(crate) held: u64,
    /// Whether a hold is open. It may have no units left.
    pub(crate) has_open: bool,
}

/// Returns what the key has taken at `now_us`.
pub(crate) fn taken_units<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
) -> TakenUnits {
    look(limit, state, holds, now_us, |view| TakenUnits {
        taken: view.taken,
        held: units_of(view.open),
        has_open: !view.open.is_empty(),
    })
}

/// A key with holds at one instant. The state does not have the charges of the expired holds yet.
pub(super) struct View<'v, A: BesideHolds> {
    limit: &'v A,
    state: &'v A::State,
    expired: &'v [OpenHold],
    pub(super) open: &'v [OpenHold],
    /// The key's own time: the caller's, unless that is behind.
    pub(super) at_us: u64,
    now_us: u64,
    /// The units that are spent and held together, including the units of expired holds that still count.
    taken: u64,
}

impl<'v, A: BesideHolds> View<'v, A> {
    fn new(limit: &'v A, state: &'v A::State, holds: &'v Holds, now_us: u64) -> View<'v, A> {
        let at_us = now_us.max(limit.floor_us(state));
        let (expired, open) = holds.split_at_us(at_us);
        let taken = limit.spent_with(state, expired, at_us).saturating_add(units_of(open));
        View { limit, state, expired, open, at_us, now_us, taken }
    }

    pub(super) fn remaining(&self) -> u64 {
        self.limit.size().saturating_sub(self.taken)
    }

    /// The units that a lease may still have a part of. Under an old limit at a new size, that can be fewer than remain.
    pub(super) fn leasable(&self) -> u64 {
        let most = self.limit.size().min(self.limit.most_taken()).min(A::MOST_UNITS);
        most.saturating_sub(self.taken)
    }

    /// The exact wait until at most `most` units are spent and held.
    fn falls_after_us(&self, most: u64) -> u64 {
        if self.taken <= most {
            return 0;
        }
        let holds = (self.expired, self.open);
        let then_us = self.limit.when_taken_at_most_us(self.state, holds, self.at_us, most);
        then_us.saturating_sub(self.now_us)
    }

    fn verdict(&self, cost: Cost) -> Verdict {
        let Some(most) = self.limit.size().checked_sub(cost.units()) else {
            return Verdict::Denied { retry: Retry::Never };
        };
        if self.taken <= most {
            return Verdict::Allowed { delay_us: 0 };
        }
        Verdict::Denied { retry: Retry::AfterUs(self.falls_after_us(most)) }
    }

    /// The verdict on one more hold. A key that has [`MAX_HOLDS`] open holds waits for the first to expire.
    fn verdict_on_hold(&self, cost: Cost) -> Verdict {
        let verdict = self.verdict(cost);
        let first = self.open.first().filter(|_| self.open.len() >= MAX_HOLDS);
        let Some(first) = first else { return verdict };
        let by_number = Retry::AfterUs(first.expires_us.saturating_sub(self.now_us));
        match verdict {
            Verdict::Allowed { .. } => Verdict::Denied { retry: by_number },
            Verdict::Denied { retry } => Verdict::Denied { retry: retry.max(by_number) },
        }
    }

    /// The verdict on a check, which needs units that can be charged. Under a limit whose units are only held a check is
    /// always denied. It can be a check of another limit, to which the key moves once enough holds have ended.
    fn verdict_on_check(&self, cost: Cost) -> Verdict {
        let verdict = self.verdict(cost);
        if !A::ONLY_HOLDS || !verdict.is_allowed() {
            return verdict;
        }
        let retry = self.open.last().map_or(Retry::Never, |last| {
            Retry::AfterUs(last.expires_us.saturating_sub(self.now_us))
        });
        Verdict::Denied { retry }
    }

    fn decision(&self, verdict: Verdict) -> LimitDecision {
        let size = self.limit.size();
        let first_back_us = match self.taken.min(size).checked_sub(1) {
            Some(fewer) => self.falls_after_us(fewer),
            None => 0,
        };
        LimitDecision {
            verdict,
            limit: size,
            remaining: self.remaining(),
            reset_after_us: self.falls_after_us(0),
            first_back_us,
        }
    }
}

/// Moves a key with holds to a new clock if `now_us` shows one. Expiries move with it.
pub(crate) fn restart_clock<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
) {
    let now_us = now_us.min(MAX_TIME_US);
    let back_us = limit.floor_us(state).saturating_sub(now_us);
    if back_us > MAX_STEP_BACK_US {
        limit.restart(state, now_us);
        holds.move_back(back_us);
    }
}

/// Runs `read` on the key at `now_us`. If `now_us` shows a new clock, `read` gets a restarted copy.
pub(super) fn look<A: BesideHolds, T>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    read: impl FnOnce(&View<'_, A>) -> T,
) -> T {
    let now_us = now_us.min(MAX_TIME_US);
    if !limit.is_new_clock(state, now_us) {
        return read(&View::new(limit, state, holds, now_us));
    }
    let (mut state, mut holds) = (state.clone(), holds.clone());
    restart_clock(limit, &mut state, &mut holds, now_us);
    read(&View::new(limit, &state, &holds, now_us))
}

/// Charges the holds that have expired at `now_us`, and stores the key's standing as its state. Returns the key's time.
///
/// Only for an operation that changes the state: a refusal must leave no trace.
pub(crate) fn bring_up<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
) -> u64 {
    let at_us = now_us.min(MAX_TIME_US).max(limit.floor_us(state));
    for hold in holds.take_expired(at_us) {
        limit.charge_expired(state, &hold);
    }
    limit.store_standing(state, at_us);
    at_us
}

/// Decides a check and charges nothing; a reservation, if the limit's units are only held.
pub(crate) fn peek<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    cost: Cost,
) -> LimitDecision {
    if A::ONLY_HOLDS {
        return peek_reserve(limit, state, holds, now_us, cost);
    }
    peek_check(limit, state, holds, now_us, cost)
}

/// Decides a check and charges nothing. Denied if the limit's units are only held.
pub(crate) fn peek_check<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    cost: Cost,
) -> LimitDecision {
    look(limit, state, holds, now_us, |view| view.decision(view.verdict_on_check(cost)))
}

/// Decides a reservation and holds nothing.
pub(crate) fn peek_reserve<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    cost: Cost,
) -> LimitDecision {
    look(limit, state, holds, now_us, |view| view.decision(view.verdict_on_hold(cost)))
}

/// Decides a check, and charges it if it is allowed.
pub(crate) fn check<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    cost: Cost,
) -> CheckResult {
    restart_clock(limit, state, holds, now_us);
    let decision = peek_check(limit, state, holds, now_us, cost);
    if !decision.is_allowed() {
        return CheckResult { decision, receipt: None };
    }
    let at_us = bring_up(limit, state, holds, now_us);
    let receipt = charge_anyway(limit, state, at_us, cost.units());
    CheckResult { decision: decision_after(limit, state, holds, now_us), receipt }
}

/// Decides a reservation, and sets the units aside if it is admitted.
pub(crate) fn reserve<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    Reservation { id, cost, hold_for }: Reservation,
) -> ReserveAnswer {
    restart_clock(limit, state, holds, now_us);
    let decision = peek_reserve(limit, state, holds, now_us, cost);
    if !decision.is_allowed() {
        return ReserveAnswer { decision, hold: None };
    }
    let at_us = bring_up(limit, state, holds, now_us);
    let expires_us = expiry_us(at_us, hold_for);
    holds.insert(OpenHold { id, units: cost.units(), expires_us, used: 0 });
    let hold = Some(HoldReference { id, expires_us });
    ReserveAnswer { decision: decision_after(limit, state, holds, now_us), hold }
}

/// Charges the used units of a hold. `used` includes the units of earlier settlements. The hold ends if `is_last`.
pub(crate) fn settle<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    reference: HoldReference,
    HoldUse { units: used, is_last }: HoldUse,
) -> SettleAnswer {
    restart_clock(limit, state, holds, now_us);
    let open = match find(limit, state, holds, now_us, reference) {
        Ok(open) => open,
        Err(ended) => {
            let decision = decision_on_ended(limit, state, holds, now_us);
            return SettleAnswer { decision, settlement: Settlement::Ended(ended) };
        }
    };
    let at_us = bring_up(limit, state, holds, now_us);
    let taken = View::new(limit, state, holds, at_us).taken;
    holds.remove(open.id);
    let newly_used = used.min(MAX_UNITS).saturating_sub(open.used);
    let within = newly_used.min(open.units);
    let beyond = newly_used - within;
    let most_excess = limit.size().min(limit.most_taken().saturating_sub(taken));
    let excess = beyond.min(most_excess);
    let freed_units = if is_last { open.units } else { within };
    if !is_last {
        let used = open.used.max(used.min(MAX_UNITS));
        holds.insert(OpenHold { units: open.units - within, used, ..open });
    }
    let receipt = charge_anyway(limit, state, at_us, within + excess);
    limit.after_change(state, holds);
    let settlement = if A::ONLY_HOLDS {
        let (charged_units, excess_units, cut_units) = (0, 0, 0);
        Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt }
    } else {
        Settlement::Done {
            charged_units: within + excess,
            excess_units: excess,
            cut_units: beyond - excess,
            freed_units,
            receipt,
        }
    };
    SettleAnswer { decision: decision_after(limit, state, holds, now_us), settlement }
}

/// Adds `more` to a hold if it fits, and moves its expiry to `hold_for` from now.
pub(crate) fn extend<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    reference: HoldReference,
    HoldGrowth { more, hold_for }: HoldGrowth,
) -> ExtendAnswer {
    restart_clock(limit, state, holds, now_us);
    let open = match find(limit, state, holds, now_us, reference) {
        Ok(open) => open,
        Err(ended) => {
            let decision = decision_on_ended(limit, state, holds, now_us);
            return ExtendAnswer { decision, extension: Extension::Ended(ended) };
        }
    };
    if let Some(more) = more {
        let decision = peek_units(limit, state, holds, now_us, more);
        if !decision.is_allowed() {
            return ExtendAnswer { decision, extension: Extension::Refused };
        }
    }
    let at_us = bring_up(limit, state, holds, now_us);
    holds.remove(open.id);
    let expires_us = expiry_us(at_us, hold_for);
    // OK because the units fit the limit together.
    let units = open.units + more.map_or(0, Cost::units);
    holds.insert(OpenHold { units, expires_us, ..open });
    let decision = decision_after(limit, state, holds, now_us);
    let extension = Extension::Granted { expires_us, held_units: units };
    ExtendAnswer { decision, extension }
}

/// Takes an extension back: removes its units from the hold, and moves the expiry back, unless the hold was extended again
/// meanwhile, or the old expiry has passed.
pub(crate) fn take_back<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    extended: GrantedExtension,
) -> ExtendAnswer {
    restart_clock(limit, state, holds, now_us);
    let open = match find(limit, state, holds, now_us, extended.hold) {
        Ok(open) => open,
        Err(ended) => {
            let decision = decision_on_ended(limit, state, holds, now_us);
            return ExtendAnswer { decision, extension: Extension::Ended(ended) };
        }
    };
    let at_us = bring_up(limit, state, holds, now_us);
    holds.remove(open.id);
    let before_us = extended.hold.expires_us;
    let goes_back = open.expires_us == extended.expires_us && before_us > at_us;
    let expires_us = if goes_back { before_us } else { open.expires_us };
    let units = open.units.saturating_sub(extended.more.map_or(0, Cost::units));
    holds.insert(OpenHold { units, expires_us, ..open });
    let decision = decision_after(limit, state, holds, now_us);
    ExtendAnswer { decision, extension: Extension::Granted { expires_us, held_units: units } }
}

/// Gives back the part of a charge that still counts. Returns by how much `remaining` grew.
pub(crate) fn refund<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    receipt: ChargeReceipt,
) -> u64 {
    if A::ONLY_HOLDS {
        return 0;
    }
    restart_clock(limit, state, holds, now_us);
    let at_us = bring_up(limit, state, holds, now_us);
    let before = View::new(limit, state, holds, at_us).remaining();
    limit.give_back(state, at_us, receipt);
    View::new(limit, state, holds, at_us).remaining().saturating_sub(before)
}

/// Charges the holds that have expired at `now_us`, and changes nothing else.
pub(crate) fn charge_expired<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
) {
    restart_clock(limit, state, holds, now_us);
    bring_up(limit, state, holds, now_us);
    limit.after_change(state, holds);
}

/// Decides whether more units fit, without regard to how they are used.
fn peek_units<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    cost: Cost,
) -> LimitDecision {
    look(limit, state, holds, now_us, |view| view.decision(view.verdict(cost)))
}

/// Finds a hold that is open at `now_us`.
pub(super) fn find<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    reference: HoldReference,
) -> Result<OpenHold, EndedHold> {
    let at_us = now_us.min(MAX_TIME_US).max(limit.floor_us(state));
    let found = holds.get(reference.id);
    let expires_us = found.map_or(reference.expires_us, |hold| hold.expires_us);
    match found {
        _ if expires_us <= at_us => Err(EndedHold::Expired),
        Some(hold) => Ok(*hold),
        None => Err(EndedHold::Unknown),
    }
}

pub(super) fn expiry_us(at_us: u64, hold_for: HoldTime) -> u64 {
    at_us.saturating_add(hold_for.as_us()).min(MAX_TIME_US)
}

/// Returns the decision that an admitted operation reports: what remains after it.
pub(super) fn decision_after<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
) -> LimitDecision {
    look(limit, state, holds, now_us, |view| view.decision(Verdict::Allowed { delay_us: 0 }))
}

/// Returns the decision on an operation on a hold that has ended: denied, and waiting cannot help.
pub(super) fn decision_on_ended<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
) -> LimitDecision {
    look(limit, state, holds, now_us, |view| view.decision(Verdict::Denied { retry: Retry::Never }))
}
