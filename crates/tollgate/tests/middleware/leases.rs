//! The middleware on leased scopes and rules, on a real Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use tollgate::tower::{LayerDecision, RateLimitLayer};
use tollgate::{LeaseOptions, Limiter, Redis};
use tollgate_launcher::{Flavour, Launch};

use crate::support::*;

const REQUESTS: usize = 200;

const RULES: &str = "
limits: { it: fixed-window limit=100000 window=366d }
rules:
  - { name: it, domain: api, key: [ip], limit: it, mode: leased, lease: { for: 1h }, deadline: 30s }
";

/// No lease ends during a test.
const OPTIONS: LeaseOptions = LeaseOptions {
    lease_for: Duration::from_secs(3_600),
    max_share_percent: 25,
    pace: Duration::from_millis(10),
};

fn limiter_on(server: &tollgate_launcher::Server) -> Limiter {
    Redis::at(&server.url()).unwrap().deadline(Duration::from_secs(30)).build().unwrap()
}

/// Sends requests through a layer. Returns how many of them were decided by leases.
async fn leased(layer: RateLimitLayer, want: StatusCode) -> usize {
    let leased = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&leased);
    let app = app(layer.on_decision(move |_, decision| {
        let LayerDecision::Allowed(outcome) = decision else { panic!("a request was refused") };
        assert!(!outcome.is_degraded());
        counted.fetch_add(usize::from(outcome.is_leased()), Ordering::Relaxed);
    }));
    for _ in 0..REQUESTS {
        let response = send(&app, get("/")).await;
        assert_eq!(response.status(), want);
        assert!(header(response.headers(), "x-ratelimit-remaining").is_some());
    }
    leased.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_of_scopes_and_of_rules_use_leases() {
    let server = Launch::new(Flavour::Redis).start().unwrap();
    let limiter = limiter_on(&server);
    let scope = scope(&limiter, "direct", "token-bucket capacity=100000 refill=10/d");
    let peeked = scope.clone();
    let direct = RateLimitLayer::new(scope.leased(OPTIONS).unwrap());
    assert!(leased(direct, StatusCode::OK).await > REQUESTS / 2);
    let by_rules = rules(&limiter, RULES);
    let layer = RateLimitLayer::rules(&by_rules, "api");
    assert!(leased(layer, StatusCode::OK).await > REQUESTS / 2);

    limiter.end_leases().await.unwrap();
    let ruled = by_rules.scope("api/it").unwrap();
    for scope in [peeked, ruled] {
        let left = scope.peek("ip=203.0.113.9").await.unwrap().remaining();
        assert_eq!(left, 100_000 - REQUESTS as u64, "{}", scope.name());
    }
}
