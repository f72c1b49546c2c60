//! The deny cache: refusals that are answered without a round trip.

use std::time::{Duration, Instant};

use redis::Connection;
use tollgate::{ManualClock, Scope};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{LIMITS, PATIENCE, admin, builder, named, open, scripts_run, start};

/// The size of every limit. A refusal lasts longer than a second.
const FULL: u64 = 100;

fn scripts(admin: &mut Connection) -> u64 {
    scripts_run(admin)
}

fn setup(server: &Server, text: &str) -> (Scope, Connection) {
    (named(&open(server), text, text), admin(server))
}

#[tokio::test]
async fn cached_refusal_answers_the_same_or_a_higher_cost_without_a_command() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let (scope, mut admin) = setup(&server, text);
            scope.check("a").cost(FULL - 4).await.unwrap();
            let refused = scope.check("a").cost(10).await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{flavour}, {text}");
            let before = scripts(&mut admin);
            for cost in [10, 11, FULL, FULL + 1] {
                let again = scope.check("a").cost(cost).await.unwrap();
                assert!(!again.is_allowed() && again.is_cached(), "{flavour}, {text}, {cost}");
                assert_eq!(again.remaining(), 4, "{flavour}, {text}, {cost}");
                assert_eq!(again.retry_after().is_none(), cost > FULL, "{flavour}, {text}, {cost}");
            }
            assert_eq!(scripts(&mut admin), before, "{flavour}, {text}");
            // Another key, a peek and a lower cost are sent to the server.
            assert!(!scope.check("b").cost(10).await.unwrap().is_cached());
            let peeked = scope.peek("a").cost(10).await.unwrap();
            assert!(!peeked.is_allowed() && !peeked.is_cached());
            let lower = scope.check("a").cost(4).await.unwrap();
            assert!(lower.is_allowed() && !lower.is_cached());
            assert_eq!(scripts(&mut admin), before + 3, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn cached_wait_counts_down() {
    let server = start(Flavour::Redis);
    for text in LIMITS {
        let (scope, _) = setup(&server, text);
        scope.check("a").cost(FULL).await.unwrap();
        let began = Instant::now();
        let refused = scope.check("a").await.unwrap().retry_after().unwrap();
        let first = scope.check("a").await.unwrap();
        let between = Instant::now();
        while between.elapsed() < Duration::from_millis(3) {}
        let waited = between.elapsed();
        let second = scope.check("a").await.unwrap();
        assert!(first.is_cached() && second.is_cached(), "{text}");
        let (first, second) = (first.retry_after().unwrap(), second.retry_after().unwrap());
        // The wait counts from before the check was sent, so it is never longer than the server's.
        assert!(first <= refused, "{text}");
        // One microsecond for the rounding of each clock.
        assert!(
            first - second + Duration::from_micros(2) >= waited,
            "{text}: {first:?} {second:?}"
        );
        assert!(refused - second <= began.elapsed() + Duration::from_micros(2), "{text}");
    }
}

#[tokio::test]
async fn refund_and_reset_clear_the_cached_refusal() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        // Without the shaping limit, which refunds only its last charge.
        for text in &LIMITS[..5] {
            let (scope, _) = setup(&server, text);
            let receipt = scope.check("a").cost(FULL).await.unwrap().into_receipt().unwrap();
            assert!(!scope.check("a").await.unwrap().is_allowed());
            assert!(scope.check("a").await.unwrap().is_cached());
            scope.refund("a", receipt).await.unwrap();
            let after = scope.check("a").cost(FULL).await.unwrap();
            assert!(after.is_allowed() && !after.is_cached(), "{flavour}, {text}");
            assert!(!scope.check("a").await.unwrap().is_allowed());
            assert!(scope.check("a").await.unwrap().is_cached());
            scope.reset("a").await.unwrap();
            assert!(scope.check("a").cost(FULL).await.unwrap().is_allowed(), "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn refusals_at_a_callers_time_are_not_cached() {
    let server = start(Flavour::Redis);
    let mut admin = admin(&server);
    let clock = ManualClock::at_us(1_000_000_020_000_000);
    let builder = builder(&server.url());
    let timed = builder.prefix("timed:").unwrap().clock(&clock).deadline(PATIENCE).build().unwrap();
    for text in LIMITS {
        let scope = named(&timed, text, text);
        scope.check("a").cost(FULL).await.unwrap();
        let before = scripts(&mut admin);
        for _ in 0..3 {
            let refused = scope.check("a").await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{text}");
        }
        assert_eq!(scripts(&mut admin), before + 3, "{text}");

        let (scope, _) = setup(&server, text);
        let at_us = 1_000_000_020_000_000;
        scope.check("a").cost(FULL).at_us(at_us).await.unwrap();
        let before = scripts(&mut admin);
        for _ in 0..3 {
            let refused = scope.check("a").at_us(at_us).await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{text}");
        }
        assert_eq!(scripts(&mut admin), before + 3, "{text}");
    }
}

/// A caller with a longer `max_wait` might be allowed. In a joint check the other limit may be the one that refuses.
#[tokio::test]
async fn refusals_by_max_wait_or_by_another_limit_are_not_cached() {
    let server = start(Flavour::Redis);
    let (shaping, _) = setup(&server, LIMITS[5]);
    shaping.check("a").await.unwrap();
    let refused = shaping.check("a").max_wait(Duration::ZERO).await.unwrap();
    assert!(!refused.is_allowed());
    let allowed = shaping.check("a").await.unwrap();
    assert!(allowed.is_allowed() && !allowed.is_cached());

    let limiter = open(&server);
    let narrow = named(&limiter, "narrow", LIMITS[0]);
    let wide = named(&limiter, "wide", LIMITS[0]);
    narrow.check("a").cost(FULL).await.unwrap();
    let together = limiter.check_all(&[narrow.check("a"), wide.check("a")]).await.unwrap();
    assert!(!together.is_allowed());
    assert!(wide.check("a").await.unwrap().is_allowed());
}
