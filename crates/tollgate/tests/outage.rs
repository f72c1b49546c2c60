//! An outage of the store is logged as one warning, and one line with its counts when the outage ends.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use axum::routing::{Router, get};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, Redis, Scope};
use tollgate_launcher::{Flavour, Launch, Server};
use tower::ServiceExt;

use log::Log;

#[path = "shared/log.rs"]
mod log;

/// How long a test waits for a line in the log.
const PATIENCE: Duration = Duration::from_secs(30);

/// The log of the process, because a limiter logs on its own threads.
static LINES: LazyLock<Arc<Mutex<Vec<String>>>> = LazyLock::new(|| {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    tracing::subscriber::set_global_default(log).unwrap();
    lines
});

/// Held by a test while it uses the log, which the tests share.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The logged lines about the store.
fn lines() -> Vec<String> {
    let all = LINES.lock().unwrap();
    all.iter().filter(|line| line.contains("the store")).cloned().collect()
}

fn start() -> (Server, Scope) {
    LINES.lock().unwrap().clear();
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let limiter = Redis::at(&server.url()).unwrap().build().unwrap();
    let limit: Limit = "token-bucket capacity=1000000 refill=1000000/s".parse().unwrap();
    (server, limiter.scope("api", limit).unwrap())
}

/// Asserts that `lines` describe one outage with `degraded` decisions made without the store.
fn assert_one_outage(lines: &[String], server: &Server, degraded: u64) {
    let [began, ended] = lines else { unreachable!("{lines:?}") };
    assert!(began.starts_with("WARN the store fails"), "{began}");
    assert!(began.contains(server.url().trim_start_matches("redis://")), "{began}");
    assert!(ended.starts_with("INFO the store answers again"), "{ended}");
    assert!(ended.contains(&format!("failed={degraded} degraded={degraded} ")), "{ended}");
}

#[tokio::test]
async fn limiter_logs_one_warning_and_one_recovery_for_an_outage() {
    let _turn = TURN.lock().await;
    let (mut server, scope) = start();
    while scope.check("a").await.unwrap().is_degraded() {}
    LINES.lock().unwrap().clear();
    let failed_before = scope.limiter().health().unwrap().failed;

    server.kill();
    for _ in 0..1_000 {
        assert!(scope.check("a").await.unwrap().is_degraded());
    }
    assert_eq!(lines().len(), 1, "{:?}", lines());
    server.restart().unwrap();
    let began = Instant::now();
    while lines().len() < 2 {
        assert!(began.elapsed() < PATIENCE, "{:?}", lines());
        let _ = scope.check("a").await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let failed = scope.limiter().health().unwrap().failed - failed_before;
    assert!(failed >= 1_000, "{failed}");
    assert_one_outage(&lines(), &server, failed);
}

#[tokio::test]
async fn layer_logs_one_warning_and_one_recovery_for_an_outage() {
    let _turn = TURN.lock().await;
    let (mut server, scope) = start();
    server.kill();
    let limiter = scope.limiter().clone();
    let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(scope));
    let send = || app.clone().oneshot(Request::new(Body::empty()));
    for _ in 0..100 {
        assert_eq!(send().await.unwrap().status(), 200);
    }
    assert_eq!(lines().len(), 1, "{:?}", lines());
    server.restart().unwrap();
    let began = Instant::now();
    while lines().len() < 2 {
        assert!(began.elapsed() < PATIENCE, "{:?}", lines());
        assert_eq!(send().await.unwrap().status(), 200);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_one_outage(&lines(), &server, limiter.health().unwrap().failed);
}
