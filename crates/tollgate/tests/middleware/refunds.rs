//! Charges that are refunded by the layer and by handlers.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::routing::any;
use axum::{Json, Router};
use hyper::body::Frame;
use tollgate::tower::{Admission, RateLimitLayer};
use tollgate::{Error, Limiter, OnFailure};
use tower::{Layer, Service};

use crate::failure::Store;
use crate::log::Log;
use crate::support::*;

const RULES: &str = "
limits:
  each: fixed-window limit=10 window=1h
  all: token-bucket capacity=4 refill=1/h
rules:
  - { name: per-client, domain: api, key: [ip], limit: each, cost: 2 }
  - { name: everyone, domain: api, key: [], limit: all }
  - { name: tried, domain: api, key: [ip], limit: each, shadow: true }
";

/// An application that answers with the status in the path, `/500`.
fn statuses(layer: RateLimitLayer) -> Router {
    let answer = |request: Request<Body>| async move {
        let code: u16 = request.uri().path()[1..].parse().unwrap();
        StatusCode::from_u16(code).unwrap()
    };
    Router::new().fallback(any(answer).layer(layer))
}

/// Returns the units that remain, as the header reports them.
fn left(response: &Response<Body>) -> Option<String> {
    header(response.headers(), "x-ratelimit-remaining")
}

/// A layer of each kind: its name, the layer, and what remains before and after a charge.
fn layers(limiter: &Limiter) -> [(&'static str, RateLimitLayer, &'static str, &'static str); 3] {
    let limit = "fixed-window limit=10 window=1h";
    let of = |name: &str| RateLimitLayer::new(scope(limiter, name, limit));
    let rules = RateLimitLayer::rules(&rules(limiter, RULES), "api");
    [
        ("a scope", of("plain"), "10", "9"),
        ("a key", of("by key").key(|_| Some("alice".to_owned())), "10", "9"),
        ("rules", rules, "4", "3"),
    ]
}

async fn assert_refund_if_refunds(limiter: &Limiter) {
    for (kind, layer, whole, charged) in layers(limiter) {
        let app = statuses(layer.refund_if(|response| response.status().is_server_error()));
        for _ in 0..20 {
            assert_eq!(left(&send(&app, get("/500")).await).as_deref(), Some(whole), "{kind}");
        }
        let kept = send(&app, get("/200")).await;
        assert_eq!(left(&kept).as_deref(), Some(charged), "{kind}");
        let refunded = send(&app, get("/503")).await;
        // After the refund, the headers are the same as after the request before.
        let [kept, refunded] = [kept, refunded].map(|response| rate_limit_headers(&response));
        assert_eq!(
            refunded.split_once('\n').unwrap().1,
            kept.split_once('\n').unwrap().1,
            "{kind}"
        );
    }
}

#[tokio::test]
async fn refund_if_refunds_the_charge_and_updates_headers_in_memory() {
    let (_, limiter) = at_midnight();
    assert_refund_if_refunds(&limiter).await;
}

#[tokio::test]
async fn refund_if_refunds_the_charge_and_updates_headers_on_redis() {
    let (store, clock) = (Store::start(), tollgate::ManualClock::at_us(MIDNIGHT_US));
    let limiter = store.builder().clock(&clock).build().unwrap();
    assert_refund_if_refunds(&limiter).await;
}

#[tokio::test]
async fn refund_if_refunds_shadow_rules_too() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { tried: fixed-window limit=10 window=1h }
rules: [{ name: shadow, domain: api, key: [ip], limit: tried, shadow: true }]
";
    let rules = rules(&limiter, yaml);
    let app = statuses(RateLimitLayer::rules(&rules, "api").refund_if(|_| true));
    assert_eq!(left(&send(&app, get("/200")).await), None);
    let tried = rules.scope("api/shadow").unwrap();
    assert_eq!(tried.peek("ip=203.0.113.9").now().unwrap().remaining(), 10);
}

#[tokio::test]
async fn refund_if_refunds_when_one_of_its_conditions_holds() {
    let (_, limiter) = at_midnight();
    let [(_, layer, ..), ..] = layers(&limiter);
    let app = statuses(
        layer
            .refund_if(|response| response.status() == StatusCode::NOT_FOUND)
            .refund_if(|response| response.status() == StatusCode::OK),
    );
    for (path, remaining) in [("/404", "10"), ("/200", "10"), ("/204", "9")] {
        assert_eq!(left(&send(&app, get(path)).await).as_deref(), Some(remaining), "{path}");
    }
}

/// A handler that refunds the charge unless the path is `/keep`.
async fn login(admission: Admission, request: Request<Body>) -> String {
    let tightest = admission.outcome().tightest().unwrap();
    let seen = format!("{} {}", tightest.name(), tightest.decision().remaining());
    if request.uri().path() == "/keep" {
        return seen;
    }
    let clone = admission.clone();
    let (first, second) = (clone.refund().await.unwrap(), admission.refund().await.unwrap());
    assert!(admission.is_refunded());
    format!("{seen}, back {first} and {second}")
}

async fn handlers_read_and_refund(limiter: &Limiter) {
    let bodies = [("plain 9", "1"), ("by key 9", "1"), ("everyone 3", "4")];
    for ((kind, layer, whole, charged), (seen, back)) in layers(limiter).into_iter().zip(bodies) {
        // `refund_if` holds too, and the charge comes back once.
        let layer = layer.with_decision().refund_if(|response| response.status().is_success());
        let keeping = layer.clone();
        let app = Router::new().fallback(any(login).layer(layer));
        for _ in 0..20 {
            let refunded = send(&app, get("/")).await;
            assert_eq!(left(&refunded).as_deref(), Some(whole), "{kind}");
            assert_eq!(text(refunded).await, format!("{seen}, back {back} and 0"), "{kind}");
        }
        let kept = Router::new().fallback(any(login).layer(keeping));
        assert_eq!(left(&send(&kept, get("/keep")).await).as_deref(), Some(whole), "{kind}");
        assert_ne!(whole, charged);
    }
}

#[tokio::test]
async fn handlers_read_the_decision_and_refund_it_once_in_memory() {
    handlers_read_and_refund(&at_midnight().1).await;
}

#[tokio::test]
async fn handlers_read_the_decision_and_refund_it_once_on_redis() {
    let store = Store::start();
    handlers_read_and_refund(&store.limiter()).await;
}

#[tokio::test]
async fn headers_include_a_handlers_refund() {
    let (_, limiter) = at_midnight();
    let [(_, layer, ..), ..] = layers(&limiter);
    let app = Router::new().fallback(any(login).layer(layer.with_decision()));
    assert_eq!(left(&send(&app, get("/keep")).await).as_deref(), Some("9"));
    assert_eq!(left(&send(&app, get("/")).await).as_deref(), Some("9"));
}

#[tokio::test]
async fn inner_service_sees_the_decision_only_when_enabled() {
    let (_, limiter) = at_midnight();
    let seen = |request: Request<Body>| async move {
        format!("{:?}", request.extensions().get::<Admission>().map(Admission::is_refunded))
    };
    for (kind, layer, ..) in layers(&limiter) {
        let plain = Router::new().fallback(any(seen).layer(layer.clone()));
        assert_eq!(text(send(&plain, get("/")).await).await, "None", "{kind}");
        let refunding = layer.clone().refund_if(|_| false);
        let refunding = Router::new().fallback(any(seen).layer(refunding));
        assert_eq!(text(send(&refunding, get("/")).await).await, "None", "{kind}");
        let shown = Router::new().fallback(any(seen).layer(layer.with_decision()));
        assert_eq!(text(send(&shown, get("/")).await).await, "Some(false)", "{kind}");
    }
}

#[tokio::test]
async fn skipped_request_has_no_decision() {
    let (_, limiter) = at_midnight();
    let [(_, layer, ..), ..] = layers(&limiter);
    let layer = layer.with_decision().skip(|request| request.path() != "/limited");
    let wanted = |admission: Option<Admission>| async move { admission.is_some().to_string() };
    let app = Router::new().fallback(any(wanted).layer(layer.clone()));
    assert_eq!(text(send(&app, get("/")).await).await, "false");
    assert_eq!(text(send(&app, get("/limited")).await).await, "true");
    let needed = |_: Admission| async { "hello" };
    let app = Router::new().fallback(any(needed).layer(layer));
    assert_eq!(status(&app, get("/")).await, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(status(&app, get("/limited")).await, StatusCode::OK);
}

#[tokio::test]
async fn handlers_refund_the_inner_one_of_two_layers() {
    let (_, limiter) = at_midnight();
    let limit = "fixed-window limit=10 window=1h";
    let [outer, inner] = ["outer", "inner"].map(|name| scope(&limiter, name, limit));
    let [first, second] =
        [&inner, &outer].map(|scope| RateLimitLayer::new(scope.clone()).with_decision());
    let app = Router::new().fallback(login).layer(first).layer(second);
    assert_eq!(text(send(&app, get("/")).await).await, "inner 9, back 1 and 0");
    assert_eq!(inner.peek("ip=203.0.113.9").now().unwrap().remaining(), 10);
    assert_eq!(outer.peek("ip=203.0.113.9").now().unwrap().remaining(), 9);
}

/// The refund of the last charge also takes back its delay for the next request.
#[tokio::test(start_paused = true)]
async fn last_charge_of_a_shaping_limit_is_refunded() {
    let clock = tollgate::Clock::tokio(MIDNIGHT_US);
    let limiter = Limiter::builder().clock(clock).build();
    let mail = scope(&limiter, "mail", "leaky-bucket capacity=10 leak=1/s mode=shaping");
    let layer = RateLimitLayer::new(mail.clone()).key(|_| Some("all".to_owned())).with_decision();
    let app = statuses(layer.refund_if(|response| response.status().is_server_error()));
    let delay = || mail.peek("key=all").now().unwrap().delay();
    assert_eq!(status(&app, get("/200")).await, StatusCode::OK);
    assert_eq!(delay(), ms(1_000));
    let refunded = send(&app, get("/500")).await;
    // The request waited a second, in which the first charge leaked, and its own charge was refunded.
    assert_eq!(left(&refunded).as_deref(), Some("10"));
    assert_eq!(delay(), ms(0));
}

#[tokio::test]
async fn degraded_decision_has_nothing_to_refund() {
    let store = Store::start();
    let limiter = store.builder().on_failure(OnFailure::Open).deadline(ms(50)).build().unwrap();
    store.fail();
    for (kind, layer, ..) in layers(&limiter) {
        let layer = layer.with_decision().refund_if(|_| true);
        let degraded = |admission: Admission| async move {
            assert!(admission.outcome().is_degraded());
            admission.refund().await.unwrap().to_string()
        };
        let app = Router::new().fallback(any(degraded).layer(layer));
        let response = send(&app, get("/")).await;
        assert_eq!(left(&response), None, "{kind}");
        assert_eq!(text(response).await, "0", "{kind}");
    }
}

#[tokio::test]
async fn response_is_sent_when_the_refund_fails() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    for number in 0..3 {
        let store = Arc::new(Store::start());
        let limiter = store.builder().deadline(ms(200)).build().unwrap();
        let (kind, layer, _, charged) = layers(&limiter).into_iter().nth(number).unwrap();
        let fail = move || {
            let store = Arc::clone(&store);
            async move {
                store.fail();
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        let layer = layer.refund_if(|response| response.status().is_server_error());
        let app = Router::new().fallback(any(fail).layer(layer));
        let response = send(&app, get("/")).await;
        // The headers report the decision, whose charge stays.
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "{kind}");
        assert_eq!(left(&response).as_deref(), Some(charged), "{kind}");
    }
    let lines = lines.lock().unwrap();
    let warned = lines.iter().filter(|line| line.contains("was not refunded")).count();
    assert_eq!(warned, 3, "one warning for each layer");
}

#[tokio::test]
async fn handler_gets_an_error_when_a_refund_fails() {
    let store = Arc::new(Store::start());
    let limiter = store.builder().deadline(ms(200)).build().unwrap();
    let [(_, layer, ..), ..] = layers(&limiter);
    let fail = move |admission: Admission| {
        let store = Arc::clone(&store);
        async move {
            store.fail();
            matches!(admission.refund().await, Err(Error::Store(_))).to_string()
        }
    };
    let app = Router::new().fallback(any(fail).layer(layer.with_decision()));
    assert_eq!(text(send(&app, get("/")).await).await, "true");
}

#[tokio::test]
async fn dropped_response_future_keeps_the_charge() {
    let (_, limiter) = at_midnight();
    let scope = scope(&limiter, "plain", "fixed-window limit=10 window=1h");
    let layer = RateLimitLayer::new(scope.clone()).refund_if(|_| true);
    let never = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let mut future = Box::pin(layer.layer(never).call(get("/")));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(matches!(future.as_mut().poll(context), Poll::Pending));
    drop(future);
    assert_eq!(scope.peek("ip=203.0.113.9").now().unwrap().remaining(), 9);
}

#[tokio::test]
async fn refuse_with_sends_axum_responses_and_replaces_late_or_large_bodies() {
    let (_, limiter) = at_midnight();
    let layer = || RateLimitLayer::new(scope(&limiter, "none", "fixed-window limit=1 window=1h"));
    let refuse = |layer: RateLimitLayer| async move {
        let app = app(layer.cost(|_| 2));
        let response = send(&app, get("/")).await;
        (response.status(), header(response.headers(), "x-ratelimit-limit"), text(response).await)
    };
    let json = layer().refuse_with(|_, refusal| {
        let detail = refusal.detail().len() > 10;
        (StatusCode::SERVICE_UNAVAILABLE, Json(serde_json::json!({ "detail": detail })))
    });
    let expected = (StatusCode::SERVICE_UNAVAILABLE, Some("1".to_owned()), "{\"detail\":true}");
    let (status, limit, body) = refuse(json).await;
    assert_eq!((status, limit, &*body), expected);
    // A body that is not ready at once, or too large, is replaced.
    let never = layer().refuse_with(|_, _| Body::new(Never));
    let large = layer().refuse_with(|_, _| vec![b'a'; (1 << 20) + 1]);
    for layer in [never, large] {
        let (status, _, body) = refuse(layer).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(body.contains("\"status\":429"), "{body}");
    }
}

/// A body that is never ready.
struct Never;

impl hyper::body::Body for Never {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, Infallible>>> {
        Poll::Pending
    }
}
