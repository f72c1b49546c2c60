//! Random operations, compared with the model field by field.

use proptest::prelude::*;
use tollgate_core::{
    CheckResult, Cost, EndedHold, Extension, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse,
    Holds, Limit, LimitDecision, Reservation, Settlement, State, UnitRequest,
};

use super::model::{Model, ModelHold};

/// One operation on a key. A hold is chosen by a number, among all holds that were ever reserved.
#[derive(Clone, Debug)]
enum Operation {
    Wait(u64),
    /// Waits as long as the last refusal said, or one microsecond less or more.
    Retry(i64),
    Check(u64),
    Reserve(u64, u64),
    Settle(usize, u64),
    SettlePart(usize, u64),
    Extend(usize, u64, u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (0..30_u64).prop_map(Operation::Wait),
        2 => (-1..=1_i64).prop_map(Operation::Retry),
        3 => (1..8_u64).prop_map(Operation::Check),
        4 => (1..8_u64, 1..60_u64).prop_map(|(cost, for_us)| Operation::Reserve(cost, for_us)),
        2 => (0..8_usize, 0..14_u64).prop_map(|(hold, used)| Operation::Settle(hold, used)),
        2 => (0..8_usize, 0..6_u64).prop_map(|(hold, used)| Operation::SettlePart(hold, used)),
        2 => (0..8_usize, 0..4_u64, 1..60_u64)
            .prop_map(|(hold, more, for_us)| Operation::Extend(hold, more, for_us)),
    ]
}

fn small_limit() -> impl Strategy<Value = Limit> {
    let window = (1..12_u64, 1..40_u64, 0..3_usize).prop_map(|(limit, window_us, algorithm)| {
        let name = ["fixed-window", "sliding-window-log", "sliding-window-counter"][algorithm];
        format!("{name} limit={limit} window={window_us}us")
    });
    let bucket = (1..12_u64, 1..6_u64, 1..20_u64, any::<bool>()).prop_map(
        |(capacity, units, per_us, is_token)| match is_token {
            true => format!("token-bucket capacity={capacity} refill={units}/{per_us}us"),
            false => format!("leaky-bucket capacity={capacity} leak={units}/{per_us}us"),
        },
    );
    let concurrency = (1..12_u64, 1..40_u64)
        .prop_map(|(limit, for_us)| format!("concurrency limit={limit} for={for_us}us"));
    prop_oneof![3 => window, 2 => bucket, 2 => concurrency].prop_map(|text| text.parse().unwrap())
}

/// A key under test beside its model.
struct Pair {
    limit: Limit,
    state: State,
    holds: Holds,
    model: Model,
    now_us: u64,
    retry_after_us: u64,
    granted: Vec<HoldReference>,
}

impl Pair {
    fn new(limit: Limit) -> Pair {
        let (state, model) = (limit.fresh(), Model::new(limit));
        let now_us = 1_000_000;
        let (holds, granted) = (Holds::default(), Vec::new());
        Pair { limit, state, holds, model, now_us, retry_after_us: 0, granted }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        self.model.expire(self.now_us);
        let (before, taken) = (self.clone_state(), self.model.taken(self.now_us));
        let size = self.limit.size();
        let mut admitted = 0;
        match *operation {
            Operation::Wait(us) => self.now_us += us,
            Operation::Retry(off) => {
                self.now_us += self.retry_after_us.saturating_add_signed(off);
                self.retry_after_us = 0;
            }
            Operation::Check(units) => {
                let request = UnitRequest::new(Cost::new(units).unwrap());
                let (state, holds) = (&mut self.state, &mut self.holds);
                let checked = self.limit.check_beside(state, holds, self.now_us, request);
                if self.limit.only_holds() {
                    self.agree_on_refused_check(&checked, units, &before)?;
                    return self.agree(&checked.decision);
                }
                admitted = self.agree_on_admission(&checked.decision, units, &before)?;
                if admitted > 0 {
                    self.model.charges.push((self.now_us, units));
                }
                self.agree(&checked.decision)?;
            }
            Operation::Reserve(units, for_us) => {
                let id = HoldId(self.granted.len() as u64);
                let reservation = Reservation {
                    id,
                    cost: Cost::new(units).unwrap(),
                    hold_for: HoldTime::from_us(for_us).unwrap(),
                };
                let (state, holds) = (&mut self.state, &mut self.holds);
                let answer = self.limit.reserve(state, holds, self.now_us, reservation).unwrap();
                admitted = self.agree_on_admission(&answer.decision, units, &before)?;
                prop_assert_eq!(answer.hold.is_some(), admitted > 0);
                if let Some(hold) = answer.hold {
                    prop_assert_eq!(hold.expires_us, self.now_us + for_us);
                    let expires_us = hold.expires_us;
                    self.model.holds.push(ModelHold { id: id.0, units, expires_us, used: 0 });
                    self.granted.push(hold);
                }
                self.agree(&answer.decision)?;
            }
            Operation::Settle(index, used) => {
                admitted = self.settle(index, HoldUse { units: used, is_last: true })?;
            }
            Operation::SettlePart(index, used) => {
                admitted = self.settle(index, HoldUse { units: used, is_last: false })?;
            }
            Operation::Extend(index, more, for_us) => {
                let Some(hold) = self.granted(index) else { return Ok(()) };
                let growth = HoldGrowth {
                    more: Cost::new(more).ok(),
                    hold_for: HoldTime::from_us(for_us).unwrap(),
                };
                let (state, holds) = (&mut self.state, &mut self.holds);
                let answer = self.limit.extend_hold(state, holds, self.now_us, hold, growth);
                let until_us = self.now_us + for_us;
                match (answer.extension, self.open(hold)) {
                    (Extension::Ended(ended), None) => {
                        self.agree_on_end(ended, hold, &answer.decision, &before)?;
                    }
                    (Extension::Refused, Some(_)) => {
                        prop_assert!(more > 0 && taken + more > size);
                        prop_assert!(before == self.clone_state(), "a refusal changes nothing");
                    }
                    (Extension::Granted { expires_us, held_units }, Some(open)) => {
                        prop_assert!(more == 0 || taken + more <= size);
                        prop_assert_eq!(expires_us, until_us);
                        (open.units, open.expires_us) = (open.units + more, expires_us);
                        prop_assert_eq!(held_units, open.units);
                        admitted = more;
                        for own in self.granted.iter_mut().filter(|own| own.id == hold.id) {
                            own.expires_us = expires_us;
                        }
                    }
                    (extension, open) => prop_assert!(false, "{extension:?} of {open:?}"),
                }
                self.agree(&answer.decision)?;
            }
        }
        self.model.expire(self.now_us);
        prop_assert!(self.model.taken(self.now_us) <= taken + admitted, "units from nowhere");
        Ok(())
    }

    /// Settles in both, and returns the units that were charged beyond the hold.
    fn settle(&mut self, index: usize, used: HoldUse) -> Result<u64, TestCaseError> {
        let Some(hold) = self.granted(index) else { return Ok(0) };
        let before = self.clone_state();
        let (state, holds) = (&mut self.state, &mut self.holds);
        let answer = self.limit.settle_hold(state, holds, self.now_us, hold, used);
        let (size, only_holds) = (self.limit.size(), self.limit.only_holds());
        let excess = match (answer.settlement, self.open(hold)) {
            (Settlement::Ended(ended), None) => {
                self.agree_on_end(ended, hold, &answer.decision, &before)?;
                0
            }
            (
                Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt },
                Some(open),
            ) => {
                let new = used.units.saturating_sub(open.used);
                let beyond = new.saturating_sub(open.units);
                if only_holds {
                    prop_assert_eq!((charged_units, excess_units, cut_units), (0, 0, 0));
                } else {
                    prop_assert_eq!(excess_units, beyond.min(size));
                    prop_assert_eq!(cut_units, beyond - excess_units);
                    prop_assert_eq!(charged_units, new - cut_units);
                }
                prop_assert_eq!(receipt.is_some(), charged_units > 0);
                let freed = if used.is_last { open.units } else { new - beyond };
                prop_assert_eq!(freed_units, freed);
                open.used += new;
                open.units -= new - beyond;
                if used.is_last {
                    self.model.holds.retain(|own| own.id != hold.id.0);
                }
                if charged_units > 0 {
                    self.model.charges.push((self.now_us, charged_units));
                }
                prop_assert!(answer.decision.is_allowed());
                excess_units
            }
            (settlement, open) => {
                prop_assert!(false, "{settlement:?} of {open:?}");
                0
            }
        };
        self.agree(&answer.decision)?;
        Ok(excess)
    }

    fn granted(&self, index: usize) -> Option<HoldReference> {
        let count = self.granted.len().max(1);
        self.granted.get(index % count).copied()
    }

    fn open(&mut self, hold: HoldReference) -> Option<&mut ModelHold> {
        self.model.holds.iter_mut().find(|own| own.id == hold.id.0)
    }

    fn clone_state(&self) -> (State, Holds) {
        (self.state.clone(), self.holds.clone())
    }

    /// Compares the verdict with the model. Returns the units that were admitted.
    fn agree_on_admission(
        &mut self,
        decision: &LimitDecision,
        units: u64,
        before: &(State, Holds),
    ) -> Result<u64, TestCaseError> {
        let (size, taken) = (self.limit.size(), self.model.taken(self.now_us));
        prop_assert_eq!(decision.is_allowed(), taken + units <= size);
        if decision.is_allowed() {
            return Ok(units);
        }
        prop_assert!(*before == self.clone_state(), "a refusal changes nothing");
        let wait_us = size.checked_sub(units).map(|most| self.model.wait_us(self.now_us, most));
        prop_assert_eq!(decision.retry_after_us(), wait_us);
        self.retry_after_us = wait_us.unwrap_or(0);
        Ok(0)
    }

    /// A check of a limit whose units are only held is denied: until it fits beside the holds, or, if it fits, until the
    /// last of them has ended.
    fn agree_on_refused_check(
        &self,
        checked: &CheckResult,
        units: u64,
        before: &(State, Holds),
    ) -> Result<(), TestCaseError> {
        let (size, taken) = (self.limit.size(), self.model.taken(self.now_us));
        let last_us = self.model.holds.iter().map(|hold| hold.expires_us).max();
        let wait_us = match size.checked_sub(units) {
            Some(most) if taken > most => Some(self.model.wait_us(self.now_us, most)),
            Some(_) => last_us.map(|last_us| last_us - self.now_us),
            None => None,
        };
        prop_assert!(!checked.decision.is_allowed() && checked.receipt.is_none());
        prop_assert_eq!(checked.decision.retry_after_us(), wait_us);
        prop_assert!(*before == self.clone_state(), "a refusal changes nothing");
        Ok(())
    }

    fn agree_on_end(
        &self,
        ended: EndedHold,
        hold: HoldReference,
        decision: &LimitDecision,
        before: &(State, Holds),
    ) -> Result<(), TestCaseError> {
        let is_expired = hold.expires_us <= self.now_us;
        let want = if is_expired { EndedHold::Expired } else { EndedHold::Unknown };
        prop_assert_eq!(ended, want);
        prop_assert!(!decision.is_allowed() && decision.retry_after_us().is_none());
        prop_assert!(
            *before == self.clone_state(),
            "an operation on an ended hold changes nothing"
        );
        Ok(())
    }

    /// Compares what remains, and when, with the model.
    fn agree(&self, decision: &LimitDecision) -> Result<(), TestCaseError> {
        let (size, taken) = (self.limit.size(), self.model.taken(self.now_us));
        prop_assert_eq!(decision.limit, size);
        prop_assert_eq!(decision.remaining, size.saturating_sub(taken));
        prop_assert_eq!(decision.reset_after_us, self.model.wait_us(self.now_us, 0));
        let more_us =
            taken.min(size).checked_sub(1).map(|most| self.model.wait_us(self.now_us, most));
        match (decision.more_after_us(&self.limit), more_us) {
            // The time of a bucket may be a microsecond late, because it is computed from the reset.
            (Some(found), Some(exact)) => prop_assert!(found == exact || found == exact + 1),
            (found, exact) => prop_assert_eq!(found, exact),
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_operation_agrees_with_the_model(
        limit in small_limit(),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let mut pair = Pair::new(limit);
        for operation in &operations {
            pair.apply(operation)?;
        }
    }

    #[test]
    fn charges_stay_within_the_bound_when_settled_within_their_holds(
        limit in small_limit(),
        operations in prop::collection::vec(operation(), 1..60),
    ) {
        let mut pair = Pair::new(limit);
        for operation in &operations {
            let is_within = match *operation {
                Operation::Settle(index, used) | Operation::SettlePart(index, used) => {
                    pair.model.expire(pair.now_us);
                    let hold = pair.granted(index);
                    let open = hold.and_then(|hold| pair.open(hold));
                    open.is_none_or(|open| used <= open.used + open.units)
                }
                _ => true,
            };
            if is_within {
                pair.apply(operation)?;
            }
            // P11 of a concurrency limit.
            if limit.only_holds() {
                let held = pair.model.taken(pair.now_us);
                prop_assert!(held <= limit.bound().max_units, "{held} held");
            }
        }
        pair.model.expire(u64::MAX);
        if !limit.only_holds() {
            crate::bounds::within_bound(&limit, &pair.model.charges)?;
        }
    }
}
