//! Refusals that are remembered, instead of asking again.

use std::time::{Duration, Instant};

use redis::Connection;
use tollgate::{ManualClock, Scope};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{LIMITS, PATIENCE, admin, builder, named, open, scripts_run, start};

/// What can be refused and is not over in a second.
const FULL: u64 = 100;

fn scripts(admin: &mut Connection) -> u64 {
    scripts_run(admin)
}

fn setup(server: &Server, text: &str) -> (Scope, Connection) {
    (named(&open(server), text, text), admin(server))
}

#[tokio::test]
async fn a_refusal_answers_for_its_cost_or_more_without_a_command() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in LIMITS {
            let (scope, mut admin) = setup(&server, text);
            scope.check("a").cost(FULL - 4).await.unwrap();
            let refused = scope.check("a").cost(10).await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{flavour}, {text}");
            let asked = scripts(&mut admin);
            for cost in [10, 11, FULL, FULL + 1] {
                let again = scope.check("a").cost(cost).await.unwrap();
                assert!(!again.is_allowed() && again.is_cached(), "{flavour}, {text}, {cost}");
                assert_eq!(again.remaining(), 4, "{flavour}, {text}, {cost}");
                assert_eq!(again.retry_after().is_none(), cost > FULL, "{flavour}, {text}, {cost}");
            }
            assert_eq!(scripts(&mut admin), asked, "{flavour}, {text}");
            // Another key, another scope, a lower cost and a look are asked for.
            assert!(!scope.check("b").cost(10).await.unwrap().is_cached());
            let looked = scope.peek("a").cost(10).await.unwrap();
            assert!(!looked.is_allowed() && !looked.is_cached());
            let lower = scope.check("a").cost(4).await.unwrap();
            assert!(lower.is_allowed() && !lower.is_cached());
            assert_eq!(scripts(&mut admin), asked + 3, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn remembered_wait_counts_down() {
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
        // Counted from before it was sent: never longer than the server said.
        assert!(first <= refused, "{text}");
        // A microsecond each for the rounding of two clocks.
        assert!(
            first - second + Duration::from_micros(2) >= waited,
            "{text}: {first:?} {second:?}"
        );
        assert!(refused - second <= began.elapsed() + Duration::from_micros(2), "{text}");
    }
}

#[tokio::test]
async fn a_refund_and_a_reset_here_are_seen_at_once() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        // A place in a shaping limit that others are behind stays spent.
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
async fn at_the_callers_time_nothing_is_remembered() {
    let server = start(Flavour::Redis);
    let mut admin = admin(&server);
    let clock = ManualClock::at_us(1_000_000_020_000_000);
    let builder = builder(&server.url());
    let timed = builder.prefix("timed:").unwrap().clock(&clock).deadline(PATIENCE).build().unwrap();
    for text in LIMITS {
        let scope = named(&timed, text, text);
        scope.check("a").cost(FULL).await.unwrap();
        let asked = scripts(&mut admin);
        for _ in 0..3 {
            let refused = scope.check("a").await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{text}");
        }
        assert_eq!(scripts(&mut admin), asked + 3, "{text}");

        let (scope, _) = setup(&server, text);
        let at_us = 1_000_000_020_000_000;
        scope.check("a").cost(FULL).at_us(at_us).await.unwrap();
        let asked = scripts(&mut admin);
        for _ in 0..3 {
            let refused = scope.check("a").at_us(at_us).await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{text}");
        }
        assert_eq!(scripts(&mut admin), asked + 3, "{text}");
    }
}

/// A caller of more patience might be allowed, and one of several limits is refused by another.
#[tokio::test]
async fn refusals_that_say_nothing_of_others_are_not_remembered() {
    let server = start(Flavour::Redis);
    let (shaping, _) = setup(&server, LIMITS[5]);
    shaping.check("a").await.unwrap();
    let impatient = shaping.check("a").max_wait(Duration::ZERO).await.unwrap();
    assert!(!impatient.is_allowed());
    let patient = shaping.check("a").await.unwrap();
    assert!(patient.is_allowed() && !patient.is_cached());

    let limiter = open(&server);
    let narrow = named(&limiter, "narrow", LIMITS[0]);
    let wide = named(&limiter, "wide", LIMITS[0]);
    narrow.check("a").cost(FULL).await.unwrap();
    let together = limiter.check_all(&[narrow.check("a"), wide.check("a")]).await.unwrap();
    assert!(!together.is_allowed());
    assert!(wide.check("a").await.unwrap().is_allowed());
}
