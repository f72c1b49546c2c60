//! The middleware on a real Redis: the same responses as in memory while it works, and the failure policy while it fails.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinSet;
use tollgate::http::{Identity, Jwt, JwtKey, RefusalReason};
use tollgate::tower::{LayerDecision, RateLimitLayer};
use tollgate::{BreakerState, Limiter, ManualClock, OnFailure, Redis, Scope};
use tollgate_launcher::{Flavour, Launch, Proxy, Server};

use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt};

use crate::servers::{PATIENCE, until};
use crate::support::*;

/// A Redis behind a proxy that can fail.
pub(crate) struct Store {
    server: Server,
    proxy: Proxy,
}

impl Store {
    pub(crate) fn start() -> Store {
        Store::of(Flavour::Redis)
    }

    pub(crate) fn of(flavour: Flavour) -> Store {
        let server = Launch::new(flavour).start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = Proxy::start(server.addr()).unwrap();
        Store { server, proxy }
    }

    /// A builder with a deadline of 30 s.
    pub(crate) fn builder(&self) -> Redis {
        Redis::at(&self.proxy.url()).unwrap().deadline(PATIENCE)
    }

    pub(crate) fn limiter(&self) -> Limiter {
        self.builder().build().unwrap()
    }

    /// A builder of a limiter in another process, which the failures do not affect.
    pub(crate) fn observer(&self) -> Redis {
        Redis::at(&self.server.url()).unwrap().deadline(PATIENCE)
    }

    /// Makes the server answer no writes, until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let mut pause = redis::cmd("CLIENT");
        self.server.ask::<()>(pause.arg("PAUSE").arg(600_000).arg("WRITE")).unwrap();
    }

    pub(crate) fn resume(&self) {
        self.server.ask::<()>(redis::cmd("CLIENT").arg("UNPAUSE")).unwrap();
    }

    /// The number in a line of the server's `INFO`, after this text; 0 without such a line.
    pub(crate) fn info(&self, start: &str) -> u64 {
        let info: String = self.server.ask(redis::cmd("INFO").arg("all")).unwrap();
        let value = info.lines().find_map(|line| line.strip_prefix(start));
        let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
        value.map_or(0, |value| digits(value).parse().unwrap())
    }

    /// Makes the store fail from now on.
    pub(crate) fn fail(&self) {
        self.proxy.refuse_connections();
        self.proxy.cut_connections();
    }

    /// Makes the store answer again, and waits until the limiter uses it.
    pub(crate) async fn recover(&self, limiter: &Limiter) {
        // A connection that has lost a reply carries no more replies.
        self.proxy.cut_connections();
        self.proxy.pass();
        let scope = scope(limiter, "probe", "fixed-window limit=1 window=366d").deadline(PATIENCE);
        let began = Instant::now();
        let is_closed = || limiter.health().unwrap().servers[0].breaker == BreakerState::Closed;
        while !(scope.peek("").await.is_ok_and(|it| !it.is_degraded()) && is_closed()) {
            assert!(began.elapsed() < PATIENCE, "{:?}", limiter.health());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The parts of the store's address that must not be shown.
    fn secrets(&self) -> [String; 4] {
        let port = |addr: std::net::SocketAddr| addr.port().to_string();
        [port(self.server.addr()), port(self.proxy.addr()), "127.0.0.1".into(), "redis".into()]
    }
}

fn ten(limiter: &Limiter, on_failure: OnFailure) -> Scope {
    scope(limiter, "ten", "fixed-window limit=10 window=366d").on_failure(on_failure)
}

/// Sends requests. Returns how many responses had each status.
async fn statuses(app: &Router, path: &str, count: usize) -> BTreeMap<u16, usize> {
    let mut seen = BTreeMap::new();
    for _ in 0..count {
        *seen.entry(status(app, get(path)).await.as_u16()).or_default() += 1;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_policy_admits_every_request_without_headers() {
    let store = Store::start();
    let limiter = store.limiter();
    let app = app(RateLimitLayer::new(ten(&limiter, OnFailure::Open)));
    let response = send(&app, get("/")).await;
    assert_eq!(header(response.headers(), "x-ratelimit-remaining").as_deref(), Some("9"));
    store.fail();
    for _ in 0..20 {
        let response = send(&app, get("/")).await;
        assert_eq!(rate_limit_headers(&response), "200\n");
        assert_eq!(text(response).await, "hello");
    }
    // Units spent before the failure stay spent, and none was spent since.
    store.recover(&limiter).await;
    assert_eq!(statuses(&app, "/", 15).await, BTreeMap::from([(200, 9), (429, 6)]));
}

/// Asserts that a response is the 503 for a request that was not decided.
async fn assert_undecided(response: Response<Body>, store: &Store) {
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers();
    assert_eq!(header(headers, "content-type").as_deref(), Some("application/problem+json"));
    for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-reset"] {
        assert_eq!(header(headers, name), None);
    }
    assert!(header(headers, "retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    let all = format!("{headers:?}");
    let body = text(response).await;
    for secret in store.secrets() {
        assert!(!body.contains(&secret) && !all.contains(&secret), "{secret} in {all} {body}");
    }
    let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
    let want = serde_json::json!({
        "type": "about:blank",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "the store failed, and this request is not decided without it",
    });
    assert_eq!(problem, want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_policy_refuses_every_request_with_retry_after() {
    let store = Store::start();
    let limiter = store.limiter();
    let app = app(RateLimitLayer::new(ten(&limiter, OnFailure::Closed)));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    store.fail();
    // Also when the breaker is open.
    for _ in 0..20 {
        assert_undecided(send(&app, get("/")).await, &store).await;
    }
    store.recover(&limiter).await;
    assert_eq!(statuses(&app, "/", 15).await, BTreeMap::from([(200, 9), (429, 6)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_policy_decides_on_the_share() {
    let store = Store::start();
    let limiter = store.limiter();
    let app = app(RateLimitLayer::new(ten(&limiter, OnFailure::Local { processes: Some(2) })));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    store.fail();
    // Half of the 9 units that remained, rounded down.
    for _ in 0..4 {
        assert_eq!(rate_limit_headers(&send(&app, get("/")).await), "200\n");
    }
    for _ in 0..5 {
        let refused = send(&app, get("/")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(refused.headers(), "x-ratelimit-limit").as_deref(), Some("5"));
        assert_eq!(header(refused.headers(), "x-ratelimit-remaining").as_deref(), Some("0"));
        assert!(header(refused.headers(), "retry-after").is_some());
        assert!(text(refused).await.contains("quota-exceeded"));
    }
    store.recover(&limiter).await;
    assert_eq!(statuses(&app, "/", 15).await, BTreeMap::from([(200, 9), (429, 6)]));
}

const EACH: &str = "
limits: { ten: fixed-window limit=10 window=366d }
defaults: { domain: api, deadline: 30s }
rules:
  - { name: open, when: { path: [/open, /both] }, key: [ip], limit: ten, on_store_failure: open }
  - { name: closed, when: { path: [/closed, /both] }, key: [ip], limit: ten, on_store_failure: closed }
  - { name: local, when: { path: /local }, key: [ip], limit: ten, on_store_failure: { local: { processes: 2 } } }
  - { name: shadow, when: { path: /open }, key: [ip], limit: ten, on_store_failure: closed, shadow: true }
";

/// The decisions that a hook has seen: the count for each path and kind.
type Seen = Arc<Mutex<BTreeMap<String, usize>>>;

fn recording(layer: RateLimitLayer, seen: &Seen) -> RateLimitLayer {
    let seen = Arc::clone(seen);
    layer.on_decision(move |request, decided| {
        let kind = match decided {
            LayerDecision::Allowed(outcome) if outcome.is_degraded() => "degraded",
            LayerDecision::Allowed(_) => "allowed",
            LayerDecision::Refused(refusal) => match refusal.reason() {
                RefusalReason::Quota(outcome) if outcome.is_degraded() => "share spent",
                RefusalReason::Quota(_) => "spent",
                RefusalReason::Undecided(_) => "undecided",
                _ => "other",
            },
        };
        *seen.lock().unwrap().entry(format!("{} {kind}", request.path())).or_default() += 1;
    })
}

fn counted(seen: &Seen) -> String {
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.into_iter().map(|(kind, count)| format!("{kind}: {count}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_follows_its_failure_policy_and_the_hook_tells_failures_from_refusals() {
    let store = Store::start();
    let limiter = store.limiter();
    let seen = Seen::default();
    let app = app(recording(RateLimitLayer::rules(&rules(&limiter, EACH), "api"), &seen));
    for path in ["/open", "/closed", "/local"] {
        assert_eq!(statuses(&app, path, 2).await, BTreeMap::from([(200, 2)]));
    }
    assert_eq!(counted(&seen), "/closed allowed: 2\n/local allowed: 2\n/open allowed: 2\n");
    store.fail();
    assert_eq!(statuses(&app, "/open", 15).await, BTreeMap::from([(200, 15)]));
    assert_eq!(rate_limit_headers(&send(&app, get("/open")).await), "200\n");
    assert_undecided(send(&app, get("/closed")).await, &store).await;
    assert_undecided(send(&app, get("/both")).await, &store).await;
    // Half of the 8 units that remained.
    assert_eq!(statuses(&app, "/local", 8).await, BTreeMap::from([(200, 4), (429, 4)]));
    // No rule applies, so the store is not used.
    assert_eq!(status(&app, get("/none")).await, StatusCode::OK);
    let want = "/both undecided: 1\n/closed undecided: 1\n/local degraded: 4\n\
        /local share spent: 4\n/none allowed: 1\n/open degraded: 16\n";
    assert_eq!(counted(&seen), want);
    store.recover(&limiter).await;
    for path in ["/open", "/closed", "/local"] {
        assert_eq!(statuses(&app, path, 10).await, BTreeMap::from([(200, 8), (429, 2)]), "{path}");
    }
    let want = "/closed allowed: 8\n/closed spent: 2\n/local allowed: 8\n\
        /local spent: 2\n/open allowed: 8\n/open spent: 2\n";
    assert_eq!(counted(&seen), want);
}

/// A fault of the next reply, and its name.
type Fault = (&'static str, fn(&Proxy));

const FAULTS: [Fault; 4] = [
    ("cut before", |proxy| proxy.cut_after_request(1)),
    ("cut within", |proxy| proxy.cut_mid_reply(1)),
    ("lost", |proxy| proxy.drop_replies(1)),
    ("refused", |proxy| {
        proxy.refuse_connections();
        proxy.cut_connections();
    }),
];

async fn assert_faults_are_answered(policy: OnFailure, want: StatusCode) {
    let store = Store::start();
    let limiter = store.builder().on_failure(policy).deadline(ms(50)).build().unwrap();
    let yaml = "
limits: { plenty: fixed-window limit=1000 window=366d }
rules: [{ name: r, domain: api, key: [ip], limit: plenty }]
";
    let direct = scope(&limiter, "plenty", "fixed-window limit=1000 window=366d");
    let by_rules = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    for app in [RateLimitLayer::new(direct), by_rules].map(app) {
        for (name, strike) in FAULTS {
            store.recover(&limiter).await;
            strike(&store.proxy);
            assert_eq!(status(&app, get("/")).await, want, "{policy:?}, {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_faults_are_answered_by_the_failure_policy() {
    let mut policies = JoinSet::new();
    for (policy, want) in [
        (OnFailure::Open, StatusCode::OK),
        (OnFailure::Closed, StatusCode::SERVICE_UNAVAILABLE),
        (OnFailure::Local { processes: Some(1) }, StatusCode::OK),
    ] {
        policies.spawn(assert_faults_are_answered(policy, want));
    }
    policies.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_and_processes_admit_exactly_the_limit() {
    let store = Store::start();
    let yaml = "
limits: { it: token-bucket capacity=50 refill=1/d }
rules: [{ name: r, domain: api, key: [ip], limit: it, deadline: 30s }]
";
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let limiter = store.limiter();
        let direct = scope(&limiter, "it", "token-bucket capacity=50 refill=1/d");
        let layers =
            [RateLimitLayer::new(direct), RateLimitLayer::rules(&rules(&limiter, yaml), "api")];
        for (which, layer) in layers.into_iter().enumerate() {
            let app = app(layer);
            for _ in 0..4 {
                let app = app.clone();
                tasks
                    .spawn(async move { (which, admitted(&app, (0..20).map(|_| get("/"))).await) });
            }
        }
    }
    let mut admitted_counts = [0; 2];
    for (which, admitted) in tasks.join_all().await {
        admitted_counts[which] += admitted;
    }
    assert_eq!(admitted_counts, [50, 50]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_are_the_same_in_memory_and_on_redis() {
    let store = Store::start();
    let limits = [
        "fixed-window limit=4 window=10s",
        "sliding-window-log limit=4 window=10s",
        "sliding-window-counter limit=4 window=10s",
        "token-bucket capacity=4 refill=3/7s",
        "leaky-bucket capacity=4 leak=3/7s",
        "leaky-bucket capacity=4 leak=3/7s mode=shaping",
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        let clock = ManualClock::at_us(MIDNIGHT_US);
        let yaml = format!(
            "
limits: {{ it: {limit}, all: fixed-window limit=30 window=1m }}
rules:
  - {{ name: each-{number}, domain: api, key: [ip], limit: it, cost: 2, deadline: 30s }}
  - {{ name: all-{number}, domain: api, key: [], limit: all, deadline: 30s }}
"
        );
        let on = |limiter: Limiter| {
            let direct = scope(&limiter, &format!("direct-{number}"), limit);
            let layers = [
                RateLimitLayer::new(direct),
                RateLimitLayer::rules(&rules(&limiter, &yaml), "api"),
            ];
            // A request that would be delayed is refused, so the test does not wait.
            layers.map(|layer| app(layer.max_wait(Duration::ZERO)))
        };
        let memory = on(Limiter::builder().clock(&clock).build());
        let redis = on(store.builder().clock(&clock).build().unwrap());
        let mut seed = 7_u64;
        for step in 0..60 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Up to two seconds, in microseconds.
            clock.advance(Duration::from_micros((seed >> 33) % 2_000_000 * (seed >> 63)));
            let client = || request("GET", "/", ["203.0.113.9", "[2001:db8::9]"][step % 2]);
            for (memory, redis) in memory.iter().zip(&redis) {
                let (want, got) = (send(memory, client()).await, send(redis, client()).await);
                assert_eq!(got.headers(), want.headers(), "{limit}, step {step}");
                assert_eq!(got.status(), want.status());
                assert_eq!(text(got).await, text(want).await, "{limit}, step {step}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_charge_is_refunded_on_the_server_when_dropped() {
    let store = Store::start();
    let clock = ManualClock::at_us(MIDNIGHT_US);
    let limiter = store.builder().clock(&clock).build().unwrap();
    let even = scope(&limiter, "even", "leaky-bucket capacity=10 leak=1/h mode=shaping");
    let seen = Seen::default();
    let layer = RateLimitLayer::new(even.clone()).max_wait(ms(24 * 3_600_000));
    let app = app(recording(layer, &seen));
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    let mut waiting = Box::pin(send(&app, get("/")));
    tokio::select! {
        response = &mut waiting => panic!("{response:?}"),
        () = until("the request is delayed", || seen.lock().unwrap().values().sum::<usize>() == 2) => {}
    }
    assert_eq!(even.peek("ip=203.0.113.9").await.unwrap().remaining(), 8);
    drop(waiting);
    let began = Instant::now();
    while even.peek("ip=203.0.113.9").await.unwrap().remaining() != 9 {
        assert!(began.elapsed() < PATIENCE, "the charge is not refunded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_is_refunded_when_dropped_before_the_server_answers() {
    let store = Store::start();
    let clock = ManualClock::at_us(MIDNIGHT_US);
    let limiter = store.builder().clock(&clock).build().unwrap();
    let shaping = "leaky-bucket capacity=10 leak=1/h mode=shaping";
    let yaml = format!(
        "limits: {{ even: {shaping} }}\nrules: [{{ name: even, domain: api, key: [ip], limit: even }}]\n"
    );
    let by_rules = RateLimitLayer::rules(&rules(&limiter, &yaml), "api");
    let even = scope(&limiter, "even", shaping);
    let layers = [
        (RateLimitLayer::new(even.clone()), even),
        (by_rules, scope(&limiter, "api/even", shaping)),
    ];
    for (layer, even) in layers {
        assert_dropped_request_is_refunded(&app(layer.max_wait(ms(24 * 3_600_000))), &even).await;
    }
}

async fn assert_dropped_request_is_refunded(app: &Router, even: &Scope) {
    assert_eq!(status(app, get("/")).await, StatusCode::OK);
    for round in 0..20 {
        let mut response = Box::pin(send(app, get("/")));
        std::future::poll_fn(|context| {
            assert!(response.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        // Dropped at once, or when the answer may have come and was not read.
        if round % 2 == 0 {
            even.peek("ip=203.0.113.9").await.unwrap();
        }
        drop(response);
        let began = Instant::now();
        while even.peek("ip=203.0.113.9").await.unwrap().remaining() != 9 {
            assert!(began.elapsed() < PATIENCE, "round {round}: the charge is not refunded");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_are_bounded_on_redis() {
    let store = Store::start();
    let limiter = store.builder().clock(&ManualClock::at_us(MIDNIGHT_US)).build().unwrap();
    let even = scope(&limiter, "even", "leaky-bucket capacity=1000 leak=1/h mode=shaping");
    let app = app(RateLimitLayer::new(even).max_wait(ms(24 * 3_600_000)).max_waiting(2));
    let mut tasks = JoinSet::new();
    for _ in 0..50 {
        let app = app.clone();
        tasks.spawn(async move { status(&app, get("/")).await });
    }
    let mut refused = 0;
    for _ in 0..48 {
        let answered = tokio::time::timeout(PATIENCE, tasks.join_next()).await;
        let status = answered.expect("at most two wait").unwrap().unwrap();
        refused += usize::from(status == StatusCode::TOO_MANY_REQUESTS);
    }
    assert!((47..=48).contains(&refused), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_keys_are_verified_once_a_request_on_redis() {
    let store = Store::start();
    let limiter = store.builder().clock(&ManualClock::at_us(MIDNIGHT_US)).build().unwrap();
    let limit = scope(&limiter, "free", "fixed-window limit=1000 window=366d");
    let (verified, seen): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let (verifies, sees) = (Arc::clone(&verified), Arc::clone(&seen));
    let identity = Identity::new()
        .jwt(Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap())
        .token_verifications("fixed-window limit=10 window=366d")
        .unwrap()
        .verify_api_keys(move |_| {
            verifies.fetch_add(1, Ordering::Relaxed);
            None
        });
    let layer = RateLimitLayer::new(limit).identity(identity);
    let layer = layer.key(|request| Some(request.claim("sub")?.into_owned() + request.tier()?));
    let app = app(layer.on_decision(move |request, _| {
        assert!(request.tier().is_none());
        sees.fetch_add(usize::from(request.claim("sub").is_some()), Ordering::Relaxed);
    }));
    for number in 0..6 {
        let claims = format!(r#"{{"sub":"{number}","exp":4102444800}}"#);
        let junk = signed(b"a secret that the client made up..", &claims);
        send(&app, with(bearing(&junk, "203.0.113.9"), "x-api-key", "k")).await;
    }
    // Six of ten verifications are used, so the good token is verified. The key verifier was called once for each of the
    // seven requests.
    let good = bearing(&token(r#""sub":"alice""#), "203.0.113.9");
    send(&app, with(good, "x-api-key", "k")).await;
    assert_eq!((verified.load(Ordering::Relaxed), seen.load(Ordering::Relaxed)), (7, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reused_service_does_not_wait_for_its_own_permit_on_redis() {
    let store = Store::start();
    let limiter = store.builder().build().unwrap();
    let served = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
    });
    for limit in
        ["fixed-window limit=9 window=1h", "leaky-bucket capacity=9 leak=1000/s mode=shaping"]
    {
        let layer = RateLimitLayer::new(scope(&limiter, limit, limit));
        let mut service = layer.layer(ConcurrencyLimit::new(served, 1));
        for _ in 0..5 {
            let response = service.ready().await.unwrap().call(get("/"));
            let response = tokio::time::timeout(PATIENCE, response).await.expect("a permit");
            assert_eq!(response.unwrap().status(), StatusCode::OK);
        }
    }
}
