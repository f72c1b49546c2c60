//! P10: a failure is an error and not a denial, and ends with its cause.

use std::time::{Duration, Instant};

use redis::Connection;
use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::fake::{Mute, Proxy};
use crate::setup::{
    LIMITS, PATIENCE, admin, at, free_addr, launch, named, open, refusal, remaining, start,
    store_error, within,
};

fn config(admin: &mut Connection, name: &str, value: &str) {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(admin).unwrap();
}

fn assert_unreachable<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = store_error(answer);
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn closed_port_is_an_error_at_once() {
    let scope = named(&at(&format!("redis://{}", free_addr())), "scope", LIMITS[0]);
    let began = Instant::now();
    for _ in 0..4 {
        assert_unreachable(scope.check("a").await);
    }
    assert_unreachable(scope.acquire("a").await);
    assert!(began.elapsed() < PATIENCE / 3, "{:?}", began.elapsed());
}

#[tokio::test]
async fn no_answer_in_time_is_a_timeout() {
    let mute = Mute::start();
    let deadline = Duration::from_millis(60);
    let scope = named(&within(&mute.url(), deadline), "scope", LIMITS[0]);
    for _ in 0..3 {
        let began = Instant::now();
        // The checks in the queue behind the first batch have the same deadline.
        let answers: Vec<_> = (0..300).map(|_| scope.check("a").into_future()).collect();
        for (number, answer) in answers.into_iter().enumerate() {
            match store_error(answer.await) {
                StoreError::Timeout { after, .. } => assert_eq!(after, deadline),
                // The checks behind the first batch were never sent.
                StoreError::Overloaded { .. } => assert!(number > 0),
                other => panic!("{other:?}"),
            }
        }
        let took = began.elapsed();
        assert!(deadline <= took && took < PATIENCE / 3, "{took:?}");
    }
}

/// A check times out while the server pauses, and later checks are answered.
#[tokio::test]
async fn paused_server_is_used_again_when_it_resumes() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let limiter = within(&server.url(), Duration::from_millis(60));
        let scope = named(&limiter, "scope", LIMITS[0]);
        until_answered(&scope).await;
        // The server answers no writes until it is unpaused.
        redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").exec(&mut admin).unwrap();
        let error = store_error(scope.check("a").await);
        assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
        redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut admin).unwrap();
        until_answered(&scope).await;
    }
}

/// Peeks until the server answers. Returns the number of errors before that.
async fn until_answered(scope: &Scope) -> usize {
    let began = Instant::now();
    let mut errors = 0;
    while let Err(error) = scope.peek("a").await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        errors += 1;
    }
    errors
}

/// The proxy drops the bytes of open connections without closing them, as a firewall does that forgot them.
#[tokio::test]
async fn silent_connection_is_replaced() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr(), Duration::ZERO);
    let scope = named(&within(&proxy.url(), Duration::from_millis(100)), "scope", LIMITS[0]);
    until_answered(&scope).await;
    let before = proxy.connections();
    proxy.forget_connections();
    assert!(until_answered(&scope).await > 0);
    assert!(proxy.connections() > before);
}

#[tokio::test]
async fn connection_may_take_longer_to_open_than_the_deadline() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr(), Duration::from_millis(500));
    let scope = named(&within(&proxy.url(), Duration::from_millis(50)), "scope", LIMITS[0]);
    let errors = until_answered(&scope).await;
    // Several checks fail for each connection that is opened: a timeout does not open another one.
    assert!(errors > 2 * proxy.connections(), "{errors} errors, {}", proxy.connections());
}

#[tokio::test]
async fn zero_and_maximum_deadlines_are_accepted() {
    let server = start(Flavour::Redis);
    let scope = named(&within(&server.url(), Duration::MAX), "scope", LIMITS[0]);
    assert!(scope.check("a").await.unwrap().is_allowed());
    let scope = named(&within(&server.url(), Duration::ZERO), "scope", LIMITS[0]);
    until_answered(&scope).await;
}

#[tokio::test]
async fn restarted_server_is_used_again() {
    for flavour in Flavour::ALL {
        let addr = free_addr();
        let (host, port) = (addr.ip().to_string(), addr.port().to_string());
        let there = Launch::new(flavour).config("bind", &host).config("port", &port);
        let scope = named(&at(&format!("redis://{addr}")), "scope", LIMITS[0]);
        for _ in 0..3 {
            let server = launch(&there);
            assert!(until_answered(&scope).await <= 1);
            // The server keeps nothing on disk, so nothing is spent.
            assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 60);
            assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 20);
            drop(server);
            for _ in 0..3 {
                assert_unreachable(scope.check("a").await);
            }
        }
    }
}

/// The first check after the cut may fail. The second may not.
#[tokio::test]
async fn cut_connection_fails_only_the_check_in_flight() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let scope = named(&open(&server), "scope", "fixed-window limit=1000000 window=366d");
        for _ in 0..20 {
            scope.check("a").await.unwrap();
            let killed: u64 =
                redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut admin).unwrap();
            assert_eq!(killed, 1, "{flavour}");
            let first = scope.check("a").await;
            if let Err(error) = first {
                assert_unreachable::<()>(Err(error));
            }
            scope.check("a").await.unwrap();
        }
    }
}

/// Some checks fail, by their deadline at the latest, because a check that is sent at the moment of the cut may get no
/// reply. No more is charged than was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_under_load_leave_no_check_waiting() {
    let server = start(Flavour::Redis);
    let mut admin = admin(&server);
    let limiter = within(&server.url(), Duration::from_millis(500));
    let scope = named(&limiter, "scope", "fixed-window limit=1000000 window=366d");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let scope = scope.clone();
        tasks.spawn(async move {
            let mut allowed = 0_u64;
            for _ in 0..200 {
                match scope.check("a").await {
                    Ok(decision) => allowed += u64::from(decision.is_allowed()),
                    Err(Error::Store(
                        StoreError::Unreachable { .. }
                        | StoreError::Timeout { .. }
                        | StoreError::Overloaded { .. }
                        | StoreError::BreakerOpen { .. },
                    )) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            allowed
        });
    }
    while !tasks.is_empty() {
        let _: u64 =
            redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut admin).unwrap();
        if let Some(done) = tasks.try_join_next() {
            assert!(done.unwrap() <= 200);
        }
        tokio::task::yield_now().await;
    }
    until_answered(&scope).await;
    assert!(remaining(&scope, "a").await >= 1_000_000 - 8 * 200);
}

/// A limiter with the keys `full` (spent), `other` and `gone` (10 of 100 spent).
async fn prepared(server: &Server, text: &str) -> (Limiter, Scope) {
    let limiter = open(server);
    let scope = named(&limiter, text, text);
    scope.check("full").cost(100).await.unwrap();
    scope.check("other").cost(10).await.unwrap();
    scope.check("gone").cost(10).await.unwrap();
    (limiter, scope)
}

/// Asserts that requests which write nothing are answered, in the same batch as refused ones.
async fn assert_only_writes_are_refused(limiter: &Limiter, scope: &Scope, why: &str) {
    let peeked = scope.peek("gone").into_future();
    let charged = scope.check("other").into_future();
    let denied = scope.check("full").into_future();
    let is_denied = limiter.check_all(&[scope.check("full"), scope.check("gone")]);
    let together = limiter.check_all(&[scope.check("new"), scope.check("other")]);
    let entries = scope.entries("gone");
    let newcomer = scope.check("new").into_future();
    assert_eq!(peeked.await.unwrap().remaining(), 90, "{why}");
    assert!(!denied.await.unwrap().is_allowed(), "{why}");
    assert!(!is_denied.await.unwrap().is_allowed(), "{why}");
    entries.await.unwrap();
    for problem in [refusal(charged.await), refusal(together.await), refusal(newcomer.await)] {
        assert!(problem.contains(why), "{why}: {problem}");
    }
    assert_eq!(remaining(scope, "other").await, 90, "{why}");
    assert_eq!(remaining(scope, "new").await, 100, "{why}");
}

#[tokio::test]
async fn full_server_refuses_only_writes() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let (limiter, scope) = prepared(&server, text).await;
            config(&mut admin, "maxmemory", "1");
            assert_only_writes_are_refused(&limiter, &scope, "OOM").await;
            // A reset takes no memory.
            scope.reset("gone").await.unwrap();
            config(&mut admin, "maxmemory", "0");
            assert_eq!(scope.check("gone").await.unwrap().remaining(), 99, "{flavour}, {text}");
        }
        let scope = named(&open(&server), "long", "sliding-window-log limit=1000 window=366d");
        let answers: Vec<_> = (0..100).map(|_| scope.check("a").into_future()).collect();
        for answer in answers {
            answer.await.unwrap();
        }
        config(&mut admin, "maxmemory", "1");
        assert!(refusal(scope.check("a").await).contains("OOM"));
        assert_eq!(remaining(&scope, "a").await, 900);
        assert_eq!(scope.entries("a").await.unwrap().len(), 100);
    }
}

#[tokio::test]
async fn replica_refuses_only_writes() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in LIMITS {
            let (limiter, scope) = prepared(&server, text).await;
            let nowhere = free_addr();
            let (host, port) = (nowhere.ip().to_string(), nowhere.port());
            redis::cmd("REPLICAOF").arg(host).arg(port).exec(&mut admin).unwrap();
            assert_only_writes_are_refused(&limiter, &scope, "READONLY").await;
            // A refused reset does not fail the peek in its batch.
            let (reset, peeked) = (scope.reset("gone"), scope.peek("other").into_future());
            assert!(refusal(reset.await).contains("READONLY"), "{flavour}, {text}");
            assert_eq!(peeked.await.unwrap().remaining(), 90, "{flavour}, {text}");
            redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut admin).unwrap();
            assert_eq!(remaining(&scope, "gone").await, 90, "{flavour}, {text}");
            assert_eq!(scope.check("other").await.unwrap().remaining(), 89, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn required_password_is_an_error_until_given_or_removed() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let before = named(&open(&server), "scope", LIMITS[0]);
        config(&mut admin, "requirepass", "secret");
        let problem = refusal(before.check("a").await);
        assert!(problem.contains("NOAUTH"), "{flavour}: {problem}");
        let url = |user: &str| format!("redis://{user}@{}", server.addr());
        let wrong = named(&at(&url(":wrong")), "scope", LIMITS[0]);
        let problem = refusal(wrong.check("a").await);
        assert!(problem.contains("WRONGPASS"), "{flavour}: {problem}");
        let right = named(&at(&url(":secret")), "scope", LIMITS[0]);
        assert!(right.check("a").await.unwrap().is_allowed());
        // The first limiter works again when the server requires no password.
        config(&mut admin, "requirepass", "");
        assert_eq!(before.check("a").await.unwrap().remaining(), 98, "{flavour}");
    }
}
