//! P11: no trace admits more than the stated bound in any interval, and some traces reach it.

use proptest::prelude::*;
use tollgate_core::{Cost, Limit, UnitRequest};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

/// Fails if the admitted `(at_us, units)` exceed the limit's bound in any interval.
pub(crate) fn within_bound(limit: &Limit, admitted: &[(u64, u64)]) -> Result<(), TestCaseError> {
    for (first, &(from_us, _)) in admitted.iter().enumerate() {
        let mut units = 0_u64;
        for &(to_us, cost) in &admitted[first..] {
            units = units.saturating_add(cost);
            let bound = limit.bound_over(to_us - from_us + 1);
            prop_assert!(units <= bound.max_units, "{units} in {bound:?} of {limit}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn random_traces_stay_within_the_bound(limit in any::limit(), steps in trace::forward()) {
        let mut walk = Walk::new(limit);
        let mut admitted = Vec::new();
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            if walk.check(cost).decision.is_allowed() {
                admitted.push((walk.now_us, cost.units()));
            }
        }
        within_bound(&limit, &admitted)?;
    }

    #[test]
    fn greedy_caller_stays_within_the_bound(
        limit in any::limit(),
        idle_us in any::<u32>(),
        pauses_us in prop::collection::vec(prop_oneof![Just(1), 1..100_u64, 1..10_000_000_u64], 1..60),
    ) {
        within_bound(&limit, &greedy(&limit, trace::START_US + u64::from(idle_us), &pauses_us))?;
    }
}

/// Spends all that remains at `start_us` and after each of the pauses.
fn greedy(limit: &Limit, start_us: u64, pauses_us: &[u64]) -> Vec<(u64, u64)> {
    let mut state = limit.fresh();
    let mut now_us = start_us;
    let mut admitted = Vec::new();
    for pause_us in [0].iter().chain(pauses_us) {
        now_us += pause_us;
        let remaining = limit.peek(&state, now_us, Cost::ONE.into()).remaining;
        if let Ok(all) = Cost::new(remaining) {
            assert!(limit.check(&mut state, now_us, UnitRequest::new(all)).decision.is_allowed());
            admitted.push((now_us, remaining));
        }
    }
    admitted
}

/// The trace bursts in the last microsecond of a window, then spends all that remains, every microsecond.
#[test]
fn each_bound_is_reached_by_some_trace() {
    for text in [
        "fixed-window limit=10 window=1ms",
        "sliding-window-log limit=10 window=1ms",
        "sliding-window-counter limit=10 window=1ms",
        "sliding-window-counter limit=997 window=1ms",
        "token-bucket capacity=10 refill=10/ms",
        "token-bucket capacity=10 refill=3/7us",
        "leaky-bucket capacity=10 leak=10/ms mode=policing",
        "leaky-bucket capacity=10 leak=10/ms mode=shaping",
    ] {
        let limit: Limit = text.parse().unwrap();
        let last_of_window_us = 5_000 - 1;
        let admitted = greedy(&limit, last_of_window_us, &[1; 3_500]);
        within_bound(&limit, &admitted).unwrap();
        for interval_us in [1, 2, 3, 500, 999, 1_000, 1_001, 1_002, 2_000, 3_001] {
            let end_us = last_of_window_us + interval_us;
            let got: u64 =
                admitted.iter().filter(|(at_us, _)| *at_us < end_us).map(|(_, units)| units).sum();
            let bound = limit.bound_over(interval_us);
            assert_eq!(got, bound.max_units, "{text} over {interval_us} us");
        }
    }
}

/// Tries every way to spend small limits over a few windows. The bound equals the maximum if no unit is lost to
/// rounding between two microseconds: for a counter whose limit is below its window in microseconds, and for a
/// bucket that does not drain within one microsecond.
#[test]
fn no_strategy_exceeds_the_bound_and_the_best_one_reaches_it() {
    for limit in 1..=3 {
        for window_us in 1..=4 {
            for algorithm in ["fixed-window", "sliding-window-log", "sliding-window-counter"] {
                let text = format!("{algorithm} limit={limit} window={window_us}us");
                let is_coarse = algorithm == "sliding-window-counter" && limit >= window_us;
                compare_with_best(&text, window_us, |best, bound| {
                    if is_coarse { best <= bound } else { best == bound }
                });
            }
        }
    }
    for text in ["token-bucket capacity=3 refill=1/us", "token-bucket capacity=2 refill=2/3us"] {
        compare_with_best(text, 1, |best, bound| best == bound);
    }
    compare_with_best("token-bucket capacity=1 refill=2/3us", 1, |best, bound| best <= bound);
}

/// Compares the bound with the best strategy, over every phase of the window.
fn compare_with_best(text: &str, phases: u64, holds: impl Fn(u64, u64) -> bool) {
    let limit: Limit = text.parse().unwrap();
    for interval_us in 1..=8 {
        let best_from = |phase_us| {
            let start_us = 1_000 * phases + phase_us;
            most(&limit, &limit.fresh(), start_us, start_us + interval_us)
        };
        let best = (0..phases).map(best_from).max().unwrap();
        let bound = limit.bound_over(interval_us).max_units;
        assert!(holds(best, bound), "{text} over {interval_us} us: {best} of {bound}");
    }
}

/// The most units that any strategy is admitted from `now_us` until `end_us`.
fn most(limit: &Limit, state: &tollgate_core::State, now_us: u64, end_us: u64) -> u64 {
    if now_us == end_us {
        return 0;
    }
    let remaining = limit.peek(state, now_us, Cost::ONE.into()).remaining;
    let spending = |units| {
        let mut state = state.clone();
        if let Ok(cost) = Cost::new(units) {
            limit.check(&mut state, now_us, UnitRequest::new(cost));
        }
        units + most(limit, &state, now_us + 1, end_us)
    };
    (0..=remaining).map(spending).max().unwrap()
}

#[test]
fn bounds_come_with_their_interval_and_formula() {
    let limit: Limit = "sliding-window-counter limit=100 window=60s".parse().unwrap();
    let bound = limit.bound();
    assert_eq!((bound.interval_us, bound.max_units), (60_000_000, 200));
    assert_eq!(bound.formula, "limit + ceil(limit * (t - 2) / window)");
    assert_eq!(limit.bound_over(0).max_units, 0);
    let bucket: Limit = "token-bucket capacity=60 refill=1/s".parse().unwrap();
    assert_eq!((bucket.bound().interval_us, bucket.bound().max_units), (60_000_000, 119));
}
