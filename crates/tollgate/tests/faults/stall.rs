//! A server that stalls. Every caller gets an answer in time, and the server is used again when it resumes.

use std::thread;
use std::time::{Duration, Instant};

use tollgate::{BreakerState, OnFailure, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::crowd::Crowd;
use crate::setup::{
    MARGIN, PATIENCE, RECOVERY, admin, ask, breaker, builder, command, launch, limited, remaining,
    start, store_error, until, until_answered, within,
};

const DEADLINE: Duration = Duration::from_millis(50);
const STALL: Duration = Duration::from_secs(2);
const LIMIT: u64 = 1_000_000_000;

/// The most batches that may be lost in a stall: the batches that open the breaker, and the probes.
/// Without a breaker there would be 80.
const MAX_LOST_BATCHES: u64 = 30;
const BATCH: u64 = 64;

/// Runs 200 callers through a stall. `stall` begins it, and `resume` ends it after [`STALL`] unless it ends
/// by itself.
async fn assert_survives(server: &Server, stall: impl FnOnce(), resume: impl FnOnce()) {
    let limiter = within(&server.url(), DEADLINE);
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "crowd").await;
    let crowd = Crowd::start(&scope, 200);
    until("1,000 checks are allowed", || crowd.allowed() > 1_000).await;
    let began = Instant::now();
    stall();
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    let before = crowd.allowed();
    while began.elapsed() < STALL {
        tokio::time::sleep(DEADLINE).await;
    }
    resume();
    let resumed = Instant::now();
    until("the limiter recovers", || {
        crowd.allowed() > before + 1_000 && breaker(&limiter) == BreakerState::Closed
    })
    .await;
    assert!(resumed.elapsed() < RECOVERY, "recovered after {:?}", resumed.elapsed());
    let mut tally = crowd.stop().await;
    assert!(tally.slowest < DEADLINE + MARGIN, "{:?}", tally.slowest);
    assert!(tally.unknown > 0 && tally.denied == 0, "{tally:?}");
    assert!(tally.unknown <= MAX_LOST_BATCHES * BATCH, "{} of {}", tally.unknown, tally.checks);
    assert!(tally.median_when_open() < DEADLINE / 5, "{:?}", tally.median_when_open());
    until_answered(&scope, "crowd").await;
    tally.assert_charged(LIMIT - remaining(&scope, "crowd").await);
    assert_eq!(limiter.health().unwrap().servers[0].waiting, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_server_fails_in_time_and_is_used_again() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        assert_survives(&server, || server.freeze(), || server.thaw()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_pauses_clients_fails_in_time_and_is_used_again() {
    for (flavour, pause) in [
        (Flavour::Redis, "CLIENT PAUSE 2000 ALL"),
        (Flavour::Redis, "CLIENT PAUSE 2000 WRITE"),
        (Flavour::Valkey, "CLIENT PAUSE 2000 WRITE"),
    ] {
        let server = start(flavour);
        assert_survives(&server, || ask(&server, pause), || ()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeping_server_fails_in_time_and_is_used_again() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("enable-debug-command", "yes"));
        let mut admin = admin(&server);
        let sleep = || {
            thread::spawn(move || command("DEBUG SLEEP 2").exec(&mut admin).unwrap());
        };
        assert_survives(&server, sleep, || ()).await;
    }
}

/// Every decision comes in time and is marked degraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_policy_decides_in_time_while_the_server_is_frozen() {
    let server = start(Flavour::Redis);
    let open = builder(&server.url()).on_failure(OnFailure::Open);
    let limiter = open.deadline(DEADLINE).build().unwrap();
    let scope = limited(&limiter, "scope", LIMIT);
    until_not_degraded(&scope).await;
    server.freeze();
    let crowd = Crowd::start(&scope, 200);
    let began = Instant::now();
    while began.elapsed() < STALL / 2 {
        tokio::time::sleep(DEADLINE).await;
    }
    let tally = crowd.stop().await;
    assert_eq!(tally.degraded, tally.checks);
    assert!(tally.checks > 2_000, "{}", tally.checks);
    assert!(tally.slowest < DEADLINE + MARGIN, "{:?}", tally.slowest);
    // Checks may also have failed before the freeze.
    assert!(limiter.health().unwrap().failed >= tally.checks);
    server.thaw();
    until_not_degraded(&scope).await;
    assert!(remaining(&scope, "crowd").await >= LIMIT - tally.checks);
}

async fn until_not_degraded(scope: &Scope) {
    let began = Instant::now();
    while scope.peek("crowd").await.unwrap().is_degraded() {
        assert!(began.elapsed() < RECOVERY);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// 20,000 checks with short deadlines are queued behind 40,000 with long ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_deadlines_are_kept_behind_a_long_queue() {
    let server = start(Flavour::Redis);
    let scope = limited(&within(&server.url(), PATIENCE), "scope", LIMIT);
    until_answered(&scope, "a").await;
    server.freeze();
    let long: Vec<_> = (0..40_000).map(|_| scope.check("a").into_future()).collect();
    let short = || scope.check("a").within(2 * DEADLINE).into_future();
    let short: Vec<_> = (0..20_000).map(|_| short()).collect();
    let began = Instant::now();
    for answer in short {
        let error = store_error(answer.await);
        assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    }
    assert!(began.elapsed() < 2 * DEADLINE + MARGIN, "{:?}", began.elapsed());
    server.thaw();
    for answer in long {
        assert!(answer.await.unwrap().is_allowed());
    }
    // Checks that timed out in the queue were not charged.
    assert_eq!(remaining(&scope, "a").await, LIMIT - 40_000);
}
