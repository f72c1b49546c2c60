//! A server that is killed and started again. It admits at most the charges that it has forgotten once more.

use std::time::{Duration, Instant};

use tollgate::{Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::crowd::Crowd;
use crate::setup::{
    MARGIN, PATIENCE, launch, limited, remaining, start, store_error, until, until_answered, within,
};

const LIMIT: u64 = 100;

/// Makes `count` checks one after the other. Returns how many were allowed.
async fn spend(scope: &Scope, count: u64) -> u64 {
    let mut allowed = 0;
    for _ in 0..count {
        allowed += u64::from(scope.check("a").await.unwrap().is_allowed());
    }
    allowed
}

/// Kills the server, asserts that checks fail at once and not at their deadline, and starts it again.
async fn crash(server: &mut Server, scope: &Scope) {
    server.kill();
    for _ in 0..10 {
        let began = Instant::now();
        match store_error(scope.check("a").await) {
            StoreError::Unreachable { .. } | StoreError::BreakerOpen { .. } => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < MARGIN, "{:?}", began.elapsed());
    }
    server.restart().unwrap();
    until_answered(scope, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_without_a_log_admits_exactly_one_more_burst() {
    for flavour in Flavour::ALL {
        let mut server = start(flavour);
        let scope = limited(&within(&server.url(), PATIENCE), "scope", LIMIT);
        for _ in 0..3 {
            assert_eq!(spend(&scope, LIMIT).await, LIMIT, "{flavour}");
            crash(&mut server, &scope).await;
        }
        assert_eq!(spend(&scope, LIMIT + 10).await, LIMIT, "{flavour}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_with_a_log_synced_always_loses_no_charge() {
    for flavour in Flavour::ALL {
        let logged = Launch::new(flavour).config("appendonly", "yes");
        let mut server = launch(&logged.config("appendfsync", "always"));
        let scope = limited(&within(&server.url(), PATIENCE), "scope", LIMIT);
        for crashes in 1..=3 {
            assert_eq!(spend(&scope, 25).await, 25, "{flavour}");
            crash(&mut server, &scope).await;
            assert_eq!(remaining(&scope, "a").await, LIMIT - crashes * 25, "{flavour}");
        }
        assert_eq!(spend(&scope, 40).await, 25, "{flavour}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_with_a_log_synced_every_second_admits_at_most_one_more_burst() {
    for flavour in Flavour::ALL {
        let logged = Launch::new(flavour).config("appendonly", "yes");
        let mut server = launch(&logged.config("appendfsync", "everysec"));
        let scope = limited(&within(&server.url(), PATIENCE), "scope", LIMIT);
        assert_eq!(spend(&scope, LIMIT).await, LIMIT, "{flavour}");
        crash(&mut server, &scope).await;
        let left = remaining(&scope, "a").await;
        assert_eq!(spend(&scope, 2 * LIMIT).await, left, "{flavour}");
        assert!(left <= LIMIT, "{flavour}: {left}");
    }
}

/// 50 callers spend one burst for every start: no more, and less only by units with an unknown outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_crash_under_load_admits_one_more_burst() {
    const CRASHES: u64 = 3;
    for flavour in Flavour::ALL {
        let mut server = start(flavour);
        let deadline = Duration::from_millis(200);
        let limiter = within(&server.url(), deadline);
        let scope = limited(&limiter, "scope", LIMIT);
        until_answered(&scope, "crowd").await;
        let crowd = Crowd::start(&scope, 50);
        for _ in 0..CRASHES {
            until_spent(&scope).await;
            server.kill();
            server.restart().unwrap();
        }
        until_spent(&scope).await;
        let checks = crowd.checks();
        until("the crowd makes more checks", || crowd.checks() > checks + 10 * LIMIT).await;
        let tally = crowd.stop().await;
        let most = LIMIT * (1 + CRASHES);
        assert!(tally.allowed <= most, "{flavour}: {tally:?}");
        assert!(tally.allowed + tally.unknown >= most, "{flavour}: {tally:?}");
        assert!(tally.slowest < deadline + MARGIN, "{flavour}: {:?}", tally.slowest);
        assert!(tally.denied > LIMIT, "{flavour}: {tally:?}");
    }
}

/// Waits until the crowd's key has nothing left.
async fn until_spent(scope: &Scope) {
    let began = Instant::now();
    while until_answered(scope, "crowd").await > 0 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
