//! When a server is left alone, and how it is tried again.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::{BreakerState, StoreError};
use tollgate_launcher::{Flavour, Proxy};

use crate::crowd::Crowd;
use crate::setup::{
    MARGIN, RECOVERY, breaker, limited, remaining, start, store_error, until, until_answered,
    within,
};

const LIMIT: u64 = 1_000_000_000;

/// How many probes there can be in this time: a pause before each, of a tenth of a second, twice as
/// long each time up to a second, and a fifth less at most.
fn most_probes(elapsed: Duration) -> u64 {
    let mut pause = Duration::from_millis(80);
    let (mut at, mut probes) = (pause, 0);
    while at <= elapsed {
        probes += 1;
        pause = (2 * pause).min(Duration::from_millis(800));
        at += pause;
    }
    probes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_probe_at_a_time_goes_to_a_server_whose_replies_are_lost() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let proxy = Proxy::start(server.addr()).unwrap();
        let limiter = within(&proxy.url(), Duration::from_millis(50));
        let scope = limited(&limiter, "scope", LIMIT);
        until_answered(&scope, "crowd").await;
        proxy.drop_replies(u64::MAX);
        let crowd = Crowd::start(&scope, 100);
        until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
        let (opened, before) = (Instant::now(), proxy.scripts_passed());
        while opened.elapsed() < Duration::from_secs(2) {
            assert_ne!(breaker(&limiter), BreakerState::Closed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (scripts, most) = (proxy.scripts_passed() - before, most_probes(opened.elapsed()));
        // One may be on its way to the proxy when the breaker opens.
        assert!((1..=most + 1).contains(&scripts), "{flavour}: {scripts}, not {most}");
        proxy.pass();
        let passed = Instant::now();
        until("it closes", || breaker(&limiter) == BreakerState::Closed).await;
        assert!(passed.elapsed() < RECOVERY, "{flavour}: {:?}", passed.elapsed());
        let before = crowd.allowed();
        until("it is used again", || crowd.allowed() > before + 1_000).await;
        let told = crowd.stop().await;
        until_answered(&scope, "crowd").await;
        told.assert_charged(LIMIT - remaining(&scope, "crowd").await);
    }
}

/// Slams the door in everybody's face, and counts how often.
fn slamming() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let knocks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&knocks);
    thread::spawn(move || {
        for client in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(client);
        }
    });
    (url, knocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_every_connection_is_tried_a_few_times_a_second() {
    let (url, knocks) = slamming();
    let limiter = within(&url, Duration::from_millis(500));
    let began = Instant::now();
    let crowd = Crowd::start(&limited(&limiter, "scope", LIMIT), 100);
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    let opened = Instant::now();
    while opened.elapsed() < Duration::from_secs(2) {
        assert_ne!(breaker(&limiter), BreakerState::Closed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Five open it; two batches may go at a time.
    let most = 6 + most_probes(began.elapsed());
    let told = crowd.stop().await;
    let knocks = knocks.load(Ordering::SeqCst);
    assert!((6..=most + 1).contains(&knocks), "{knocks}, not {most}");
    assert_eq!(told.refused + told.unknown, told.asked);
    assert!(told.asked > 5_000, "{}", told.asked);
    assert!(told.slowest < MARGIN, "{:?}", told.slowest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_open_it_and_accepted_ones_close_it() {
    let server = start(Flavour::Valkey);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = within(&proxy.url(), Duration::from_millis(500));
    let scope = limited(&limiter, "scope", LIMIT);
    for _ in 0..2 {
        until_answered(&scope, "a").await;
        assert_eq!(breaker(&limiter), BreakerState::Closed);
        proxy.refuse_connections();
        proxy.cut_connections();
        until_open(&limiter, &scope).await;
        proxy.accept_connections();
    }
    until_answered(&scope, "a").await;
    assert_eq!(breaker(&limiter), BreakerState::Closed);
}

/// However long it lasted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_outage_is_over_soon_after_its_cause_is() {
    const LONGEST_PAUSE: Duration = Duration::from_millis(1_200);
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = within(&proxy.url(), Duration::from_millis(500));
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "crowd").await;
    proxy.refuse_connections();
    proxy.cut_connections();
    let crowd = Crowd::start(&scope, 10);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = crowd.allowed();
    proxy.accept_connections();
    let accepted = Instant::now();
    until("it is used again", || crowd.allowed() > before).await;
    assert!(accepted.elapsed() < LONGEST_PAUSE + MARGIN, "{:?}", accepted.elapsed());
    let told = crowd.stop().await;
    told.assert_charged(LIMIT - until_answered(&scope, "crowd").await);
}

async fn until_open(limiter: &tollgate::Limiter, scope: &tollgate::Scope) {
    let began = Instant::now();
    while breaker(limiter) == BreakerState::Closed {
        assert!(began.elapsed() < RECOVERY);
        match store_error(scope.check("a").await) {
            StoreError::Unreachable { .. } | StoreError::BreakerOpen { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_but_in_time_is_not_left_alone() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let deadline = Duration::from_secs(1);
    let limiter = within(&proxy.url(), deadline);
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "crowd").await;
    proxy.delay(move || deadline / 2);
    let before = proxy.scripts_passed();
    // Some wait for others until it is too late for themselves; the server is not to blame.
    let crowd = Crowd::start(&scope, 200);
    let began = Instant::now();
    while began.elapsed() < 4 * deadline {
        assert_eq!(breaker(&limiter), BreakerState::Closed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = crowd.stop().await;
    assert!(proxy.scripts_passed() >= before + 10);
    assert!(told.left_alone.is_empty());
    assert!(told.slowest < deadline + MARGIN, "{:?}", told.slowest);
    told.assert_charged(LIMIT - until_answered(&scope, "crowd").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_slow_once_is_not_left_alone() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let deadline = Duration::from_millis(500);
    let limiter = within(&proxy.url(), deadline);
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "a").await;
    let mut delays = [deadline * 3 / 2].into_iter();
    proxy.delay(move || delays.next().unwrap_or_default());
    let error = store_error(scope.check("a").await);
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    // The next is answered as soon as the slow one is.
    assert!(scope.check("a").await.unwrap().is_allowed());
    assert_eq!(breaker(&limiter), BreakerState::Closed);
    assert_eq!(remaining(&scope, "a").await, LIMIT - 2);
}
