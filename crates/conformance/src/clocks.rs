//! P6: a key's time never runs backwards past its last charge, and a new clock locks no key out.

use std::time::Duration;

use tollgate_core::MAX_STEP_BACK_US;

use crate::store::{LIMITS, Make, S, START_US, open, scope};

pub async fn key_time_stops_while_the_clock_is_a_little_behind(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").cost(9).await.unwrap();
        let at_floor = scope.peek("a").cost(5).await.unwrap();
        for back_us in [1, S, MAX_STEP_BACK_US] {
            clock.set_us(START_US - back_us);
            let behind = scope.peek("a").cost(5).await.unwrap();
            let later = Duration::from_micros(back_us);
            assert_eq!(behind.remaining(), 1, "{text}");
            assert_eq!(
                behind.retry_after(),
                at_floor.retry_after().map(|wait| wait + later),
                "{text}"
            );
            assert_eq!(behind.reset_after(), at_floor.reset_after() + later, "{text}");
        }
        // A charge while the clock is behind counts as made at the floor.
        let last = scope.check("a").await.unwrap();
        assert!(last.is_allowed(), "{text}");
        clock.set_us(START_US);
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 0, "{text}");
    }
}

pub async fn new_clock_keeps_spent_units_and_locks_no_key_out(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").cost(10).await.unwrap();
        // A whole number of minutes, so that window counters are at the same point of a window.
        clock.set_us(START_US - 3_600 * S);
        let refused = scope.check("a").await.unwrap();
        assert!(!refused.is_allowed(), "{text}: spent units stay spent");
        let wait = refused.retry_after().unwrap();
        assert!(wait <= Duration::from_secs(120), "{text}: {wait:?}");
        clock.advance(wait - Duration::from_micros(1));
        assert!(!scope.check("a").await.unwrap().is_allowed(), "{text}");
        clock.advance(Duration::from_micros(1));
        assert!(scope.check("a").await.unwrap().is_allowed(), "{text}");
    }
}

pub async fn check_is_decided_at_the_time_given_with_it(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        assert!(scope.check("a").cost(10).at_us(START_US + 5 * S).await.unwrap().is_allowed());
        clock.set_us(START_US + 5 * S);
        let refused = scope.check("a").cost(10).await.unwrap();
        let wait_us = refused.decided().retry_after_us().unwrap();
        let early = scope.check("a").cost(10).at_us(START_US + 5 * S + wait_us - 1).await.unwrap();
        assert_eq!(early.decided().retry_after_us(), Some(1), "{text}");
        let due = scope.check("a").cost(10).at_us(START_US + 5 * S + wait_us).await.unwrap();
        assert!(due.is_allowed(), "{text}");
    }
}

pub async fn earliest_and_latest_times_are_accepted(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        for now_us in [0, 1, tollgate_core::MAX_TIME_US, u64::MAX] {
            clock.set_us(now_us);
            assert_eq!(scope.check("a").cost(4).await.unwrap().limit(), 10, "{text}");
            scope.entries("a").await.unwrap();
        }
        clock.set_us(u64::MAX);
        assert!(!scope.check("a").cost(10).await.unwrap().is_allowed(), "{text}");
        clock.set_us(0);
        assert!(!scope.check("a").cost(10).await.unwrap().is_allowed(), "{text}");
    }
}
