//! Stores that fail between a reservation and its settlement.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::OnFailure;
use tower::{Layer, ServiceExt, service_fn};

use super::store::BreakableStore;
use super::*;
use crate::log::Log;
use crate::servers::PATIENCE;

/// A scope on a store, on tokio's paused clock.
fn on(store: &BreakableStore, on_failure: OnFailure) -> Scope {
    let builder = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US));
    let limiter = builder.store(|_| Ok(store.clone())).unwrap().deadline(PATIENCE).build();
    tokens(&limiter).on_failure(on_failure)
}

async fn left_on(scope: &Scope) -> u64 {
    scope.peek("ip=203.0.113.9").await.unwrap().remaining()
}

/// Lets tasks that were spawned come to their end.
async fn settle_down() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn reservation_on_a_store_across_the_network_is_settled() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Closed);
    let (app, sender) = streaming(hundred(&scope).settle(|_| 30));
    let response = send(&app, get("/")).await;
    assert_eq!((shown(&response).as_deref(), left_on(&scope).await), (Some("900"), 900));
    drop(sender);
    text(response).await;
    assert_eq!(left_on(&scope).await, 970);
    let refused = RateLimitLayer::new(scope.clone()).reserve(|_| 971);
    let refused = send(&app_of(refused), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(left_on(&scope).await, 970);
}

fn app_of(layer: RateLimitLayer) -> Router {
    crate::support::app(layer)
}

#[tokio::test(start_paused = true)]
async fn open_policy_admits_a_request_without_a_hold() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Open);
    store.set_failing(true);
    let layer = hundred(&scope).settle(|_| 30);
    let response = send(&app_of(layer), get("/")).await;
    assert_eq!(rate_limit_headers(&response), "200\n");
    // A cost above the limit never fits.
    let layer = RateLimitLayer::new(scope.clone()).reserve(|_| 1_001);
    assert_eq!(status(&app_of(layer), get("/")).await, StatusCode::TOO_MANY_REQUESTS);
    store.set_failing(false);
    assert_eq!(left_on(&scope).await, 1_000);
}

#[tokio::test(start_paused = true)]
async fn closed_policy_refuses_a_reservation() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Closed);
    store.set_failing(true);
    let response = send(&app_of(hundred(&scope)), get("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(header(response.headers(), "retry-after").is_some());
}

/// The share is 500 units: four requests have used 80, and four more reserve 400.
#[tokio::test(start_paused = true)]
async fn local_policy_reserves_on_the_share_of_this_process() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Local { processes: Some(2) });
    store.set_failing(true);
    let app = app_of(hundred(&scope).settle(|_| 20));
    let mut responses = Vec::new();
    for number in 0..8 {
        let response = send(&app, get("/")).await;
        assert_eq!(rate_limit_headers(&response), "200\n");
        match number {
            0..4 => drop(text(response).await),
            _ => responses.push(response),
        }
    }
    let refused = send(&app, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "x-ratelimit-limit").as_deref(), Some("500"));
    store.set_failing(false);
    assert_eq!(left_on(&scope).await, 1_000);
}

/// The handler works as usual; nothing that it does counts.
#[tokio::test(start_paused = true)]
async fn handler_has_a_hold_when_the_open_policy_has_decided() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Open);
    store.set_failing(true);
    let answer = |admission: tollgate::tower::Admission| async move {
        let hold = admission.hold().unwrap();
        let is_extended = hold.extend(10_000).await.unwrap().unwrap().is_granted();
        format!("{} {is_extended}", admission.outcome().is_degraded())
    };
    let app = Router::new().fallback(any(answer).layer(hundred(&scope).with_decision()));
    assert_eq!(text(send(&app, get("/")).await).await, "true true");
    store.set_failing(false);
    assert_eq!(left_on(&scope).await, 1_000);
}

/// The settlement arrives when the store answers again.
#[tokio::test(start_paused = true)]
async fn settlement_that_fails_is_sent_again() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Open);
    let (app, sender) = streaming(hundred(&scope).settle(|_| 30));
    let response = send(&app, get("/")).await;
    store.set_failing(true);
    drop(sender);
    assert_eq!(text(response).await, "");
    sleep(Duration::from_secs(20)).await;
    store.set_failing(false);
    assert_eq!(left_on(&scope).await, 900);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(left_on(&scope).await, 970);
    // And not again after that.
    sleep(Duration::from_secs(100)).await;
    assert_eq!(left_on(&scope).await, 970);
}

/// After an outage that is longer than the hold, the hold has been charged in full at its expiry.
#[tokio::test(start_paused = true)]
async fn settlement_that_fails_until_the_expiry_is_logged() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Open);
    let (app, sender) = streaming(hundred(&scope).settle(|_| 30));
    let response = send(&app, get("/")).await;
    store.set_failing(true);
    drop(sender);
    assert_eq!(text(response).await, "");
    sleep(Duration::from_secs(70)).await;
    store.set_failing(false);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(left_on(&scope).await, 900);
    let lines = lines.lock().unwrap();
    let logged = lines.iter().filter(|line| line.contains("was not settled")).count();
    assert_eq!(logged, 1, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn renewal_that_fails_is_tried_again_until_the_hold_has_expired() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Open);
    let (app, sender) = streaming(hundred(&scope).hold_for(Duration::from_secs(8)).settle(|_| 30));
    let response = send(&app, get("/")).await;
    // The renewals after 4, 5 and 6 s fail, and that after 7 s succeeds.
    store.set_failing(true);
    sleep(Duration::from_millis(6_500)).await;
    store.set_failing(false);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(left_on(&scope).await, 900);
    // An outage longer than the hold: it is charged in full at its expiry.
    store.set_failing(true);
    sleep(Duration::from_secs(20)).await;
    store.set_failing(false);
    drop(sender);
    text(response).await;
    settle_down().await;
    assert_eq!(left_on(&scope).await, 900);
    let lines = lines.lock().unwrap();
    let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert!(count("was not renewed") > 0, "{lines:?}");
}

/// A client that hangs up while the store decides: the handler never saw the request.
#[tokio::test(start_paused = true)]
async fn reservation_that_nothing_waits_for_is_released() {
    let store = BreakableStore::start();
    let scope = on(&store, OnFailure::Closed);
    store.delay_replies();
    let handler = service_fn(|_: http::Request<Body>| async {
        panic!("not called");
        #[allow(unreachable_code)]
        Ok::<Response<Body>, std::convert::Infallible>(Response::new(Body::empty()))
    });
    let mut future = Box::pin(hundred(&scope).layer(handler).oneshot(get("/")));
    assert!(poll_once(future.as_mut()).is_pending());
    assert_eq!(left_on(&scope).await, 900);
    drop(future);
    store.reply();
    settle_down().await;
    assert_eq!(left_on(&scope).await, 1_000);
}
