//! Concurrency limits: a request holds a place until its response has ended.

use std::time::Duration;

use axum::response::IntoResponse;
use tokio::time::sleep;
use tollgate::ManualClock;
use tollgate::tower::Admission;

use super::*;

const TWO: &str = "concurrency limit=2 for=30s";

fn places() -> (ManualClock, Scope) {
    let (clock, limiter) = at_midnight();
    (clock, scope(&limiter, "places", TWO))
}

#[tokio::test]
async fn request_holds_a_place_until_its_body_has_ended() {
    let (_, scope) = places();
    let layer = RateLimitLayer::new(scope.clone());
    let (first, one) = streaming(layer.clone());
    let (second, _two) = streaming(layer.clone());
    let first = send(&first, get("/")).await;
    let second = send(&second, get("/")).await;
    assert_eq!((shown(&first).as_deref(), shown(&second).as_deref()), (Some("1"), Some("0")));
    let refused = send(&app(layer.clone()), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after").as_deref(), Some("30"));
    let problem = text(refused).await;
    assert!(problem.contains("`places` has no free place; come back in 30 s"), "{problem}");
    // Other clients have places of their own.
    assert_eq!(status(&app(layer.clone()), request("GET", "/", "203.0.113.10")).await, 200);
    drop(one);
    text(first).await;
    assert_eq!(held(&scope), 1);
    for _ in 0..5 {
        assert_eq!(text(send(&app(layer.clone()), get("/")).await).await, "hello");
    }
    drop(second);
    assert_eq!((held(&scope), left(&scope)), (0, 2));
}

#[tokio::test]
async fn place_is_free_when_the_request_is_dropped_or_fails() {
    let (_, scope) = places();
    let layer = RateLimitLayer::new(scope.clone());
    let never = Router::new().fallback(any(std::future::pending::<()>).layer(layer.clone()));
    let mut dropped = Box::pin(send(&never, get("/")));
    assert!(poll_once(dropped.as_mut()).is_pending());
    assert_eq!(held(&scope), 1);
    drop(dropped);
    assert_eq!(held(&scope), 0);
    async fn handler() -> StatusCode {
        panic!("as the test wants")
    }
    let panics = Router::new().fallback(any(handler).layer(layer));
    assert!(tokio::spawn(async move { status(&panics, get("/")).await }).await.is_err());
    assert_eq!((held(&scope), left(&scope)), (0, 2));
}

/// The limit's own time is the time of the hold.
#[tokio::test(start_paused = true)]
async fn place_is_renewed_while_the_response_streams() {
    let limiter = Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build();
    let scope = scope(&limiter, "places", TWO);
    let (app, _sender) = streaming(RateLimitLayer::new(scope.clone()));
    let response = send(&app, get("/")).await;
    let expires_us = || async {
        let state = scope.state("ip=203.0.113.9").await.unwrap();
        let expires_us = state.holds.iter().next().unwrap().expires_us;
        expires_us - MIDNIGHT_US
    };
    assert_eq!(expires_us().await, 30_000_000);
    sleep(Duration::from_millis(15_500)).await;
    assert_eq!(expires_us().await, 45_000_000);
    sleep(Duration::from_secs(1_000)).await;
    assert_eq!(held(&scope), 1);
    drop(response);
    assert_eq!(held(&scope), 0);
}

/// A refund gives back charges, and a place is not charged.
#[tokio::test]
async fn refund_does_not_free_the_place_of_a_response_that_streams() {
    let (_, scope) = places();
    let (app, _sender) = streaming(RateLimitLayer::new(scope.clone()).refund_if(|_| true));
    let response = send(&app, get("/")).await;
    assert_eq!(held(&scope), 1);
    drop(response);
    assert_eq!(held(&scope), 0);
    let refunds = |admission: Admission| async move {
        let back = admission.refund().await.unwrap();
        format!("{back} {}", admission.hold().is_some())
    };
    let layer = RateLimitLayer::new(scope.clone()).with_decision();
    let app = Router::new().fallback(any(refunds).layer(layer));
    assert_eq!(text(send(&app, get("/")).await).await, "0 true");
    assert_eq!(held(&scope), 0);
}

#[tokio::test]
async fn request_may_take_several_places() {
    let (_, scope) = places();
    let layer = RateLimitLayer::new(scope.clone()).cost(|request| match request.path() {
        "/heavy" => 2,
        "/free" => 0,
        _ => 1,
    });
    let (heavy, _sender) = streaming(layer.clone());
    let heavy = send(&heavy, get("/heavy")).await;
    assert_eq!((shown(&heavy).as_deref(), left(&scope)), (Some("0"), 0));
    let app = app(layer);
    assert_eq!(status(&app, get("/")).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status(&app, get("/free")).await, StatusCode::OK);
    drop(heavy);
    assert_eq!((status(&app, get("/")).await, left(&scope)), (StatusCode::OK, 2));
}

#[tokio::test]
async fn handler_frees_its_place_early_or_keeps_it_in_a_task() {
    let (_, scope) = places();
    let layer = RateLimitLayer::new(scope.clone()).with_decision();
    let (_sender, body) = sent_body();
    let body = Arc::new(Mutex::new(Some(body)));
    let early = move |admission: Admission| {
        let body = body.lock().unwrap().take().unwrap();
        async move {
            admission.hold().unwrap().release().await.unwrap();
            Body::new(body).into_response()
        }
    };
    let response = send(&Router::new().fallback(any(early).layer(layer.clone())), get("/")).await;
    assert_eq!(held(&scope), 0);
    drop(response);
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let keep = move |admission: Admission| {
        *keeps.lock().unwrap() = admission.hold();
        async {}
    };
    text(send(&Router::new().fallback(any(keep).layer(layer)), get("/")).await).await;
    assert_eq!(held(&scope), 1);
    kept.lock().unwrap().take();
    assert_eq!(held(&scope), 0);
}

/// Nothing says when an upgraded connection ends, unless the handler keeps a handle: the place is held for its time.
#[tokio::test]
async fn place_of_an_upgrade_without_a_handle_ends_by_its_time() {
    let (clock, scope) = places();
    let layer = RateLimitLayer::new(scope.clone());
    let upgrade = || async { StatusCode::SWITCHING_PROTOCOLS };
    let app = Router::new().fallback(any(upgrade).layer(layer));
    text(send(&app, get("/")).await).await;
    assert_eq!(held(&scope), 1);
    clock.advance(Duration::from_secs(30));
    assert_eq!((held(&scope), left(&scope)), (0, 2));
}
