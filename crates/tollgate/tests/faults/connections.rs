//! Connections that break, lead nowhere or say nothing.

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

/// As load balancers and servers do with connections that nobody has used for a while. Now and then the
/// next check is faster than the news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connection_that_was_closed_fails_no_check() {
    const ROUNDS: u64 = 30;
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = within(&server.url(), PATIENCE);
        let scope = limited(&limiter, "scope", LIMIT);
        let mut failed = 0;
        for _ in 0..ROUNDS {
            until_answered(&scope, "a").await;
            // The limiter's, and perhaps one of this test's own that the server has not seen closing yet.
            assert!(ask::<u64>(&server, "CLIENT KILL TYPE normal") >= 1, "{flavour}");
            for _ in 0..20 {
                ask::<()>(&server, "PING");
                tokio::task::yield_now().await;
            }
            failed += u64::from(scope.check("a").await.is_err());
        }
        assert!(failed <= ROUNDS / 3, "{flavour}: {failed} of {ROUNDS} were told");
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
        until("it is used again", || crowd.allowed() > before + 1_000).await;
        assert!(began.elapsed() < PATIENCE / 3, "{flavour}: {:?}", began.elapsed());
        let told = crowd.stop().await;
        assert!(told.slowest < deadline + MARGIN, "{flavour}: {:?}", told.slowest);
        until_answered(&scope, "crowd").await;
        told.assert_charged(LIMIT - remaining(&scope, "crowd").await);
        assert_eq!(told.denied, 0, "{flavour}");
    }
}

/// The kernel takes the connections; nobody ever reads from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_never_answers_is_given_up_in_time() {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    let deadline = Duration::from_millis(50);
    let limiter = within(&format!("redis://{}", listener.local_addr().unwrap()), deadline);
    let crowd = Crowd::start(&limited(&limiter, "scope", LIMIT), 200);
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    until("many were told", || limiter.health().unwrap().failed > 10_000).await;
    let mut told = crowd.stop().await;
    assert_eq!(told.refused + told.unknown, told.asked);
    assert!(told.slowest < deadline + MARGIN, "{:?}", told.slowest);
    assert!(told.median_left_alone() < deadline / 5, "{:?}", told.median_left_alone());
    // At most one that opens, and one that was given up and is not yet gone.
    listener.set_nonblocking(true).unwrap();
    let opened = std::iter::from_fn(|| listener.accept().ok()).count();
    assert!((1..=3).contains(&opened), "{opened}");
}

/// An address that nobody listens on, and that no server of another test will: those are on
/// 127.0.0.1.
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
    // Unless the machine stood still meanwhile.
    let error = store_error(scope.check("a").await);
    assert!(error.to_string().contains("refused"), "{error}");
    if let StoreError::BreakerOpen { again_in, failure, .. } = error {
        assert!(again_in <= Duration::from_millis(120), "{again_in:?}");
        assert!(failure.contains("refused"), "{failure}");
    }
    until("it is left alone", || breaker(&limiter) != BreakerState::Closed).await;
}

#[tokio::test]
async fn unknown_host_is_an_error_in_time() {
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
