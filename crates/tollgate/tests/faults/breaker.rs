//! When the breaker of a server opens, how it probes the server, and when it closes.

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

/// The most probes in this time. Before each probe is a pause: 100 ms, doubled each time up to 1 s, and
/// shortened at random by up to a fifth.
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
async fn open_breaker_sends_one_probe_at_a_time_when_replies_are_lost() {
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
        // One batch may be in flight to the proxy when the breaker opens.
        assert!((1..=most + 1).contains(&scripts), "{flavour}: {scripts}, not {most}");
        proxy.pass();
        let passed = Instant::now();
        until("the breaker closes", || breaker(&limiter) == BreakerState::Closed).await;
        assert!(passed.elapsed() < RECOVERY, "{flavour}: {:?}", passed.elapsed());
        let before = crowd.allowed();
        until("the server is used again", || crowd.allowed() > before + 1_000).await;
        let tally = crowd.stop().await;
        until_answered(&scope, "crowd").await;
        tally.assert_charged(LIMIT - remaining(&scope, "crowd").await);
    }
}

/// Starts a server that closes every connection at once. Returns its URL and the count of connections.
fn start_closing_server() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&connections);
    thread::spawn(move || {
        for client in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(client);
        }
    });
    (url, connections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_closes_every_connection_is_probed_a_few_times_a_second() {
    let (url, connections) = start_closing_server();
    let limiter = within(&url, Duration::from_millis(500));
    let began = Instant::now();
    let crowd = Crowd::start(&limited(&limiter, "scope", LIMIT), 100);
    until("the breaker opens", || breaker(&limiter) == BreakerState::Open).await;
    let opened = Instant::now();
    while opened.elapsed() < Duration::from_secs(2) {
        assert_ne!(breaker(&limiter), BreakerState::Closed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Five failures open the breaker; two batches may be in flight at a time.
    let most = 6 + most_probes(began.elapsed());
    let tally = crowd.stop().await;
    let connections = connections.load(Ordering::SeqCst);
    assert!((6..=most + 1).contains(&connections), "{connections}, not {most}");
    assert_eq!(tally.refused + tally.unknown, tally.checks);
    assert!(tally.checks > 5_000, "{}", tally.checks);
    assert!(tally.slowest < MARGIN, "{:?}", tally.slowest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_opens_on_refused_connections_and_closes_on_accepted_ones() {
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

/// The pause between probes stops growing at 1 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_outage_ends_soon_after_its_cause() {
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
    until("the server is used again", || crowd.allowed() > before).await;
    assert!(accepted.elapsed() < LONGEST_PAUSE + MARGIN, "{:?}", accepted.elapsed());
    let tally = crowd.stop().await;
    tally.assert_charged(LIMIT - until_answered(&scope, "crowd").await);
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
async fn breaker_stays_closed_when_replies_are_slow_but_in_time() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let deadline = Duration::from_secs(1);
    let limiter = within(&proxy.url(), deadline);
    let scope = limited(&limiter, "scope", LIMIT);
    until_answered(&scope, "crowd").await;
    proxy.delay(move || deadline / 2);
    let before = proxy.scripts_passed();
    // Some checks time out in the queue behind others, which does not count against the server.
    let crowd = Crowd::start(&scope, 200);
    let began = Instant::now();
    while began.elapsed() < 4 * deadline {
        assert_eq!(breaker(&limiter), BreakerState::Closed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let tally = crowd.stop().await;
    assert!(proxy.scripts_passed() >= before + 10);
    assert!(tally.took_when_open.is_empty());
    assert!(tally.slowest < deadline + MARGIN, "{:?}", tally.slowest);
    tally.assert_charged(LIMIT - until_answered(&scope, "crowd").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_stays_closed_after_one_late_reply() {
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
    // The next check is answered as soon as the late reply has come.
    assert!(scope.check("a").await.unwrap().is_allowed());
    assert_eq!(breaker(&limiter), BreakerState::Closed);
    assert_eq!(remaining(&scope, "a").await, LIMIT - 2);
}
