//! P6: a key's time never runs backwards past its last charge, and a new clock locks no key out.

use proptest::prelude::*;
use tollgate_core::{Cost, Limit, MAX_STEP_BACK_US, State, UnitRequest};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, START_US, Walk};

/// Walks a limit to a state with something spent. Also returns the time that its clock may not run behind.
fn spent(limit: Limit, steps: &[trace::Step]) -> (Walk, u64) {
    let mut walk = Walk::new(limit);
    walk.check(Cost::ONE);
    let mut floor_us = START_US;
    for step in steps {
        let Some(cost) = walk.aim(step) else { break };
        if walk.check(cost).decision.is_allowed() {
            floor_us = walk.now_us;
        }
    }
    if let Limit::FixedWindow(_) | Limit::SlidingWindowCounter(_) = limit {
        floor_us -= floor_us % limit.bound().interval_us;
    }
    (walk, floor_us)
}

proptest! {
    #[test]
    fn key_time_stops_while_the_clock_is_a_little_behind(
        limit in any::limit(),
        steps in trace::forward(),
        back_us in 0..=MAX_STEP_BACK_US,
        cost in any::units(),
    ) {
        let (walk, floor_us) = spent(limit, &steps);
        let request = UnitRequest::new(Cost::new(cost).unwrap());
        let at_floor = limit.peek(&walk.state, floor_us, request);
        let behind = limit.peek(&walk.state, floor_us - back_us, request);
        prop_assert_eq!(behind.remaining, at_floor.remaining);
        prop_assert_eq!(behind.delay_us(), at_floor.delay_us());
        prop_assert_eq!(behind.is_allowed(), at_floor.is_allowed());
        let later = |wait_us: u64| if wait_us == 0 { 0 } else { wait_us + back_us };
        prop_assert_eq!(behind.retry_after_us(), at_floor.retry_after_us().map(later));
        prop_assert_eq!(behind.reset_after_us, later(at_floor.reset_after_us));
        prop_assert_eq!(behind.first_back_us, later(at_floor.first_back_us));
    }

    #[test]
    fn charge_behind_the_floor_counts_as_made_at_the_floor(
        limit in any::limit(),
        steps in trace::forward(),
        back_us in 0..=MAX_STEP_BACK_US,
    ) {
        let (walk, floor_us) = spent(limit, &steps);
        let (mut behind, mut at_floor) = (walk.state.clone(), walk.state);
        limit.check(&mut behind, floor_us - back_us, UnitRequest::new(Cost::ONE));
        limit.check(&mut at_floor, floor_us, UnitRequest::new(Cost::ONE));
        prop_assert_eq!(behind, at_floor);
    }

    #[test]
    fn new_clock_keeps_spent_units_and_locks_no_key_out(
        limit in any::limit(),
        steps in trace::forward(),
        back_us in MAX_STEP_BACK_US + 1..START_US / 2,
    ) {
        let (walk, floor_us) = spent(limit, &steps);
        let mut state = walk.state;
        let now_us = floor_us - back_us;
        let before = limit.peek(&state, floor_us, UnitRequest::new(Cost::ONE));
        // Denied, so that nothing but the clock changes the state.
        let too_much = UnitRequest::new(Cost::new(limit.size() + 1).unwrap_or(Cost::ONE));
        let after = limit.check(&mut state, now_us, too_much).decision;
        match limit {
            // How much of the previous window is in view depends on the position in the window.
            Limit::SlidingWindowCounter(_) => prop_assert!(after.remaining < limit.size() || before.remaining > 0),
            _ if limit.size() < tollgate_core::MAX_UNITS => prop_assert_eq!(after.remaining, before.remaining),
            _ => {}
        }
        let interval_us = limit.bound().interval_us;
        prop_assert!(after.reset_after_us <= 2 * interval_us);
        let whole = limit.peek(&state, now_us + after.reset_after_us, UnitRequest::new(Cost::ONE));
        prop_assert_eq!(whole.remaining, limit.size());
    }
}

#[test]
fn refused_client_on_a_new_clock_is_allowed_after_its_wait() {
    let limit: Limit = "token-bucket capacity=1 refill=1/m".parse().unwrap();
    let mut state = limit.fresh();
    let hour_us = 3_600_000_000;
    let check =
        |state: &mut _, now_us| limit.check(state, now_us, UnitRequest::new(Cost::ONE)).decision;
    assert!(check(&mut state, 2 * hour_us).is_allowed());
    assert_eq!(check(&mut state, hour_us).retry_after_us(), Some(60_000_000));
    assert_eq!(check(&mut state, hour_us + 59_999_999).retry_after_us(), Some(1));
    assert!(check(&mut state, hour_us + 60_000_000).is_allowed());
}

#[test]
fn log_on_a_new_clock_keeps_the_distance_between_its_entries() {
    let limit: Limit = "sliding-window-log limit=2 window=1m".parse().unwrap();
    let mut state = limit.fresh();
    for at_us in [100_000_000, 130_000_000] {
        limit.check(&mut state, at_us, UnitRequest::new(Cost::ONE));
    }
    let refused = limit.check(&mut state, 50_000_000, UnitRequest::new(Cost::ONE)).decision;
    assert_eq!(refused.retry_after_us(), Some(30_000_000));
    let times: Vec<_> =
        limit.entries(&state, 50_000_000).unwrap().map(|entry| entry.at_us).collect();
    assert_eq!(times, [20_000_000, 50_000_000]);
}

#[test]
fn step_back_above_10_s_is_a_new_clock() {
    const S: u64 = 1_000_000;
    for text in [
        "token-bucket capacity=1 refill=1/s",
        "leaky-bucket capacity=1 leak=1/s mode=shaping",
        "sliding-window-log limit=1 window=1s",
        "fixed-window limit=1 window=1s",
    ] {
        let limit: Limit = text.parse().unwrap();
        let mut state = limit.fresh();
        limit.check(&mut state, 100 * S, UnitRequest::new(Cost::ONE));
        let wait = |state: &State, now_us| {
            limit.peek(state, now_us, UnitRequest::new(Cost::ONE)).retry_after_us()
        };
        assert_eq!(wait(&state, 90 * S), Some(11 * S), "{text}");
        let restarted = if text.starts_with("fixed") { 1 } else { S };
        assert_eq!(wait(&state, 90 * S - 1), Some(restarted), "{text}");
    }
}

#[test]
fn both_counts_of_a_counter_move_to_a_new_clock() {
    const MINUTE: u64 = 60_000_000;
    let limit: Limit = "sliding-window-counter limit=10 window=1m".parse().unwrap();
    let mut state = limit.fresh();
    for (at_us, cost) in [(1_000 * MINUTE, 6), (1_001 * MINUTE + MINUTE / 2, 2)] {
        limit.check(&mut state, at_us, UnitRequest::new(Cost::new(cost).unwrap()));
    }
    // Half a minute into the window, half of the six units are in view.
    let now_us = 500 * MINUTE + MINUTE / 2;
    assert_eq!(limit.peek(&state, now_us, UnitRequest::new(Cost::ONE)).remaining, 5);
}

/// The state cannot hold times before the epoch, so entries of a log that is restarted there leave late.
#[test]
fn log_restarted_near_the_epoch_keeps_its_entries_until_one_window_after_it() {
    let limit: Limit = "sliding-window-log limit=2 window=1m".parse().unwrap();
    let mut state = limit.fresh();
    for at_us in [100_000_000, 130_000_000] {
        limit.check(&mut state, at_us, UnitRequest::new(Cost::ONE));
    }
    let refused = limit.check(&mut state, 5_000_000, UnitRequest::new(Cost::ONE)).decision;
    assert_eq!(refused.retry_after_us(), Some(55_000_000));
}

/// P6 outranks P4 here: without the restart that the refusal wrote, no request would be allowed again.
#[test]
fn refusal_on_a_new_clock_restarts_the_keys_time() {
    let limit: Limit = "token-bucket capacity=10 refill=1/s".parse().unwrap();
    let mut state = limit.fresh();
    let cost = |units| UnitRequest::new(Cost::new(units).unwrap());
    limit.check(&mut state, 7_200_000_000, cost(10));
    assert!(!limit.check(&mut state, 3_600_000_000, cost(11)).decision.is_allowed());
    assert!(limit.check(&mut state, 3_610_000_000, cost(10)).decision.is_allowed());
}
