//! Intervals in which more units were admitted than the limit may admit.

use crate::history::tests::{answered, charge, limit};
use crate::history::{Excess, RecordedRequest, excess_over};

/// Requests that were allowed, from when to when, with their units.
fn admitted(requests: &[(u64, u64, u64)]) -> Vec<RecordedRequest> {
    let wide = limit("fixed-window limit=1000000 window=366d");
    let allowed = |&(began_us, ended_us, units): &(u64, u64, u64)| {
        answered(&wide, &mut wide.fresh(), charge(began_us, units), ended_us)
    };
    requests.iter().map(allowed).collect()
}

#[test]
fn interval_with_one_unit_too_many_is_found() {
    let bucket = limit("token-bucket capacity=10 refill=1/s");
    let full = [(5, 10, 6), (1_000_000, 2_000_000, 5)];
    assert_eq!(excess_over(&bucket, &admitted(&full), 0), None);
    let more = [&full[..], &[(1_999_000, 2_000_001, 2)]].concat();
    let excess = Excess { from_us: 5, until_us: 2_000_001, admitted_units: 13, max_units: 11 };
    assert_eq!(excess_over(&bucket, &admitted(&more), 0), Some(excess));
    assert_eq!(
        excess.to_string(),
        "13 units were admitted in the 1999997 us from 5 to 2000001; the limit admits at most 11"
    );
    assert_eq!(excess_over(&bucket, &admitted(&more), 1), None);
}

/// The unit may have been admitted before the interval or after it.
#[test]
fn request_that_is_partly_in_an_interval_does_not_count_for_it() {
    let bucket = limit("token-bucket capacity=10 refill=1/s");
    let within = [(100, 200, 10)];
    assert_eq!(excess_over(&bucket, &admitted(&[within[0], (0, 2_000_000, 1)]), 0), None);
    assert!(excess_over(&bucket, &admitted(&[within[0], (0, 200, 1)]), 0).is_some());
}

#[test]
fn refused_requests_and_unknown_outcomes_do_not_count() {
    let bucket = limit("token-bucket capacity=10 refill=1/s");
    let mut state = bucket.fresh();
    let history = [
        answered(&bucket, &mut state, charge(0, 10), 5),
        answered(&bucket, &mut state, charge(1, 1), 6),
        charge(2, 1),
    ];
    assert_eq!(excess_over(&bucket, &history, 0), None);
}

/// The bound of an interval allows two windows for it.
#[test]
fn fixed_window_is_checked_window_by_window() {
    let fixed = limit("fixed-window limit=10 window=1s");
    assert_eq!(
        excess_over(&fixed, &admitted(&[(999_990, 999_999, 10), (1_000_000, 1_000_001, 10)]), 0),
        None
    );
    let more = [(1_000_000, 1_000_010, 10), (1_999_000, 1_999_999, 1)];
    let excess =
        Excess { from_us: 1_000_000, until_us: 1_999_999, admitted_units: 11, max_units: 10 };
    assert_eq!(excess_over(&fixed, &admitted(&more), 0), Some(excess));
    // Across the boundary, it may belong to either window.
    let across = [(1_000_000, 1_000_010, 10), (1_999_000, 2_000_000, 1)];
    assert_eq!(excess_over(&fixed, &admitted(&across), 0), None);
}

/// 10,000 different times are rounded to 4,000 slots.
#[test]
fn excess_in_a_long_history_is_found() {
    for text in
        ["token-bucket capacity=100 refill=1000/s", "sliding-window-log limit=1000 window=1s"]
    {
        let limit = limit(text);
        let mut requests: Vec<(u64, u64, u64)> =
            (0..5_000).map(|number| (number * 1_000, number * 1_000 + 500, 1)).collect();
        assert_eq!(excess_over(&limit, &admitted(&requests), 0), None);
        requests.push((2_000_000, 2_000_900, limit.size() + 50));
        let excess = excess_over(&limit, &admitted(&requests), 0).unwrap();
        assert!(excess.from_us <= 2_000_000 && excess.until_us >= 2_000_900, "{excess}");
    }
}
