//! Random limits: small ones, which reach every case soon, and the largest that are accepted.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Concurrency, Fill, FixedWindow, LeakyBucket, Level, Limit, MAX_HOLDS, MAX_LOG_UNITS, MAX_UNITS,
    MAX_WINDOW_US, Mode, Rate, SlidingWindowCounter, SlidingWindowLog, State, TokenBucket, Window,
    WindowPair,
};

/// Returns limits of every algorithm that can be checked: all but concurrency limits.
pub fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![window_limit(), bucket_limit()]
}

/// Returns limits of every algorithm that can have holds.
pub fn holding_limit() -> impl Strategy<Value = Limit> {
    let can_hold = |limit: &Limit| limit.can_hold().is_ok();
    prop_oneof![
        4 => limit().prop_filter("can have holds", can_hold),
        1 => concurrency_limit(),
    ]
}

/// Returns concurrency limits.
pub fn concurrency_limit() -> impl Strategy<Value = Limit> {
    let units = prop_oneof![6 => 1..10_u64, 1 => 1..=MAX_HOLDS as u64];
    (units, window()).prop_map(|(limit, time)| Concurrency::new(limit, time).unwrap().into())
}

/// Returns limits with a window: fixed windows, counters and logs.
pub fn window_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (units(), window())
            .prop_map(|(limit, window)| FixedWindow::new(limit, window).unwrap().into()),
        (units(), window())
            .prop_map(|(limit, window)| SlidingWindowCounter::new(limit, window).unwrap().into()),
        (units(), window()).prop_map(|(limit, window)| {
            SlidingWindowLog::new(limit.min(MAX_LOG_UNITS), window).unwrap().into()
        }),
    ]
}

/// Returns token buckets and leaky buckets of both modes.
pub fn bucket_limit() -> impl Strategy<Value = Limit> {
    (capacity_and_rate(), 0..3).prop_map(|((capacity, rate), kind)| match kind {
        0 => TokenBucket::new(capacity, rate).unwrap().into(),
        1 => LeakyBucket::policing(capacity, rate).unwrap().into(),
        _ => LeakyBucket::shaping(capacity, rate).unwrap().into(),
    })
}

/// Returns capacities and rates of buckets that fill within 100 years.
pub fn capacity_and_rate() -> impl Strategy<Value = (u64, Rate)> {
    let rate = prop_oneof![
        4 => (1..20_u64, 1..50_u64),
        2 => (1..1_000_u64, prop::sample::select(vec![1_000, 7_000, 1_000_000, 60_000_000, 86_400_000_000_u64])),
        1 => Just((999_983, 86_400_000_000)),
        1 => (1_000..10_000_000_u64, 1..=MAX_WINDOW_US),
        1 => (1..=MAX_UNITS, 1..=MAX_WINDOW_US),
    ];
    (units(), rate)
        .prop_map(|(capacity, (units, per_us))| {
            (capacity, Rate::new(units, Duration::from_micros(per_us)).unwrap())
        })
        .prop_filter("fills within 100 years", |&(capacity, rate)| {
            LeakyBucket::new(capacity, rate, Mode::Policing).is_ok()
        })
}

/// Returns costs and sizes, most of them small.
pub fn units() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1..10_u64,
        2 => 1..1_000_u64,
        1 => prop::sample::select(vec![65_536, 1_000_000, 10_000_000, 1_000_000_000, MAX_UNITS]),
        1 => 1..=MAX_UNITS,
    ]
}

/// Returns lengths of windows, most of them microseconds.
pub fn window() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => 1..50_u64,
        2 => prop::sample::select(vec![1_000, 1_000_000, 60_000_000, 86_400_000_000, MAX_WINDOW_US]),
        1 => 1..=MAX_WINDOW_US,
    ]
    .prop_map(Duration::from_micros)
}

/// Returns states that a store may return, also states that no limit ever wrote.
pub fn state() -> impl Strategy<Value = State> {
    let word = || prop_oneof![any::<u64>(), 0..20_u64, Just(u64::MAX)];
    prop_oneof![
        (word(), word()).prop_map(|(start_us, spent)| Window { start_us, spent }.into()),
        (word(), word(), word()).prop_map(|(start_us, current, previous)| {
            WindowPair { start_us, current, previous }.into()
        }),
        (word(), word(), word(), word()).prop_map(|(units, fraction, as_of_us, charged)| {
            Fill { level: Level { units, fraction }, as_of_us, charged }.into()
        }),
    ]
}
