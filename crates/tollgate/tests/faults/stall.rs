//! A server that stands still: everybody is told in time, and it is used again when it goes on.

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

/// How many batches may be lost in a stall: those that open the breaker, and a probe now and then.
/// Without a breaker it is 80.
const MAX_LOST_BATCHES: u64 = 30;
const BATCH: u64 = 64;

/// A load of 200 callers through a stall, which `stall` begins. After [`STALL`], `resume` ends it,
/// unless it ends by itself.
async fn assert_survives(server: &Server, stall: impl FnOnce(), resume: impl FnOnce()) {
    let limiter = within(&server.url(), DEADLINE);
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "crowd").await;
    let crowd = Crowd::start(&scope, 200);
    until("all is well", || crowd.allowed() > 1_000).await;
    let began = Instant::now();
    stall();
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    let before = crowd.allowed();
    while began.elapsed() < STALL {
        tokio::time::sleep(DEADLINE).await;
    }
    resume();
    let resumed = Instant::now();
    until("it recovers", || {
        crowd.allowed() > before + 1_000 && breaker(&limiter) == BreakerState::Closed
    })
    .await;
    assert!(resumed.elapsed() < RECOVERY, "recovered after {:?}", resumed.elapsed());
    let mut told = crowd.stop().await;
    assert!(told.slowest < DEADLINE + MARGIN, "{:?}", told.slowest);
    assert!(told.unknown > 0 && told.denied == 0, "{told:?}");
    assert!(told.unknown <= MAX_LOST_BATCHES * BATCH, "{} of {}", told.unknown, told.asked);
    assert!(told.median_left_alone() < DEADLINE / 5, "{:?}", told.median_left_alone());
    until_answered(&scope, "crowd").await;
    told.assert_charged(LIMIT - remaining(&scope, "crowd").await);
    assert_eq!(limiter.health().unwrap().servers[0].waiting, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_given_up_in_time_and_used_again() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        assert_survives(&server, || server.freeze(), || server.thaw()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_pauses_its_clients_is_given_up_in_time_and_used_again() {
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
async fn a_server_that_sleeps_is_given_up_in_time_and_used_again() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("enable-debug-command", "yes"));
        let mut admin = admin(&server);
        let sleep = || {
            thread::spawn(move || command("DEBUG SLEEP 2").exec(&mut admin).unwrap());
        };
        assert_survives(&server, sleep, || ()).await;
    }
}

/// Every answer is there in time, and says that no server decided it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_continue_without_a_frozen_server() {
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
    let told = crowd.stop().await;
    assert_eq!(told.degraded, told.asked);
    assert!(told.asked > 2_000, "{}", told.asked);
    assert!(told.slowest < DEADLINE + MARGIN, "{:?}", told.slowest);
    // Others may have failed before.
    assert!(limiter.health().unwrap().failed >= told.asked);
    server.thaw();
    until_not_degraded(&scope).await;
    assert!(remaining(&scope, "crowd").await >= LIMIT - told.asked);
}

async fn until_not_degraded(scope: &Scope) {
    let began = Instant::now();
    while scope.peek("crowd").await.unwrap().is_degraded() {
        assert!(began.elapsed() < RECOVERY);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// However many they are, and however many of the patient are before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_deadlines_are_kept_behind_a_long_queue() {
    let server = start(Flavour::Redis);
    let scope = limited(&within(&server.url(), PATIENCE), "scope", LIMIT);
    until_answered(&scope, "a").await;
    server.freeze();
    let patient: Vec<_> = (0..40_000).map(|_| scope.check("a").into_future()).collect();
    let hurried = || scope.check("a").within(2 * DEADLINE).into_future();
    let hurried: Vec<_> = (0..20_000).map(|_| hurried()).collect();
    let began = Instant::now();
    for answer in hurried {
        let error = store_error(answer.await);
        assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    }
    assert!(began.elapsed() < 2 * DEADLINE + MARGIN, "{:?}", began.elapsed());
    server.thaw();
    for answer in patient {
        assert!(answer.await.unwrap().is_allowed());
    }
    // Whoever gave up in the queue was not charged.
    assert_eq!(remaining(&scope, "a").await, LIMIT - 40_000);
}
