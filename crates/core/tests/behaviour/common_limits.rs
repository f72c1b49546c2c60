//! Constructors of common limits: every argument makes a valid limit.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Limit, TokenBucket};

type Constructor = fn(u32) -> TokenBucket;

/// The constructors, each with the unit of its text form and how many such periods 100 years have.
const CONSTRUCTORS: [(Constructor, &str, u64); 4] = [
    (Limit::per_second, "s", 36_525 * 86_400),
    (Limit::per_minute, "m", 36_525 * 1_440),
    (Limit::per_hour, "h", 36_525 * 24),
    (Limit::per_day, "d", 36_525),
];

fn numbers() -> impl Strategy<Value = u32> {
    prop_oneof![0..100_u32, any::<u32>(), Just(u32::MAX)]
}

#[test]
fn common_limits_are_token_buckets_of_that_capacity_and_refill() {
    for (limit, text) in [
        (Limit::per_second(10), "token-bucket capacity=10 refill=10/s"),
        (Limit::per_minute(60), "token-bucket capacity=60 refill=1/s"),
        (Limit::per_hour(5), "token-bucket capacity=5 refill=5/h"),
        (Limit::per_day(1), "token-bucket capacity=1 refill=1/d"),
        (Limit::per_second(10).burst(60), "token-bucket capacity=60 refill=10/s"),
        (Limit::per_second(100).burst(5), "token-bucket capacity=5 refill=100/s"),
        (Limit::per_second(1).burst(9).burst(2), "token-bucket capacity=2 refill=1/s"),
    ] {
        assert_eq!(Limit::from(limit).to_string(), text);
    }
}

#[test]
fn concurrent_makes_the_nearest_limit_and_hold_time() {
    let time = Duration::from_secs;
    for (limit, text) in [
        (Limit::concurrent(10), "concurrency limit=10 for=60s"),
        (Limit::concurrent(0), "concurrency limit=1 for=60s"),
        (Limit::concurrent(1_025), "concurrency limit=1024 for=60s"),
        (Limit::concurrent(1).held_for(time(5)), "concurrency limit=1 for=5s"),
        (Limit::concurrent(1).held_for(time(0)), "concurrency limit=1 for=1us"),
        (Limit::concurrent(1).held_for(Duration::MAX), "concurrency limit=1 for=366d"),
    ] {
        assert_eq!(Limit::from(limit), text.parse().unwrap(), "{text}");
    }
}

#[test]
fn zero_counts_as_one() {
    for (per, _, _) in CONSTRUCTORS {
        assert_eq!(per(0), per(1));
        assert_eq!(per(7).burst(0), per(7).burst(1));
    }
}

#[test]
fn burst_is_lowered_to_what_comes_back_in_100_years() {
    assert_eq!(Limit::per_day(1).burst(36_525).capacity(), 36_525);
    assert_eq!(Limit::per_day(1).burst(36_526).capacity(), 36_525);
    assert_eq!(Limit::per_day(2).burst(u32::MAX).capacity(), 73_050);
    assert_eq!(Limit::per_second(2).burst(u32::MAX).capacity(), u64::from(u32::MAX));
    let slowest: Limit = "token-bucket capacity=1 refill=1/36525d".parse().unwrap();
    let Limit::TokenBucket(slowest) = slowest else { panic!("{slowest}") };
    assert_eq!(slowest.burst(2), slowest);
}

proptest! {
    #[test]
    fn every_number_makes_the_limit_of_its_text(units in numbers(), burst in numbers()) {
        for (per, unit, periods) in CONSTRUCTORS {
            let whole = units.max(1);
            let text = format!("token-bucket capacity={whole} refill={whole}/{unit}");
            prop_assert_eq!(Limit::from(per(units)), text.parse().unwrap());

            let most = u64::from(whole) * periods;
            let capacity = u64::from(burst.max(1)).min(most);
            let text = format!("token-bucket capacity={capacity} refill={whole}/{unit}");
            let limit = Limit::from(per(units).burst(burst));
            prop_assert_eq!(limit, text.parse().unwrap());
            prop_assert_eq!(limit.to_string().parse(), Ok(limit));
        }
    }

    #[test]
    fn burst_keeps_any_buckets_refill((capacity, rate) in tollgate_conformance::any::capacity_and_rate(), burst in any::<u32>()) {
        let bucket = TokenBucket::new(capacity, rate).unwrap().burst(burst);
        prop_assert_eq!(bucket.refill(), rate);
        prop_assert_eq!(TokenBucket::new(bucket.capacity(), rate), Ok(bucket));
    }
}
