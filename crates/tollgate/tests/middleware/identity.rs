//! How clients are identified by their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use http::{Request, StatusCode};
use tollgate::http::{Identity, RequestHead};
use tollgate::tower::RateLimitLayer;

use crate::support::*;

/// An identity that knows keys that begin with `k_`, and the count of calls to its verifier.
fn counting() -> (Arc<AtomicUsize>, Identity) {
    let calls = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&calls);
    let identity = Identity::new().verify_api_keys(move |key| {
        counts.fetch_add(1, Ordering::Relaxed);
        key.strip_prefix("k_").map(|rest| format!("tier {rest}"))
    });
    (calls, identity)
}

fn per_ip(limit: usize) -> RateLimitLayer {
    RateLimitLayer::per_ip(&*format!("fixed-window limit={limit} window=366d")).unwrap()
}

fn with_key(key: &str, peer: &str) -> Request<Body> {
    with(request("GET", "/", peer), "x-api-key", key)
}

#[tokio::test]
async fn key_closure_can_use_verified_api_keys() {
    let (_, identity) = counting();
    let app = app(per_ip(3).identity(identity).key(|request| Some(request.api_key()?.to_owned())));
    for key in ["k_1", "k_2"] {
        let from = |at| with_key(key, &format!("203.0.113.{at}"));
        assert_eq!(admitted(&app, (0..9).map(from)).await, 3, "{key}");
    }
    // Requests with invented keys count for the address.
    let invented = |at| with_key(&format!("x_{at}"), "198.51.100.1");
    assert_eq!(admitted(&app, (0..9).map(invented)).await, 3);
}

#[tokio::test]
async fn per_ip_layer_counts_by_address_and_verifies_no_keys() {
    let (calls, identity) = counting();
    let app = app(per_ip(3).identity(identity));
    let keys = (0..9).map(|at| with_key(&format!("k_{at}"), "203.0.113.9"));
    assert_eq!(admitted(&app, keys).await, 3);
    // The verifier was not called, because no key was needed.
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn key_verifier_is_called_at_most_once_a_request() {
    let (calls, identity) = counting();
    let layer = per_ip(9).identity(identity);
    let layer = layer.skip(|request| request.tier() == Some("tier 0"));
    let layer = layer.key(|request| Some(format!("{}{}", request.api_key()?, request.tier()?)));
    let app = app(layer.on_decision(|request, _| assert_ne!(request.api_key(), Some(""))));
    for (key, want) in [("k_1", 1), ("x_1", 2), ("k_0", 3)] {
        assert_eq!(status(&app, with_key(key, "203.0.113.9")).await, StatusCode::OK);
        assert_eq!(calls.load(Ordering::Relaxed), want, "{key}");
    }
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    assert_eq!(calls.load(Ordering::Relaxed), 3);

    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=5 window=366d }
rules:
  - { name: a, domain: api, key: [{ first_of: [api_key, ip] }], limit: { by: tier, tiers: { pro: free }, default: free } }
  - { name: b, domain: api, when: { tier: tier 1 }, key: [tier], limit: free }
";
    let (calls, identity) = counting();
    let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api").identity(identity);
    let app = crate::support::app(layer.key(|request| request.tier().map(str::to_owned)));
    assert_eq!(status(&app, with_key("k_1", "203.0.113.9")).await, StatusCode::OK);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn head_has_key_and_tier_only_of_a_single_known_key() {
    let (_, identity) = counting();
    let table: [(&[&str], Option<&str>, Option<&str>); 5] = [
        (&[], None, None),
        (&["k_1"], Some("k_1"), Some("tier 1")),
        (&["x_1"], None, None),
        (&["k_1", "k_1"], None, None),
        (&["k_1", "k_2"], None, None),
    ];
    for (keys, key, tier) in table {
        let request = keys.iter().fold(get("/"), |request, key| with(request, "x-api-key", key));
        let head = RequestHead::new(&request, &identity);
        assert_eq!((head.api_key(), head.tier()), (key, tier), "{keys:?}");
    }
    // Without a verifier no key is known.
    let (request, identity) = (with(get("/"), "x-api-key", "k_1"), Identity::new());
    let head = RequestHead::new(&request, &identity);
    assert_eq!((head.api_key(), head.tier()), (None, None));
}

#[tokio::test]
async fn request_with_two_keys_has_no_key_in_rules() {
    let yaml = "
limits: { free: fixed-window limit=3 window=366d, pro: fixed-window limit=9 window=366d }
rules:
  - { name: a, domain: api, key: [{ first_of: [api_key, ip] }], limit: { by: tier, tiers: { pro: pro }, default: free } }
api_keys: { k_genuine: pro }
";
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    for others in ["k_genuine", "x"] {
        let peer = if others == "x" { "203.0.113.1" } else { "203.0.113.2" };
        let both = |_| with(with_key("k_genuine", peer), "x-api-key", others);
        assert_eq!(admitted(&app, (0..12).map(both)).await, 3, "{others}");
    }
    let alone = |_| with_key("k_genuine", "203.0.113.1");
    assert_eq!(admitted(&app, (0..12).map(alone)).await, 9);
}

#[tokio::test]
async fn header_lines_are_joined_into_one_list() {
    let yaml = "
limits: { free: fixed-window limit=1 window=366d }
rules:
  - { name: a, domain: api, when: { header.x-flags: { exact: \"a, b, c\" } }, key: [ip], limit: free }
";
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    let with_lines = |lines: &[&str]| {
        lines.iter().fold(get("/"), |request, line| with(request, "x-flags", line))
    };
    assert_eq!(admitted(&app, [with_lines(&["a, b, c"])]).await, 1);
    for lines in [&["a", "b", "c"][..], &["a, b", "c"], &["a", "b, c"]] {
        assert_eq!(admitted(&app, [with_lines(lines)]).await, 0, "{lines:?}");
    }
    for lines in [&["a"][..], &["c", "b", "a"], &["a", "b"], &["a,b,c"]] {
        assert_eq!(admitted(&app, [with_lines(lines)]).await, 1, "{lines:?}");
    }
}

#[tokio::test]
async fn invented_methods_share_one_key() {
    let yaml = "
limits: { free: fixed-window limit=3 window=366d, purges: fixed-window limit=1 window=366d }
rules:
  - { name: by-method, domain: api, key: [ip, method], limit: free }
  - { name: purges, domain: api, when: { method: PURGE }, key: [ip], limit: purges }
";
    let (_, limiter) = at_midnight();
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    let of = |method: &str| request(method, "/", "203.0.113.9");
    // A rule can still name an invented method.
    assert_eq!(admitted(&app, (0..9).map(|_| of("PURGE"))).await, 1);
    assert_eq!(admitted(&app, (0..9).map(|at| of(&format!("M{at}")))).await, 2);
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    for method in known {
        let path = if method == "CONNECT" { "203.0.113.9:80" } else { "/" };
        let all = (0..9).map(|_| request(method, path, "203.0.113.9"));
        assert_eq!(admitted(&app, all).await, 3, "{method}");
    }
}

#[tokio::test]
async fn preflights_have_their_own_quota_for_each_key() {
    let (_, limiter) = at_midnight();
    let layer = RateLimitLayer::new(scope(&limiter, "free", "fixed-window limit=3 window=366d"));
    let layer = layer.key(|request| request.headers().get("x-user")?.to_str().ok().map(Into::into));
    let app = app(layer);
    let preflight = |user: &str| {
        let request = with(request("OPTIONS", "/", "203.0.113.9"), "x-user", user);
        let request = with(request, "origin", "https://shop.example");
        with(request, "access-control-request-method", "POST")
    };
    for user in ["ada", "bob"] {
        assert_eq!(admitted(&app, (0..9).map(|_| preflight(user))).await, 3, "{user}");
        assert_eq!(admitted(&app, (0..9).map(|_| with(get("/"), "x-user", user))).await, 3);
        assert_eq!(admitted(&app, [preflight(user)]).await, 0, "{user}");
    }
}

#[tokio::test]
async fn only_grpc_calls_are_refused_with_a_grpc_status() {
    let app = app(per_ip(1));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    for (method, content_type, want) in [
        ("POST", "application/grpc", 200),
        ("POST", "application/grpc+proto", 200),
        ("GET", "application/grpc", 429),
        ("POST", "application/grpc-web+proto", 429),
        ("POST", "application/grpc-is-what-i-say", 429),
    ] {
        let request = with(request(method, "/", "203.0.113.9"), "content-type", content_type);
        let response = send(&app, request).await;
        assert_eq!(response.status().as_u16(), want, "{method} {content_type}");
        assert_eq!(header(response.headers(), "grpc-status").is_some(), want == 200);
    }
}
