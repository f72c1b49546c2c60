//! P1 to P4, after every decision of a random trace, also when its clock steps.

use proptest::prelude::*;
use tollgate_core::{Cost, LimitDecision, MAX_UNITS, Retry, UnitRequest, Verdict};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

proptest! {
    #[test]
    fn every_decision_keeps_its_promises(limit in any::limit(), steps in trace::any()) {
        let mut walk = Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let peeked = walk.limit.peek(&walk.state, walk.now_us, UnitRequest::new(cost));
            let before = walk.clone();
            let decision = walk.check(cost).decision;
            prop_assert_eq!(peeked.verdict, decision.verdict);
            prop_assert_eq!(decision.limit, limit.size());
            remaining_is_exact(&walk, &decision)?;
            retry_after_is_exact(&walk, &decision, cost)?;
            reset_after_is_exact(&walk, &decision)?;
            denial_costs_nothing(before, &walk, &decision)?;
        }
    }

    #[test]
    fn shaping_limit_keeps_its_promises_with_a_max_wait(
        (capacity, rate) in any::capacity_and_rate(),
        steps in trace::forward(),
        max_wait_us in prop_oneof![0..100_u64, any::<u64>()],
    ) {
        let limit = tollgate_core::LeakyBucket::shaping(capacity, rate).unwrap().into();
        let mut walk = Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let request = UnitRequest::new(cost).within_us(max_wait_us);
            let decision = limit.check(&mut walk.state, walk.now_us, request).decision;
            prop_assert!(decision.delay_us() <= max_wait_us);
            let peek = |wait_us: u64, units: u64| {
                let request = UnitRequest::new(Cost::new(units).unwrap()).within_us(max_wait_us);
                limit.peek(&walk.state, walk.now_us + wait_us, request)
            };
            if decision.remaining > 0 {
                prop_assert!(peek(0, decision.remaining).is_allowed());
            }
            prop_assert!(!peek(0, decision.remaining + 1).is_allowed());
            if let Some(wait_us) = decision.retry_after_us() {
                prop_assert!(peek(wait_us, cost.units()).is_allowed());
                prop_assert!(!peek(wait_us - 1, cost.units()).is_allowed());
            }
            let fits = limit.fits(&walk.state, walk.now_us, request);
            prop_assert!(fits <= decision.remaining / cost.units());
            let mut state = walk.state.clone();
            for _ in 0..fits.min(20) {
                prop_assert!(limit.check(&mut state, walk.now_us, request).decision.is_allowed());
            }
            if fits <= 20 {
                prop_assert!(!limit.check(&mut state, walk.now_us, request).decision.is_allowed());
            }
        }
    }
}

proptest! {
    /// For any state that a store may return, also a state that no limit ever wrote.
    #[test]
    fn no_state_makes_a_limit_panic(
        limits in prop::collection::vec(any::limit(), 2),
        hostile in any::state(),
        now_us: u64,
        cost in 1..=MAX_UNITS,
        max_wait_us: Option<u64>,
    ) {
        let request = UnitRequest { cost: Cost::new(cost).unwrap(), max_wait_us };
        for limit in &limits {
            let mut state = hostile.clone();
            limit.peek(&state, now_us, request);
            limit.fits(&state, now_us, request);
            let checked = limit.check(&mut state, now_us, request);
            limit.check(&mut state, now_us.wrapping_add(cost), request);
            if let Some(receipt) = checked.receipt {
                limit.refund(&mut state, now_us, receipt);
            }
            limit.carry_over(&limits[0], state, now_us, Cost::ONE);
            limits[0].carry_over(limit, hostile.clone(), now_us, Cost::ONE);
            limit.carry_over(&limits[0], hostile.clone(), now_us, Cost::ONE);
        }
    }
}

/// P1: a request of `remaining` units is allowed at the same instant, and one of a unit more is not.
fn remaining_is_exact(walk: &Walk, decision: &LimitDecision) -> Result<(), TestCaseError> {
    if decision.remaining > 0 {
        prop_assert!(walk.peek_after(0, decision.remaining).is_allowed());
    }
    if decision.remaining < MAX_UNITS {
        prop_assert!(!walk.peek_after(0, decision.remaining + 1).is_allowed());
    }
    Ok(())
}

/// P2: a request after exactly that wait is allowed, and one a microsecond earlier is not. A cost that can never fit
/// has no wait.
fn retry_after_is_exact(
    walk: &Walk,
    decision: &LimitDecision,
    cost: Cost,
) -> Result<(), TestCaseError> {
    let Verdict::Denied { retry } = decision.verdict else { return Ok(()) };
    prop_assert_eq!(retry == Retry::Never, cost.units() > walk.limit.size());
    if let Retry::AfterUs(wait_us) = retry {
        prop_assert!(wait_us > 0);
        prop_assert!(walk.peek_after(wait_us, cost.units()).is_allowed());
        prop_assert!(!walk.peek_after(wait_us - 1, cost.units()).is_allowed());
    }
    Ok(())
}

/// P3: all units are back after `reset_after`, and not a microsecond before.
fn reset_after_is_exact(walk: &Walk, decision: &LimitDecision) -> Result<(), TestCaseError> {
    let reset_us = decision.reset_after_us;
    prop_assert_eq!(walk.remaining_after(reset_us), walk.limit.size());
    if reset_us > 0 {
        prop_assert!(walk.remaining_after(reset_us - 1) < walk.limit.size());
    }
    Ok(())
}

/// P4: no bit of the state changes, except by the restart on a new clock.
fn denial_costs_nothing(
    mut before: Walk,
    after: &Walk,
    decision: &LimitDecision,
) -> Result<(), TestCaseError> {
    if !decision.is_allowed() {
        before.limit.restart_clock(&mut before.state, before.now_us);
        prop_assert_eq!(&before.state, &after.state);
    }
    Ok(())
}
