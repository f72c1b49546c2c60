//! Connections that break, cannot be opened, or carry no reply.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tollgate::{BreakerState, Error, StoreError};
use tollgate_launcher::Flavour;

use crate::crowd::Crowd;
use crate::setup::{
    MARGIN, PATIENCE, ask, breaker, limited, remaining, start, store_error, until, until_answered,
    within,
};

const LIMIT: u64 = 1_000_000_000;

/// Load balancers and servers close idle connections. A check fails only if it is sent before the limiter
/// has seen that its connection is closed: at most 10 of 30 here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closed_while_idle_rarely_fails_a_check() {
    const ROUNDS: u64 = 30;
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = within(&server.url(), PATIENCE);
        let scope = limited(&limiter, "scope", LIMIT);
        let mut failed = 0;
        for _ in 0..ROUNDS {
            until_answered(&scope, "a").await;
            // The limiter's connection, and perhaps one of this test that the server has not seen closing yet.
            assert!(ask::<u64>(&server, "CLIENT KILL TYPE normal") >= 1, "{flavour}");
            for _ in 0..20 {
                ask::<()>(&server, "PING");
                tokio::task::yield_now().await;
            }
            failed += u64::from(scope.check("a").await.is_err());
        }
        assert!(failed <= ROUNDS / 3, "{flavour}: {failed} of {ROUNDS} checks failed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_charge_no_check_twice() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let deadline = Duration::from_millis(500);
        let limiter = within(&server.url(), deadline);
        let scope = limited(&limiter, "scope", LIMIT);
        until_answered(&scope, "crowd").await;
        let crowd = Crowd::start(&scope, 100);
        let mut killed = 0;
        while killed < 30 {
            killed += ask::<u64>(&server, "CLIENT KILL TYPE normal");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before = crowd.allowed();
        let began = Instant::now();
        until("the server is used again", || crowd.allowed() > before + 1_000).await;
        assert!(began.elapsed() < PATIENCE / 3, "{flavour}: {:?}", began.elapsed());
        let tally = crowd.stop().await;
        assert!(tally.slowest < deadline + MARGIN, "{flavour}: {:?}", tally.slowest);
        until_answered(&scope, "crowd").await;
        tally.assert_charged(LIMIT - remaining(&scope, "crowd").await);
        assert_eq!(tally.denied, 0, "{flavour}");
    }
}

/// The kernel accepts the connections; no process reads from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_never_answers_fails_in_time_and_opens_the_breaker() {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    let deadline = Duration::from_millis(50);
    let limiter = within(&format!("redis://{}", listener.local_addr().unwrap()), deadline);
    let crowd = Crowd::start(&limited(&limiter, "scope", LIMIT), 200);
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    until("10,000 checks have failed", || limiter.health().unwrap().failed > 10_000).await;
    let mut tally = crowd.stop().await;
    assert_eq!(tally.refused + tally.unknown, tally.checks);
    assert!(tally.slowest < deadline + MARGIN, "{:?}", tally.slowest);
    assert!(tally.median_when_open() < deadline / 5, "{:?}", tally.median_when_open());
    // At most one that is opening, and others that were given up and are not closed yet: 3 in all.
    listener.set_nonblocking(true).unwrap();
    let opened = std::iter::from_fn(|| listener.accept().ok()).count();
    assert!((1..=3).contains(&opened), "{opened}");
}

/// An address on which nothing listens. Servers of other tests use 127.0.0.1, so none of them takes it.
fn free_addr() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn closed_port_is_tried_five_times_before_the_breaker_opens() {
    let limiter = within(&format!("redis://{}", free_addr()), PATIENCE);
    let scope = limited(&limiter, "scope", LIMIT);
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(breaker(&limiter), BreakerState::Closed);
        let error = store_error(scope.check("a").await);
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    }
    assert!(began.elapsed() < MARGIN, "{:?}", began.elapsed());
    // The breaker is open, unless the machine was so slow that this check is already the probe.
    let error = store_error(scope.check("a").await);
    assert!(error.to_string().contains("refused"), "{error}");
    if let StoreError::BreakerOpen { again_in, failure, .. } = error {
        assert!(again_in <= Duration::from_millis(120), "{again_in:?}");
        assert!(failure.contains("refused"), "{failure}");
    }
    until("the breaker opens", || breaker(&limiter) != BreakerState::Closed).await;
}

#[tokio::test]
async fn unknown_host_fails_in_time() {
    let deadline = Duration::from_millis(50);
    let limiter = within("redis://no-such-host.invalid:6379", deadline);
    let scope = limited(&limiter, "scope", LIMIT);
    for _ in 0..20 {
        let began = Instant::now();
        match scope.check("a").await {
            Err(Error::Store(
                StoreError::Unreachable { .. }
                | StoreError::Timeout { .. }
                | StoreError::BreakerOpen { .. },
            )) => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < deadline + MARGIN, "{:?}", began.elapsed());
    }
    assert_ne!(breaker(&limiter), BreakerState::Closed);
}
