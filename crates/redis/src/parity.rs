//! The scripts decide as the core does: plain checks in their own script, all other requests in the general one, and each
//! script reads the states that the other has written.
//!
//! The core plays a random trace first; then a Redis and a Valkey play the same trace. They must give the
//! same answers, field by field, and the same states, and must keep the states as long as they matter. The scripts'
//! `TIME` is the trace's. `PROPTEST_CASES` sets the number of traces.

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

/// For each key its limit and the limit that it changes to at times; when the trace begins; the trace.
type Case = (Vec<(Limit, Limit)>, u64, Vec<Batch>);

/// The number of traces unless `PROPTEST_CASES` sets it; each has some hundred decisions.
const CASES: u32 = 128;

fn agree_on(
    limit: impl Strategy<Value = Limit> + 'static,
    batches: impl Strategy<Value = Vec<Batch>>,
) {
    let limit = limit.boxed();
    // Mostly a limit of the same kind, as in most changes of a configuration.
    let other = prop_oneof![2 => limit.clone(), 1 => any::limit()];
    agree_on_limits((limit, other), trace::start_us(), batches);
}

/// Takes the limits of a key: at first, and after it changes.
fn agree_on_limits(
    limits: impl Strategy<Value = (Limit, Limit)>,
    start_us: impl Strategy<Value = u64>,
    batches: impl Strategy<Value = Vec<Batch>>,
) {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let limits = prop::collection::vec(limits, 1..5);
    let servers = Servers::start();
    let case = (limits, start_us, batches);
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

/// Returns buckets that are so large that products in their arithmetic pass 2^53, with rates at which every remainder
/// occurs.
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

#[test]
fn holds_agree() {
    let can_hold = |limit: &Limit| limit.can_hold().is_ok();
    let limit = any::limit().prop_filter("can have holds", can_hold).boxed();
    // Not near the end of time, where the times in receipts round.
    let start_us = prop_oneof![4 => Just(1_700_000_000_000_000_u64), 1 => 0..100_u64];
    agree_on_limits((limit.clone(), limit), start_us, trace::holding_batches());
}

#[test]
fn leases_of_keys_that_change_between_any_limits_agree() {
    let start_us = prop_oneof![4 => Just(1_700_000_000_000_000_u64), 1 => 0..100_u64];
    agree_on_limits((any::limit(), any::limit()), start_us, trace::leasing_batches());
}

/// A regression: a refund on a clock that is behind let an empty bucket expire before its own time. The next check took
/// the expiry to be in the same step as before, and its charge was forgotten too early.
#[test]
fn charge_after_a_refund_on_a_clock_behind_is_kept_until_it_expires() {
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

/// A regression: the script that carries over read a state under the limit in its tag, and then got a request of the
/// same limit. It took them for two limits, and wrote a state that a refusal should not change.
#[test]
fn refusal_after_a_peek_under_another_limit_changes_nothing() {
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
