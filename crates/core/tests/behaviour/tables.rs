//! Each algorithm's behaviour as a table of times, costs and answers.

use Want::{Allowed, Delayed, Never, RetryAfterMs};
use std::time::Duration;

use tollgate_core::store::LogStorage;
use tollgate_core::{Algorithm, Cost, Limit, Log, Retry, SlidingWindowLog, UnitRequest, Verdict};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Want {
    Allowed,
    Delayed { ms: u64 },
    RetryAfterMs(u64),
    Never,
}

fn table(limit: &str, rows: &[(u64, u64, Want)]) {
    let limit: Limit = limit.parse().unwrap();
    let mut state = limit.fresh();
    for &(at_ms, cost, want) in rows {
        let request = UnitRequest::new(Cost::new(cost).unwrap());
        let got = match limit.check(&mut state, at_ms * 1_000, request).decision.verdict {
            Verdict::Allowed { delay_us: 0 } => Allowed,
            Verdict::Allowed { delay_us } => Delayed { ms: delay_us.div_ceil(1_000) },
            Verdict::Denied { retry: Retry::AfterUs(us) } => RetryAfterMs(us.div_ceil(1_000)),
            Verdict::Denied { retry: Retry::Never } => Never,
        };
        assert_eq!(got, want, "{limit} at {at_ms} ms");
    }
}

#[test]
fn fixed_window_admits_twice_its_limit_across_a_boundary() {
    table(
        "fixed-window limit=2 window=1s",
        &[
            //  at_ms cost want
            (999, 2, Allowed),
            (999, 1, RetryAfterMs(1)),
            (1_000, 2, Allowed),
            (1_000, 1, RetryAfterMs(1_000)),
            (1_000, 3, Never),
            (2_000, 1, Allowed),
        ],
    );
}

#[test]
fn log_entry_leaves_exactly_one_window_after_its_charge() {
    table(
        "sliding-window-log limit=3 window=1s",
        &[
            //  at_ms cost want
            (0, 1, Allowed),
            (400, 2, Allowed),
            (999, 1, RetryAfterMs(1)),
            (999, 2, RetryAfterMs(401)),
            (1_000, 1, Allowed),
            (1_000, 1, RetryAfterMs(400)),
            (1_000, 4, Never),
        ],
    );
}

#[test]
fn counter_waits_into_the_next_window_when_this_one_is_too_full() {
    table(
        "sliding-window-counter limit=10 window=1s",
        &[
            //  at_ms cost want
            (0, 10, Allowed),
            // Above 9 until 10% and one microsecond into the next window, not only until its start.
            (500, 1, RetryAfterMs(501)),
            (500, 5, RetryAfterMs(901)),
            (1_000, 1, RetryAfterMs(1)),
            (1_001, 1, Allowed),
            (1_500, 4, Allowed),
            (1_500, 11, Never),
        ],
    );
}

#[test]
fn token_bucket_spends_the_burst_then_paces() {
    table(
        "token-bucket capacity=2 refill=10/s",
        &[
            //  at_ms cost want
            (0, 1, Allowed),
            (0, 1, Allowed),
            (0, 1, RetryAfterMs(100)),
            (99, 1, RetryAfterMs(1)),
            (100, 1, Allowed),
            (100, 2, RetryAfterMs(200)),
            (100, 3, Never),
            (60_000, 2, Allowed),
            (60_000, 1, RetryAfterMs(100)),
        ],
    );
}

#[test]
fn policing_leaky_bucket_admits_a_burst_of_its_capacity() {
    table(
        "leaky-bucket capacity=3 leak=1/s mode=policing",
        &[
            //  at_ms cost want
            (0, 3, Allowed),
            (0, 1, RetryAfterMs(1_000)),
            (1_500, 1, Allowed),
            (1_500, 1, RetryAfterMs(500)),
        ],
    );
}

#[test]
fn shaping_leaky_bucket_spreads_a_burst_out() {
    table(
        "leaky-bucket capacity=3 leak=1/s mode=shaping",
        &[
            //  at_ms cost want
            (0, 1, Allowed),
            (0, 1, Delayed { ms: 1_000 }),
            (0, 1, Delayed { ms: 2_000 }),
            (0, 1, RetryAfterMs(1_000)),
            (1_500, 1, Delayed { ms: 1_500 }),
            (9_000, 3, Allowed),
            (9_000, 4, Never),
        ],
    );
}

#[test]
fn max_wait_refuses_a_longer_delay_without_a_charge() {
    let limit: Limit = "leaky-bucket capacity=3 leak=1/s mode=shaping".parse().unwrap();
    let mut state = limit.fresh();
    let any_delay = UnitRequest::new(Cost::ONE);
    let half_a_second = any_delay.within_us(500_000);
    assert!(limit.check(&mut state, 0, half_a_second).decision.is_allowed());
    let refused = limit.check(&mut state, 0, half_a_second).decision;
    assert_eq!(refused.retry_after_us(), Some(500_000));
    assert_eq!(refused.remaining, 0);
    assert_eq!(limit.check(&mut state, 0, any_delay).decision.delay_us(), 1_000_000);
}

#[test]
fn log_lists_only_charges_that_count() {
    let limit: Limit = "sliding-window-log limit=10 window=1s".parse().unwrap();
    let mut state = limit.fresh();
    for (at_us, cost) in [(0, 2), (400_000, 1), (400_000, 3)] {
        limit.check(&mut state, at_us, UnitRequest::new(Cost::new(cost).unwrap()));
    }
    let list = |now_us| -> Vec<(u64, u64)> {
        limit
            .entries(&state, now_us)
            .unwrap()
            .map(|entry| (entry.at_us, entry.cost.units()))
            .collect()
    };
    assert_eq!(list(400_000), [(0, 2), (400_000, 1), (400_000, 3)]);
    assert_eq!(list(1_000_000), [(400_000, 1), (400_000, 3)]);
    assert_eq!(list(1_400_000), []);
    let bucket: Limit = "token-bucket capacity=1 refill=1/s".parse().unwrap();
    assert!(bucket.entries(&bucket.fresh(), 0).is_none());
}

/// When a store has no memory for another entry, the log forgets times rather than units.
#[test]
fn coarsened_log_holds_the_same_units_for_longer() {
    let limit = SlidingWindowLog::new(10, Duration::from_secs(1)).unwrap();
    let mut log = Log::default();
    for (at_us, units) in [(0, 2), (100_000, 3), (400_000, 4)] {
        limit.check(&mut log, at_us, UnitRequest::new(Cost::new(units).unwrap()));
    }
    log.coarsen();
    let entries: Vec<_> =
        limit.entries(&log, 400_000).map(|entry| (entry.at_us, entry.cost.units())).collect();
    assert_eq!(entries, [(0, 2), (400_000, 7)]);
    log.coarsen();
    log.coarsen();
    assert_eq!(limit.peek(&log, 400_000, UnitRequest::new(Cost::ONE)).remaining, 1);
    assert_eq!(limit.peek(&log, 400_000, UnitRequest::new(Cost::ONE)).reset_after_us, 1_000_000);
}

#[test]
fn caller_that_accepts_any_delay_is_limited_by_capacity_alone() {
    let limit: Limit = "leaky-bucket capacity=7 leak=2/us mode=shaping".parse().unwrap();
    let any_delay = UnitRequest::new(Cost::new(3).unwrap()).within_us(u64::MAX);
    assert_eq!(limit.fits(&limit.fresh(), 0, any_delay), 2);
}

#[test]
fn refund_and_list_use_the_latest_time_when_the_time_is_beyond_it() {
    let limit: Limit = "sliding-window-log limit=3 window=1s".parse().unwrap();
    let mut state = limit.fresh();
    let receipt = limit.check(&mut state, u64::MAX, UnitRequest::new(Cost::ONE)).receipt.unwrap();
    assert_eq!(limit.entries(&state, u64::MAX).unwrap().count(), 1);
    assert_eq!(limit.refund(&mut state, u64::MAX, receipt), 1);
}
