//! Keys keep their spent units when a limit changes.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Algorithm, CarryOver, Cost, Fill, Level, Limit, Rate, TokenBucket, UnitRequest,
};

use tollgate_conformance::any;
use tollgate_conformance::trace::{self, Walk};

proptest! {
    #[test]
    fn carried_key_never_has_more_than_a_fresh_key_and_all_units_come_back(
        old in any::limit(),
        new in any::limit(),
        steps in trace::any(),
    ) {
        let mut walk = Walk::new(old);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
        }
        let (limit, mut state) = new.carry_over(&old, walk.state.clone(), walk.now_us, Cost::ONE).decides(&new);
        prop_assert_eq!(limit.size(), new.size());
        let peek = limit.check(&mut state, walk.now_us, UnitRequest::new(Cost::ONE)).decision;
        prop_assert!(peek.remaining <= new.size());
        let longest_us = old.bound().interval_us.max(new.bound().interval_us);
        prop_assert!(peek.reset_after_us <= 2 * longest_us + 10_000_000);
        let later_us = walk.now_us + peek.reset_after_us;
        prop_assert_eq!(limit.peek(&state, later_us, UnitRequest::new(Cost::ONE)).remaining, new.size());
    }

    /// A key that is under another limit for a moment has no fewer units spent afterwards. An exception are windows
    /// of another length: a shorter window forgets the units that it does not count.
    #[test]
    fn moving_to_another_limit_and_back_keeps_spent_units(
        own in any::limit(),
        other in any::limit(),
        steps in trace::any(),
    ) {
        let mut walk = Walk::new(own);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
        }
        let is_window = |limit: &Limit| matches!(limit, Limit::FixedWindow(_) | Limit::SlidingWindowCounter(_));
        if own.name() == other.name() && is_window(&own) {
            return Ok(());
        }
        let now_us = walk.now_us;
        let remaining = |limit: &Limit, state| limit.peek(state, now_us, UnitRequest::new(Cost::ONE)).remaining;
        let before = remaining(&own, &walk.state);
        let state = match other.carry_over(&own, walk.state.clone(), now_us, Cost::ONE) {
            CarryOver::Done(state) => own.carry_over(&other, state, now_us, Cost::ONE).decides(&own).1,
            CarryOver::Stays { state, .. } => state,
        };
        prop_assert!(remaining(&own, &state) <= before);
    }

    /// P2 between any two limits.
    #[test]
    fn retry_after_is_exact_across_a_change(old in any::limit(), new in any::limit(), steps in trace::forward()) {
        let mut walk = Walk::new(old);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
        }
        let (now_us, request) = (walk.now_us, UnitRequest::new(Cost::ONE));
        let carried = new.carry_over(&old, walk.state.clone(), now_us, Cost::ONE);
        let (limit, state) = carried.clone().decides(&new);
        let decided = limit.peek(&state, now_us, request);
        // A key that stays under its old limit is carried over later.
        let at = |at_us: u64| match &carried {
            CarryOver::Done(state) => new.peek(state, at_us, request),
            CarryOver::Stays { state, .. } => {
                let carried = new.carry_over(&old, state.clone(), at_us, Cost::ONE);
                let (limit, state) = carried.decides(&new);
                limit.peek(&state, at_us, request)
            }
        };
        let Some(wait_us) = decided.retry_after_us() else { return Ok(()) };
        prop_assert!(!at(now_us + wait_us - 1).is_allowed());
        prop_assert!(at(now_us + wait_us).is_allowed());
    }

    #[test]
    fn carry_over_to_the_same_limit_changes_nothing(limit in any::limit(), steps in trace::any()) {
        let mut walk = Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            let carried = limit.carry_over(&limit, walk.state.clone(), walk.now_us, Cost::ONE);
            let (same, carried) = carried.decides(&limit);
            prop_assert_eq!(same, limit);
            let request = UnitRequest::new(cost);
            prop_assert_eq!(
                limit.peek(&carried, walk.now_us, request),
                limit.peek(&walk.state, walk.now_us, request)
            );
            walk.check(cost);
        }
    }

    #[test]
    fn state_of_another_algorithm_does_not_bypass_a_limit(
        old in any::limit(),
        new in any::limit(),
        steps in trace::forward(),
    ) {
        let mut walk = Walk::new(old);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
        }
        if std::mem::discriminant(&old.fresh()) == std::mem::discriminant(&new.fresh()) {
            return Ok(());
        }
        let remaining = |limit: &Limit| limit.peek(&walk.state, walk.now_us, UnitRequest::new(Cost::ONE)).remaining;
        let spent = old.size() - remaining(&old);
        prop_assert!(remaining(&new) <= new.size().saturating_sub(spent));
    }
}

/// Spends under one limit, moves to another, and returns what remains at once.
fn remaining(spend: &[(u64, u64)], old: &str, new: &str, now_us: u64) -> u64 {
    let (old, new): (Limit, Limit) = (old.parse().unwrap(), new.parse().unwrap());
    let mut state = old.fresh();
    for &(at_us, cost) in spend {
        let request = UnitRequest::new(Cost::new(cost).unwrap());
        assert!(old.check(&mut state, at_us, request).decision.is_allowed());
    }
    let (limit, carried) = new.carry_over(&old, state, now_us, Cost::ONE).decides(&new);
    limit.peek(&carried, now_us, UnitRequest::new(Cost::ONE)).remaining
}

#[test]
fn spent_units_stay_spent_when_the_limit_changes() {
    const S: u64 = 1_000_000;
    for (spend, old, new, now_us, want) in [
        // Raised and lowered.
        ([(0, 60)], "fixed-window limit=100 window=1m", "fixed-window limit=200 window=1m", 0, 140),
        ([(0, 60)], "fixed-window limit=100 window=1m", "fixed-window limit=50 window=1m", 0, 0),
        (
            [(0, 60)],
            "token-bucket capacity=100 refill=1/s",
            "token-bucket capacity=200 refill=9/s",
            0,
            140,
        ),
        (
            [(0, 60)],
            "token-bucket capacity=100 refill=1/s",
            "token-bucket capacity=50 refill=1/s",
            0,
            0,
        ),
        // The level drains at the old rate until now.
        (
            [(0, 60)],
            "token-bucket capacity=100 refill=1/s",
            "token-bucket capacity=100 refill=50/s",
            S,
            41,
        ),
        // A longer window counts charges from further back, a shorter one fewer.
        (
            [(5 * S, 60)],
            "fixed-window limit=100 window=1m",
            "fixed-window limit=100 window=1s",
            30 * S,
            40,
        ),
        (
            [(61 * S, 60)],
            "fixed-window limit=100 window=1m",
            "fixed-window limit=100 window=1h",
            150 * S,
            40,
        ),
        (
            [(61 * S, 60)],
            "fixed-window limit=100 window=1m",
            "fixed-window limit=100 window=1s",
            150 * S,
            100,
        ),
        (
            [(61 * S, 60)],
            "fixed-window limit=100 window=1m",
            "fixed-window limit=100 window=10s",
            119 * S,
            40,
        ),
        (
            [(10 * S, 60)],
            "sliding-window-log limit=100 window=1m",
            "sliding-window-log limit=100 window=1h",
            90 * S,
            40,
        ),
        (
            [(10 * S, 60)],
            "sliding-window-log limit=100 window=1h",
            "sliding-window-log limit=100 window=1m",
            90 * S,
            100,
        ),
        (
            [(59 * S, 60)],
            "sliding-window-counter limit=100 window=1m",
            "sliding-window-counter limit=100 window=2m",
            90 * S,
            40,
        ),
        (
            [(59 * S, 60)],
            "sliding-window-counter limit=100 window=1m",
            "sliding-window-counter limit=100 window=1h",
            90 * S,
            40,
        ),
        // From one algorithm to another: all spent units count as spent now.
        (
            [(0, 60)],
            "token-bucket capacity=100 refill=1/s",
            "leaky-bucket capacity=100 leak=1/s mode=shaping",
            10 * S,
            50,
        ),
        (
            [(0, 60)],
            "token-bucket capacity=100 refill=1/s",
            "sliding-window-log limit=100 window=1m",
            10 * S,
            50,
        ),
        (
            [(0, 60)],
            "fixed-window limit=100 window=1m",
            "token-bucket capacity=10 refill=1/s",
            10 * S,
            0,
        ),
    ] {
        assert_eq!(remaining(&spend, old, new, now_us), want, "{old} -> {new}");
    }
}

#[test]
fn both_windows_of_a_counter_are_carried() {
    let spend = [(30_000_000, 20), (90_000_000, 10)];
    let old = "sliding-window-counter limit=100 window=1m";
    // Both minutes are within one hour; under a minute, they are the previous and the current window.
    assert_eq!(
        remaining(&spend, old, "sliding-window-counter limit=100 window=1h", 90_000_000),
        70
    );
    assert_eq!(
        remaining(&spend, old, "sliding-window-counter limit=200 window=1m", 90_000_000),
        180
    );
}

/// A bucket's fraction is in parts of its rate's period, so it is converted to the new period, rounded up.
#[test]
fn bucket_fraction_is_converted_to_the_new_period() {
    let rate = |units, per_us| Rate::new(units, Duration::from_micros(per_us)).unwrap();
    let old = TokenBucket::new(10, rate(1, 1_000_000)).unwrap();
    let level = |units, fraction| Level { units, fraction };
    for (from, new_rate, to) in [
        (level(4, 500_000), rate(1, 3_000_000), level(4, 1_500_000)),
        (level(4, 500_000), rate(3, 7_000), level(4, 3_500)),
        (level(4, 1), rate(1, 7), level(4, 1)),
        (level(4, 999_999), rate(1, 7), level(5, 0)),
        (level(10, 0), rate(1, 7), level(10, 0)),
    ] {
        let new = TokenBucket::new(10, new_rate).unwrap();
        let fill = Fill { level: from, as_of_us: 5, charged: 0 };
        assert_eq!(new.carry_over(&old, fill, 5).level, to, "{from:?} at {new_rate}");
    }
}

#[test]
fn previous_window_counts_for_another_algorithm() {
    let counter: Limit = "sliding-window-counter limit=10 window=1m".parse().unwrap();
    let bucket: Limit = "token-bucket capacity=10 refill=1/m".parse().unwrap();
    let mut state = counter.fresh();
    for (at_us, cost) in [(0, 4), (60_000_000, 3)] {
        counter.check(&mut state, at_us, UnitRequest::new(Cost::new(cost).unwrap()));
    }
    let now_us = 60_000_000;
    assert_eq!(bucket.peek(&state, now_us, UnitRequest::new(Cost::ONE)).remaining, 3);
    let (limit, carried) = bucket.carry_over(&counter, state, now_us, Cost::ONE).decides(&bucket);
    assert_eq!(limit, bucket);
    assert_eq!(bucket.peek(&carried, now_us, UnitRequest::new(Cost::ONE)).remaining, 3);
}

/// A client that alternates between two tiers: it spends all of the large limit, rests, and then sends requests under
/// the small limit.
#[test]
fn alternating_limits_admit_no_more_than_both_together() {
    const S: u64 = 1_000_000;
    let kinds = |size: u64, window: &str| {
        [
            format!("fixed-window limit={size} window={window}"),
            format!("sliding-window-log limit={size} window={window}"),
            format!("sliding-window-counter limit={size} window={window}"),
            format!("token-bucket capacity={size} refill={size}/{window}"),
            format!("leaky-bucket capacity={size} leak={size}/{window} mode=policing"),
        ]
        .map(|text| text.parse::<Limit>().unwrap())
    };
    let request = UnitRequest::new(Cost::ONE);
    for large in kinds(1_000, "1h") {
        for small in kinds(60, "1m") {
            for (rest_s, asks) in [(61, 1), (61, 60), (125, 1), (600, 61)] {
                let start_us = 1_000_000 * 3_600 * S;
                let (mut now_us, mut admitted) = (start_us, 0);
                let (mut under, mut state) = (large, large.fresh());
                let mut check = |limit: Limit, now_us: u64| {
                    let mut decides = limit;
                    if under != limit {
                        let carried = limit.carry_over(&under, state.clone(), now_us, Cost::ONE);
                        if let CarryOver::Done(_) = carried {
                            under = limit;
                        }
                        (decides, state) = carried.decides(&limit);
                    }
                    decides.check(&mut state, now_us, request).decision.is_allowed()
                };
                for _ in 0..20 {
                    while check(large, now_us) {
                        admitted += 1;
                    }
                    now_us += rest_s * S;
                    admitted += (0..asks).filter(|_| check(small, now_us)).count() as u64;
                }
                let spent_us = now_us - start_us + 1;
                let most = |limit: &Limit| limit.bound_over(spent_us).max_units;
                let both = most(&large) + most(&small);
                assert!(admitted <= both, "{admitted} of {both}: {large}, {small}, {rest_s} s");
            }
        }
    }
}

/// Two callers of one key, each under its own limit, retry again and again. No refusal changes the spent units.
#[test]
fn alternating_callers_are_not_refused_for_ever() {
    const S: u64 = 1_000_000;
    let limits = [
        "fixed-window limit=10 window=10s",
        "sliding-window-log limit=10 window=10s",
        "sliding-window-counter limit=10 window=10s",
        "token-bucket capacity=10 refill=1/s",
        "fixed-window limit=10 window=7s",
        "sliding-window-log limit=10 window=7s",
    ]
    .map(|text| text.parse::<Limit>().unwrap());
    let request = UnitRequest::new(Cost::ONE);
    for one in limits {
        for other in limits {
            for every_us in [S / 10, 9 * S / 10, S, 13 * S / 10] {
                let (mut under, mut state, mut admitted) = (one, one.fresh(), 0);
                for turn in 0..1_000_u64 {
                    let limit = if turn.is_multiple_of(2) { one } else { other };
                    let now_us = 1_000 * S + turn * every_us;
                    let mut decides = limit;
                    if under != limit {
                        let carried = limit.carry_over(&under, state.clone(), now_us, Cost::ONE);
                        if let CarryOver::Done(_) = carried {
                            under = limit;
                        }
                        (decides, state) = carried.decides(&limit);
                    }
                    let decision = decides.check(&mut state, now_us, request).decision;
                    admitted += u64::from(decision.is_allowed());
                }
                // At least a tenth of what either limit would admit.
                let most = (1_000 * every_us / S).min(1_000);
                assert!(
                    admitted >= most / 10,
                    "{admitted} of {most}: {one}, {other}, {every_us} us"
                );
            }
        }
    }
}

/// Callers alternate between the buckets, and spend whenever a request is allowed.
#[test]
fn alternating_buckets_admit_no_more_than_the_largest_at_the_fastest_rate() {
    const S: u64 = 1_000_000;
    let buckets = [(100, 1), (50, 1_000), (10, 1), (15, 3)];
    let bucket = |(capacity, rate): (u64, u64)| -> Limit {
        format!("token-bucket capacity={capacity} refill={rate}/s").parse().unwrap()
    };
    for one in buckets {
        for other in buckets {
            for step_us in [S / 100, S / 20, S, 7 * S] {
                let limits = [one, other].map(bucket);
                let (mut under, mut state, mut admitted) = (limits[0], limits[0].fresh(), 0);
                for turn in 0..200_u64 {
                    let now_us = turn * step_us;
                    for limit in [limits[turn as usize % 2], limits[(turn as usize + 1) % 2]] {
                        loop {
                            let mut decides = limit;
                            if under != limit {
                                let carried =
                                    limit.carry_over(&under, state.clone(), now_us, Cost::ONE);
                                if let CarryOver::Done(_) = carried {
                                    under = limit;
                                }
                                (decides, state) = carried.decides(&limit);
                            }
                            let request = UnitRequest::new(Cost::ONE);
                            if !decides.check(&mut state, now_us, request).decision.is_allowed() {
                                break;
                            }
                            admitted += 1;
                        }
                    }
                    let (capacity, rate) = (one.0.max(other.0), one.1.max(other.1));
                    let most = capacity + (rate * now_us).div_ceil(S);
                    assert!(admitted <= most, "{admitted} of {most}: {limits:?}, {step_us} us");
                }
            }
        }
    }
}
