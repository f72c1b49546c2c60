//! The requests that the layer lets through.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::routing::{get as on_get, post};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::http::RequestHead;
use tollgate::tower::{GlobalKeyExtractor, KeyExtractor, LayerDecision, RateLimitLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::log::Log;
use crate::support::*;

#[tokio::test]
async fn networks_match_the_whole_client_address() {
    let (_, limiter) = at_midnight();
    let yaml = "
rules: [{ name: it, domain: api, when: { ip: [198.51.100.0/24, 2001:db8::7] }, key: [ip], limit: block }]
";
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    for (peer, want) in [
        ("198.51.100.7", StatusCode::FORBIDDEN),
        ("198.51.101.7", StatusCode::OK),
        ("[2001:db8::7]", StatusCode::FORBIDDEN),
        ("[2001:db8::8]", StatusCode::OK),
    ] {
        assert_eq!(status(&app, request("GET", "/", peer)).await, want, "{peer}");
    }
}

#[tokio::test]
async fn per_ip_limits_each_address() {
    let app = app(RateLimitLayer::per_ip("fixed-window limit=3 window=1h").unwrap());
    for peer in ["203.0.113.9", "203.0.113.10", "[2001:db8::1]"] {
        assert_eq!(admitted(&app, (0..5).map(|_| request("GET", "/", peer))).await, 3);
    }
}

/// Takes the key from the second segment of the path: `/v1/ada` is Ada's.
struct PathKeyExtractor;

impl KeyExtractor for PathKeyExtractor {
    fn extract(&self, request: &RequestHead<'_>) -> Option<String> {
        request.path().split('/').nth(2).map(str::to_owned)
    }
}

#[tokio::test]
async fn key_extractor_makes_the_key_or_falls_back_to_the_address() {
    let per_ip = || RateLimitLayer::per_ip("fixed-window limit=3 window=1h").unwrap();
    let closure = |request: &RequestHead<'_>| PathKeyExtractor.extract(request);
    for layer in [per_ip().key_extractor(PathKeyExtractor), per_ip().key_extractor(closure)] {
        let app = app(layer);
        for (path, want) in [("/v1/ada", 3), ("/v1/bob", 3), ("/v2/ada", 0), ("/", 3)] {
            let requests = (0..5).map(|_| request("GET", path, "203.0.113.9"));
            assert_eq!(admitted(&app, requests).await, want, "{path}");
        }
        assert_eq!(status(&app, request("GET", "/", "203.0.113.10")).await, StatusCode::OK);
    }
    let app = app(per_ip().key_extractor(GlobalKeyExtractor));
    let peers = ["203.0.113.9", "203.0.113.10", "203.0.113.11", "203.0.113.12"];
    assert_eq!(admitted(&app, peers.map(|peer| request("GET", "/", peer))).await, 3);
}

#[test]
fn invalid_limit_is_an_error_of_per_ip() {
    let error = RateLimitLayer::per_ip("fixed-window limit=3").unwrap_err();
    insta::assert_snapshot!(error);
}

#[tokio::test]
async fn clones_and_routes_share_one_limit() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=10 window=1h").unwrap();
    let app = Router::new()
        .route("/a", on_get(|| async { "a" }))
        .route("/b", on_get(|| async { "b" }))
        .nest("/c", Router::new().route("/d", on_get(|| async { "d" })))
        .layer(layer.clone());
    let other = Router::new().route("/a", on_get(|| async { "a" })).layer(layer);
    let paths = ["/a", "/b", "/c/d", "/a"];
    let requests = (0..10).map(|at| get(paths[at % 4]));
    let (mut admitted_here, mut admitted_there) = (0, 0);
    for (at, request) in requests.enumerate() {
        match at % 2 {
            0 => admitted_here += admitted(&app.clone(), [request]).await,
            _ => admitted_there += admitted(&other.clone(), [get("/a")]).await,
        }
    }
    assert_eq!(admitted_here + admitted_there, 10);
    assert_eq!(admitted(&app, [get("/a")]).await + admitted(&other, [get("/a")]).await, 0);
}

#[tokio::test]
async fn single_route_can_have_its_own_limit() {
    let logins = RateLimitLayer::per_ip("fixed-window limit=1 window=1h").unwrap();
    let app = Router::new()
        .route("/login", post(|| async { "welcome" }).layer(logins))
        .route("/", on_get(|| async { "hello" }));
    let login = || request("POST", "/login", "203.0.113.9");
    assert_eq!(status(&app, login()).await, StatusCode::OK);
    assert_eq!(status(&app, login()).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
}

#[tokio::test]
async fn requests_without_an_address_share_a_quota() {
    let app = app(RateLimitLayer::per_ip("fixed-window limit=2 window=1h").unwrap());
    let without_address = || Request::new(Body::empty());
    assert_eq!(admitted(&app, (0..4).map(|_| without_address())).await, 2);
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
}

#[tokio::test]
async fn rules_apply_to_requests_without_an_address() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=2 window=1h }
rules: [{ name: r, domain: api, key: [ip], limit: free }]
";
    let app = app(RateLimitLayer::rules(&rules(&limiter, yaml), "api"));
    assert_eq!(admitted(&app, (0..4).map(|_| Request::new(Body::empty()))).await, 2);
}

#[tokio::test]
async fn key_closure_makes_the_key_or_falls_back_to_the_address() {
    #[derive(Clone)]
    struct User(&'static str);
    let layer = RateLimitLayer::per_ip("fixed-window limit=2 window=1h").unwrap();
    let app =
        app(layer.key(|request| request.extensions().get().map(|User(name)| (*name).to_owned())));
    let of = |name: &'static str, peer: &str| {
        let mut request = request("GET", "/", peer);
        request.extensions_mut().insert(User(name));
        request
    };
    assert_eq!(admitted(&app, (0..4).map(|at| of("alice", &format!("203.0.113.{at}")))).await, 2);
    assert_eq!(admitted(&app, (0..4).map(|_| of("bob", "203.0.113.1"))).await, 2);
    assert_eq!(admitted(&app, (0..4).map(|_| get("/"))).await, 2);
    // A key that looks like an address is not the key of that address.
    assert_eq!(admitted(&app, (0..4).map(|_| of("203.0.113.9", "203.0.113.77"))).await, 2);
}

#[tokio::test]
async fn cost_closure_sets_the_cost_and_0_is_free() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=10 window=1h").unwrap();
    let app = app(layer.cost(|request| match request.path() {
        "/report" => 4,
        "/health" => 0,
        "/absurd" => u64::MAX,
        _ => 1,
    }));
    let response = send(&app, get("/report")).await;
    assert_eq!(header(response.headers(), "x-ratelimit-remaining").as_deref(), Some("6"));
    let response = send(&app, get("/health")).await;
    assert_eq!(
        (response.status(), header(response.headers(), "ratelimit")),
        (StatusCode::OK, None)
    );
    assert_eq!(status(&app, get("/absurd")).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(admitted(&app, (0..10).map(|_| get("/"))).await, 6);
}

#[tokio::test]
async fn skipped_request_is_not_limited_and_has_no_headers() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=1 window=1h").unwrap();
    let app = app(layer
        .skip(|request| request.path() == "/health")
        .skip(|request| request.path() == "/ready"));
    for path in ["/health", "/ready", "/health"] {
        let response = send(&app, get(path)).await;
        assert_eq!(rate_limit_headers(&response), "200\n");
    }
    assert_eq!(admitted(&app, (0..3).map(|_| get("/"))).await, 1);
}

#[tokio::test]
async fn on_decision_hook_sees_every_decision() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let hook = Arc::clone(&seen);
    let layer = RateLimitLayer::per_ip("fixed-window limit=1 window=1h").unwrap();
    let app = app(layer.skip(|request| request.path() == "/skipped").on_decision(
        move |request, decided| {
            let line = match decided {
                LayerDecision::Allowed(outcome) => format!(
                    "allowed, {:?}",
                    outcome.tightest().map(|own| own.decision().remaining())
                ),
                LayerDecision::Refused(refusal) => format!(
                    "{} {}",
                    refusal.status().as_u16(),
                    refusal.detail().split(';').next().unwrap()
                ),
            };
            hook.lock().unwrap().push(format!("{} {line}", request.path()));
        },
    ));
    for path in ["/a", "/b", "/skipped"] {
        send(&app, get(path)).await;
    }
    assert_eq!(*seen.lock().unwrap(), ["/a allowed, Some(0)", "/b 429 `per-ip` is spent"]);
}

#[tokio::test]
async fn on_refusal_hook_makes_the_response() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=1 window=1h").unwrap();
    let app = app(layer.on_refusal(|request, refusal| {
        let words = format!("{} must wait {:?}", request.path(), refusal.retry_after().is_some());
        Response::builder()
            .status(420)
            .header("content-type", "text/plain")
            .body(words.into())
            .unwrap()
    }));
    send(&app, get("/calm")).await;
    let response = send(&app, get("/calm")).await;
    assert_eq!(response.status().as_u16(), 420);
    assert_eq!(header(response.headers(), "x-ratelimit-remaining").as_deref(), Some("0"));
    assert!(header(response.headers(), "retry-after").is_some());
    assert_eq!(text(response).await, "/calm must wait true");
}

#[tokio::test]
async fn preflights_have_their_own_quota() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=3 window=1h }
rules: [{ name: r, domain: api, key: [ip], limit: free }]
";
    let by_rules = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    for layer in [RateLimitLayer::per_ip("fixed-window limit=3 window=1h").unwrap(), by_rules] {
        let app = app(layer);
        let preflight = || {
            let request =
                with(request("OPTIONS", "/", "203.0.113.9"), "origin", "https://example.com");
            with(request, "access-control-request-method", "GET")
        };
        assert_eq!(admitted(&app, (0..5).map(|_| preflight())).await, 3);
        assert_eq!(admitted(&app, (0..5).map(|_| get("/"))).await, 3);
        // An OPTIONS request without the headers of a preflight is limited as any other.
        assert_eq!(
            status(&app, request("OPTIONS", "/", "203.0.113.9")).await,
            StatusCode::TOO_MANY_REQUESTS
        );
    }
}

#[tokio::test]
async fn path_in_a_nested_router_is_the_whole_path() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=1 window=1h }
rules: [{ name: r, domain: api, when: { path: /v1/items }, key: [ip], limit: free }]
";
    let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    let inner = Router::new().route("/items", on_get(|| async { "items" })).layer(layer);
    let app = Router::new().nest("/v1", inner);
    assert_eq!(admitted(&app, (0..3).map(|_| get("/v1/items"))).await, 1);
}

#[tokio::test]
async fn inner_service_is_called_only_when_ready() {
    /// A service that must be polled ready before each call.
    #[derive(Clone)]
    struct ReadyOnce {
        ready: bool,
        calls: Arc<AtomicUsize>,
    }
    impl Service<Request<Body>> for ReadyOnce {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.ready = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<Body>) -> Self::Future {
            assert!(std::mem::take(&mut self.ready), "called without being polled ready");
            self.calls.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(Response::new(Full::default())))
        }
    }
    let calls = Arc::<AtomicUsize>::default();
    let (_, limiter) = at_midnight();
    for limit in
        ["fixed-window limit=9 window=1h", "leaky-bucket capacity=9 leak=1000/s mode=shaping"]
    {
        let layer = RateLimitLayer::new(scope(&limiter, limit, limit));
        let mut service = layer.layer(ReadyOnce { ready: false, calls: Arc::clone(&calls) });
        for _ in 0..3 {
            assert_eq!(service.ready().await.unwrap().call(get("/")).await.unwrap().status(), 200);
        }
    }
    assert_eq!(calls.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn layer_only_adds_headers_to_a_response() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=9 window=1h").unwrap();
    let service = service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(
            Response::builder()
                .status(418)
                .header("x-own", "1")
                .body(Full::<Bytes>::from("tea"))
                .unwrap(),
        )
    });
    let response = layer.layer(service).oneshot(get("/")).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-own"]),
        (418, &"1".parse().unwrap())
    );
    assert_eq!(response.headers().len(), 6);
}

#[tokio::test]
async fn missing_domains_and_undecided_requests_are_logged() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _guard = tracing::subscriber::set_default(log);
    let (clock, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=9 window=1h }
rules: [{ name: r, domain: api, key: [user], limit: free }]
";
    let rules = rules(&limiter, yaml);
    assert_eq!(status(&app(RateLimitLayer::rules(&rules, "apj")), get("/")).await, StatusCode::OK);
    let app = app(RateLimitLayer::rules(&rules, "api")
        .attributes(|_, attributes| attributes.with("user", "x".repeat(2 << 20))));
    for seconds in [0, 5, 6] {
        clock.advance(std::time::Duration::from_secs(seconds));
        assert_eq!(status(&app, get("/")).await, StatusCode::SERVICE_UNAVAILABLE);
    }
    let lines = lines.lock().unwrap();
    assert!(lines[0].starts_with("WARN no rule is of the domain `apj`"), "{lines:?}");
    assert!(lines[1].starts_with("WARN checks name a domain that has no rules"), "{lines:?}");
    // At most one warning in ten seconds.
    let warnings = lines.iter().filter(|line| line.starts_with("WARN requests are answered 503: "));
    assert_eq!((warnings.count(), lines.len()), (2, 4), "{lines:?}");
}

#[tokio::test]
async fn scope_accepts_an_ip_address_as_the_layers_key() {
    let (_, limiter) = at_midnight();
    let scope = scope(&limiter, "api", "fixed-window limit=10 window=1h");
    let app = app(RateLimitLayer::new(scope.clone()));
    for (peer, ip) in [("203.0.113.9", "203.0.113.9"), ("[2001:db8::1]", "2001:db8::1")] {
        assert_eq!(status(&app, request("GET", "/", peer)).await, StatusCode::OK);
        let ip: std::net::IpAddr = ip.parse().unwrap();
        assert_eq!(scope.peek(ip).now().unwrap().remaining(), 9);
        scope.reset_now(ip).unwrap();
        assert_eq!(scope.peek(ip).now().unwrap().remaining(), 10);
    }
}
