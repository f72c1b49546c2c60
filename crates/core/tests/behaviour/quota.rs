//! `limited_to`: the same algorithm with other numbers.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Limit, LimitError};

use tollgate_conformance::any;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn limited_to_changes_only_the_numbers() {
    for (limit, wanted) in [
        ("fixed-window limit=1 window=1s", "fixed-window limit=90 window=1h"),
        ("sliding-window-log limit=1 window=1s", "sliding-window-log limit=90 window=1h"),
        ("sliding-window-counter limit=1 window=1s", "sliding-window-counter limit=90 window=1h"),
        ("token-bucket capacity=1 refill=7/s", "token-bucket capacity=90 refill=90/h"),
        ("leaky-bucket capacity=1 leak=7/s", "leaky-bucket capacity=90 leak=90/h"),
        (
            "leaky-bucket capacity=1 leak=7/s mode=shaping",
            "leaky-bucket capacity=90 leak=90/h mode=shaping",
        ),
        ("concurrency limit=1 for=7s", "concurrency limit=90 for=1h"),
    ] {
        let limit: Limit = limit.parse().unwrap();
        assert_eq!(limit.limited_to(90, HOUR), Ok(wanted.parse().unwrap()));
    }
}

#[test]
fn limited_to_refuses_a_log_above_65536_units() {
    let log: Limit = "sliding-window-log limit=1 window=1s".parse().unwrap();
    assert!(log.limited_to(65_536, HOUR).is_ok());
    assert_eq!(log.limited_to(65_537, HOUR), Err(LimitError::LogTooLarge { limit: 65_537 }));
}

proptest! {
    /// Envoy can send these numbers. A log refuses the ones above 65,536.
    #[test]
    fn every_nonzero_number_of_32_bits_makes_a_limit_of_that_size(
        limit in any::limit(),
        units in any::<u32>(),
        per_s in prop::sample::select(&[1, 60, 3_600, 86_400, 2_592_000, 31_536_000][..]),
    ) {
        let made = limit.limited_to(units.into(), Duration::from_secs(per_s));
        match (units, &made) {
            (0, Err(LimitError::Zero { .. })) => {}
            (65_537.., Err(LimitError::LogTooLarge { .. })) => {}
            (_, Ok(own)) => {
                prop_assert_eq!((own.name(), own.size()), (limit.name(), units.into()));
                prop_assert_eq!(own.is_shaping(), limit.is_shaping());
                prop_assert_eq!(own.bound().interval_us, per_s * 1_000_000);
            }
            _ => prop_assert!(false, "{units}: {made:?}"),
        }
    }
}
