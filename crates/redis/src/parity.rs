//! Every script decides as the core does, plain checks in their own and all else in the general one,
//! and each finds what the other has left.
//!
//! The core plays a random trace first; then a Redis and a Valkey play the same, and must answer the
//! same, field by field, keep the same states, and keep them as long as they matter. The scripts'
//! `TIME` is the trace's. `PROPTEST_CASES` scales it up.

#![allow(clippy::panic, clippy::unwrap_used)]

mod model;
mod servers;
mod trace;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate_conformance::any;
use tollgate_core::{Limit, MAX_UNITS, Rate, SlidingWindowLog, TokenBucket};

use model::World;
use servers::Servers;
use trace::{Act, Batch, Price, Step, Time};

/// Limits, each of a key, with the one it has at times instead; when the trace begins; the trace.
type Case = (Vec<(Limit, Limit)>, u64, Vec<Batch>);

/// Traces tried unless `PROPTEST_CASES` says otherwise; one is some hundred decisions.
const CASES: u32 = 128;

fn agree_on(
    limit: impl Strategy<Value = Limit> + 'static,
    batches: impl Strategy<Value = Vec<Batch>>,
) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let limit = limit.boxed();
    // As a rule one of the same kind, which is what configuration changes.
    let other = prop_oneof![2 => limit.clone(), 1 => any::limit()];
    let limits = prop::collection::vec((limit, other), 1..5);
    let servers = Servers::start();
    let case = (limits, trace::start_us(), batches);
    let result = TestRunner::new(config).run(&case, |case| agree(&servers, case));
    println!("{}", servers.decided());
    result.unwrap_or_else(|error| panic!("{error}"));
}

fn agree(servers: &Servers, (limits, start_us, batches): Case) -> Result<(), TestCaseError> {
    let mut world = World::new(&limits, start_us);
    servers.forget();
    for batch in &batches {
        let played = world.play(batch);
        servers.play(&played, world.keys())?;
    }
    Ok(())
}

/// Also buckets so large that their products pass 2^53, at rates where every remainder comes up.
fn large_bucket() -> impl Strategy<Value = Limit> {
    (1_u64 << 50..=MAX_UNITS, 3..30_u64, 1..30_u64)
        .prop_map(|(capacity, units, per_us)| {
            TokenBucket::new(capacity, Rate::new(units, Duration::from_micros(per_us)).unwrap())
        })
        .prop_filter_map("fills within 100 years", |limit| limit.ok().map(Limit::from))
}

#[test]
fn windows_agree() {
    let is_no_log = |limit: &Limit| !matches!(limit, Limit::SlidingWindowLog(_));
    agree_on(any::window_limit().prop_filter("logs have a test", is_no_log), trace::batches());
}

#[test]
fn buckets_agree() {
    agree_on(prop_oneof![4 => any::bucket_limit(), 1 => large_bucket()], trace::batches());
}

#[test]
fn logs_agree() {
    let limit = (any::units(), any::window()).prop_map(|(limit, window)| {
        SlidingWindowLog::new(limit.min(tollgate_core::MAX_LOG_UNITS), window).unwrap().into()
    });
    agree_on(limit, trace::batches());
}

#[test]
fn crowded_logs_agree() {
    let limit = (20..400_u64, 20..400_u64).prop_map(|(limit, window_us)| {
        SlidingWindowLog::new(limit, Duration::from_micros(window_us)).unwrap().into()
    });
    agree_on(limit, trace::crowded_batches());
}

#[test]
fn logs_with_refunds_in_the_middle_agree() {
    let limit = (50..1_000_u64, 200..20_000_u64).prop_map(|(limit, window_us)| {
        SlidingWindowLog::new(limit, Duration::from_micros(window_us)).unwrap().into()
    });
    agree_on(limit, trace::refunded_batches());
}

#[test]
fn algorithms_in_one_batch_agree() {
    agree_on(any::limit(), trace::batches());
}

/// A refund on a clock that is behind left an empty bucket to end before its own time; the check
/// after it took the end to be in the same step as before, and the charge was forgotten too early.
#[test]
fn what_is_charged_after_a_refund_on_a_clock_behind_is_kept_until_it_is_over() {
    let servers = Servers::start();
    let batch = |time, act| {
        let steps = vec![Step { key: 0, act, price: Price::Units(4), is_changing: false }];
        Batch { time, steps }
    };
    for limit in [
        "fixed-window limit=5 window=1s",
        "sliding-window-counter limit=5 window=1s",
        "sliding-window-log limit=5 window=1s",
        "token-bucket capacity=5 refill=1/s",
        "leaky-bucket capacity=5 leak=1/s mode=policing",
        "leaky-bucket capacity=5 leak=1/s mode=shaping",
    ] {
        let batches = [
            batch(Time::Stay, Act::Check),
            batch(Time::BackUs(10_000_000), Act::Refund(0)),
            batch(Time::Stay, Act::Check),
        ];
        // The first microsecond of a step of 8 s.
        let limit: Limit = limit.parse().unwrap();
        let case = (vec![(limit, limit)], 1_600_000_000_000_000, batches.into());
        agree(&servers, case).unwrap();
    }
}

/// The script that carries over has read a state under the limit that it says, and then was asked for
/// the same limit: it took them for two, and wrote what a refusal should leave alone.
#[test]
fn a_refusal_behind_a_look_under_another_limit_changes_nothing() {
    let servers = Servers::start();
    let step = |act, is_changing| Step { key: 0, act, price: Price::Units(5), is_changing };
    let other: Limit = "fixed-window limit=9 window=2s".parse().unwrap();
    for limit in [
        "fixed-window limit=5 window=1s",
        "sliding-window-counter limit=5 window=1s",
        "sliding-window-log limit=5 window=1s",
        "token-bucket capacity=5 refill=1/s",
        "leaky-bucket capacity=5 leak=1/s mode=shaping",
    ] {
        let batches = [
            vec![step(Act::Check, false)],
            vec![step(Act::Peek, true), step(Act::Check, true), step(Act::CheckAtUs(0), false)],
        ]
        .map(|steps| Batch { time: Time::Stay, steps });
        let limits = vec![(limit.parse().unwrap(), other)];
        agree(&servers, (limits, 1_600_000_000_000_000, batches.into())).unwrap();
    }
}
