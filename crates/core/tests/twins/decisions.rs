//! Compares the decisions, refunds and states of every algorithm in Lua with Rust.

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    FixedWindow, LeakyBucket, Limit, MAX_LOG_UNITS, MAX_UNITS, Rate, SlidingWindowCounter,
    SlidingWindowLog, TokenBucket,
};

use crate::servers::{Servers, prove};
use crate::trace::{self, PlayedTrace, Step};
use tollgate_conformance::any;

fn agree(servers: &Servers, traces: &[PlayedTrace]) -> Result<(), TestCaseError> {
    let texts: Vec<_> = traces.iter().map(|played| played.text.clone()).collect();
    for (flavour, answers) in servers.eval(include_str!("decisions.lua"), &texts) {
        prop_assert_eq!(answers.len(), traces.len());
        for (answer, played) in answers.iter().zip(traces) {
            let lines: Vec<_> = answer.lines().collect();
            prop_assert_eq!(&lines, &played.lines, "{} on\n{}", flavour, played.text);
        }
    }
    Ok(())
}

/// Two limits, the units by which a log's sums are raised, the time at which the trace begins, and the trace.
type Case = ([Limit; 2], u64, u64, Vec<Step>);

fn twins_agree_on(limit: impl Strategy<Value = Limit>) {
    twins_agree_over(limit.prop_map(|limit| [limit; 2]), trace::steps(), 1..8);
}

fn twins_agree_over(
    limits: impl Strategy<Value = [Limit; 2]>,
    steps: impl Strategy<Value = Vec<Step>>,
    at_once: Range<usize>,
) {
    // A log's running sums are lowered when they exceed 2^52. Some cases begin just below that.
    let age = prop_oneof![2 => Just(0), 1 => (1 << 52) - 100..=1_u64 << 52];
    let case = (limits, age, trace::start_us(), steps);
    prove(prop::collection::vec(case, at_once), |servers, cases: Vec<Case>| {
        let played: Vec<_> = cases
            .iter()
            .map(|(limits, age, start_us, steps)| trace::play(*limits, *age, *start_us, steps))
            .collect();
        agree(servers, &played)
    });
}

#[test]
fn fixed_windows_agree() {
    let limit = (any::units(), any::window());
    twins_agree_on(
        limit.prop_map(|(limit, window)| FixedWindow::new(limit, window).unwrap().into()),
    );
}

#[test]
fn sliding_window_counters_agree() {
    let limit = (any::units(), any::window());
    twins_agree_on(
        limit.prop_map(|(limit, window)| SlidingWindowCounter::new(limit, window).unwrap().into()),
    );
}

#[test]
fn sliding_window_logs_agree() {
    let limit = (any::units(), any::window());
    twins_agree_on(limit.prop_map(|(limit, window)| {
        SlidingWindowLog::new(limit.min(MAX_LOG_UNITS), window).unwrap().into()
    }));
}

#[test]
fn crowded_sliding_window_logs_agree() {
    let limit = (50..2_000_u64, 50..2_000_u64);
    let limit = limit.prop_map(|(limit, window_us)| {
        [SlidingWindowLog::new(limit, Duration::from_micros(window_us)).unwrap().into(); 2]
    });
    twins_agree_over(limit, trace::crowded_steps(), 1..2);
}

/// Also large buckets whose products exceed 2^53, at rates at which every remainder occurs.
fn capacity_and_rate() -> impl Strategy<Value = (u64, Rate)> {
    let large = (1_u64 << 50..=MAX_UNITS, 3..30_u64, 1..30_u64)
        .prop_map(|(capacity, units, per_us)| {
            (capacity, Rate::new(units, Duration::from_micros(per_us)).unwrap())
        })
        .prop_filter("fills within 100 years", |&(capacity, rate)| {
            TokenBucket::new(capacity, rate).is_ok()
        });
    prop_oneof![4 => any::capacity_and_rate(), 1 => large]
}

#[test]
fn token_buckets_agree() {
    twins_agree_on(
        capacity_and_rate()
            .prop_map(|(capacity, rate)| TokenBucket::new(capacity, rate).unwrap().into()),
    );
}

#[test]
fn policing_leaky_buckets_agree() {
    twins_agree_on(
        capacity_and_rate()
            .prop_map(|(capacity, rate)| LeakyBucket::policing(capacity, rate).unwrap().into()),
    );
}

#[test]
fn shaping_leaky_buckets_agree() {
    twins_agree_on(
        capacity_and_rate()
            .prop_map(|(capacity, rate)| LeakyBucket::shaping(capacity, rate).unwrap().into()),
    );
}

/// Any limit. Some are buckets so large that their products exceed 2^53.
fn limit() -> impl Strategy<Value = Limit> {
    let bucket = capacity_and_rate()
        .prop_map(|(capacity, rate)| TokenBucket::new(capacity, rate).unwrap().into());
    prop_oneof![2 => any::limit(), 1 => bucket]
}

#[test]
fn carry_over_between_any_two_limits_agrees() {
    twins_agree_over([limit(), limit()], trace::changing_steps(), 1..8);
}

#[test]
fn carry_over_within_an_algorithm_agrees() {
    let windows = |new: fn(u64, Duration) -> Limit| {
        [(any::units(), any::window()), (any::units(), any::window())]
            .prop_map(move |both| both.map(|(limit, window)| new(limit, window)))
            .boxed()
    };
    let buckets = [capacity_and_rate(), capacity_and_rate()].prop_map(|both| {
        both.map(|(capacity, rate)| TokenBucket::new(capacity, rate).unwrap().into())
    });
    let limits = prop_oneof![
        windows(|limit, window| FixedWindow::new(limit, window).unwrap().into()),
        windows(|limit, window| SlidingWindowCounter::new(limit, window).unwrap().into()),
        windows(|limit, window| {
            SlidingWindowLog::new(limit.min(MAX_LOG_UNITS), window).unwrap().into()
        }),
        buckets,
    ];
    twins_agree_over(limits, trace::changing_steps(), 1..8);
}

/// Any limit, concurrency limits included.
fn limit_with_holds() -> impl Strategy<Value = Limit> {
    prop_oneof![3 => limit(), 1 => any::concurrency_limit()]
}

#[test]
fn holds_agree() {
    let same = limit_with_holds().prop_map(|limit| [limit; 2]);
    twins_agree_over(same, trace::holding_steps(), 1..8);
}

#[test]
fn concurrency_limits_agree() {
    let same = any::concurrency_limit().prop_map(|limit| [limit; 2]);
    twins_agree_over(same, trace::holding_steps(), 1..8);
}

#[test]
fn holds_under_a_limit_that_changes_agree() {
    twins_agree_over([limit_with_holds(), limit_with_holds()], trace::holding_steps(), 1..8);
}

#[test]
fn refunds_of_receipts_from_before_a_reset_agree() {
    let servers = Servers::connect();
    for limit in [
        "fixed-window limit=5 window=1s",
        "sliding-window-counter limit=5 window=1s",
        "sliding-window-log limit=5 window=1s",
        "token-bucket capacity=5 refill=3/7ms",
        "leaky-bucket capacity=5 leak=3/7ms mode=shaping",
    ] {
        let limit = limit.parse().unwrap();
        let play =
            |off| trace::play([limit; 2], 0, 1_700_000_000_000_000, &trace::stale_receipt(off));
        agree(&servers, &[-1, 0, 1].map(play)).unwrap();
    }
}
