//! Handlers that settle, release and extend the holds of their requests.

use axum::response::IntoResponse;
use http_body_util::BodyExt;
use tollgate::tower::{Admission, RequestHold};

use super::*;

/// An application whose handler gets the hold.
fn with_hold<F, R>(layer: RateLimitLayer, handler: F) -> Router
where
    F: Fn(RequestHold) -> R + Clone + Send + Sync + 'static,
    R: Future<Output: IntoResponse> + Send + 'static,
{
    let answer = move |admission: Admission| {
        let answer = handler(admission.hold().unwrap());
        async move { answer.await.into_response() }
    };
    Router::new().fallback(any(answer).layer(layer.with_decision()))
}

#[tokio::test]
async fn handler_that_settles_is_charged_once() {
    let scope = in_memory();
    let app = with_hold(hundred(&scope).settle(|_| 99), |hold| async move {
        let settled = hold.settle(70).await.unwrap();
        assert_eq!((settled.len(), settled[0].charged_units(), settled[0].ended()), (1, 70, None));
        assert!(hold.is_ended());
        assert_eq!((hold.units(), hold.expires_at_us()), (0, None));
        assert!(hold.settle(80).await.unwrap().is_empty());
        assert!(hold.release().await.unwrap().is_empty());
        assert!(hold.extend(10).await.unwrap().is_none());
        hold.note_used(5);
    });
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    assert_eq!((left(&scope), held(&scope)), (930, 0));
}

#[tokio::test]
async fn handler_that_releases_is_charged_nothing() {
    let scope = in_memory();
    let app = with_hold(hundred(&scope).settle(|_| 99), |hold| async move {
        let clone = hold.clone();
        drop(hold.release());
        assert!(clone.is_ended());
    });
    assert_eq!(status(&app, get("/")).await, StatusCode::OK);
    assert_eq!((left(&scope), held(&scope)), (1_000, 0));
}

#[tokio::test]
async fn handler_extends_the_hold_while_the_limit_allows_it() {
    let scope = in_memory();
    let app = with_hold(hundred(&scope), |hold| async move {
        assert!(hold.extend(700).await.unwrap().unwrap().is_granted());
        assert_eq!(hold.units(), 800);
        let refused = hold.extend(300).await.unwrap().unwrap();
        assert!(!refused.is_granted());
        assert_eq!(hold.units(), 800);
        assert!(hold.expires_at_us() > Some(MIDNIGHT_US));
    });
    let response = send(&app, get("/")).await;
    // The headers show the reservation. The whole hold is charged, because nothing else is known.
    assert_eq!(shown(&response).as_deref(), Some("900"));
    text(response).await;
    assert_eq!((left(&scope), held(&scope)), (200, 0));
}

#[tokio::test]
async fn noted_use_is_charged_unless_the_response_says_otherwise() {
    for (actual, want) in [(None, 960), (Some(30), 970)] {
        let scope = in_memory();
        let layer = hundred(&scope).settle(move |_| actual);
        let app = with_hold(layer, |hold| async move { hold.note_used(40) });
        text(send(&app, get("/")).await).await;
        assert_eq!(left(&scope), want);
    }
}

/// A streaming handler notes what it has used so far, for a client that hangs up.
#[tokio::test]
async fn use_noted_while_streaming_is_charged_when_the_body_is_dropped() {
    let scope = in_memory();
    let (sender, body) = sent_body();
    let body = Arc::new(Mutex::new(Some(body)));
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let app = with_hold(hundred(&scope), move |hold| {
        *keeps.lock().unwrap() = Some(hold);
        let body = body.lock().unwrap().take().unwrap();
        async move { Body::new(body) }
    });
    let mut body = send(&app, get("/")).await.into_body();
    for used in [10, 20, 30] {
        sender.data("word");
        body.frame().await.unwrap().unwrap();
        kept.lock().unwrap().as_ref().unwrap().note_used(used);
    }
    drop(body);
    // The handler still has its handle.
    assert_eq!((left(&scope), held(&scope)), (900, 1));
    kept.lock().unwrap().take();
    assert_eq!((left(&scope), held(&scope)), (970, 0));
}

#[tokio::test]
async fn handle_in_a_task_keeps_the_hold_after_the_response() {
    let scope = in_memory();
    let (task, ends) = tokio::sync::oneshot::channel::<u64>();
    let ends = Arc::new(Mutex::new(Some(ends)));
    let (done, is_done) = tokio::sync::oneshot::channel::<()>();
    let done = Arc::new(Mutex::new(Some(done)));
    let app = with_hold(hundred(&scope), move |hold| {
        let (ends, done) = (ends.lock().unwrap().take(), done.lock().unwrap().take());
        tokio::spawn(async move {
            hold.note_used(ends.unwrap().await.unwrap());
            drop(hold);
            done.unwrap().send(()).unwrap();
        });
        async { StatusCode::ACCEPTED }
    });
    text(send(&app, get("/")).await).await;
    assert_eq!((left(&scope), held(&scope)), (900, 1));
    task.send(7).unwrap();
    is_done.await.unwrap();
    assert_eq!((left(&scope), held(&scope)), (993, 0));
}

#[tokio::test]
async fn refund_by_the_handler_releases_the_hold() {
    let scope = in_memory();
    let answer = |admission: Admission| async move {
        let hold = admission.hold().unwrap();
        let back = [admission.refund().await.unwrap(), admission.refund().await.unwrap()];
        assert!(hold.is_ended() && admission.hold().is_none());
        format!("{back:?}")
    };
    let app = Router::new().fallback(any(answer).layer(hundred(&scope).with_decision()));
    let response = send(&app, get("/")).await;
    assert_eq!((shown(&response).as_deref(), held(&scope)), (Some("1000"), 0));
    assert_eq!(text(response).await, "[100, 0]");
}

#[tokio::test]
async fn request_without_a_reservation_has_no_hold() {
    let answer = |admission: Admission| async move { admission.hold().is_some().to_string() };
    let plain = RateLimitLayer::new(in_memory()).with_decision();
    for (layer, want) in [(plain, "false"), (hundred(&in_memory()).with_decision(), "true")] {
        let app = Router::new().fallback(any(answer).layer(layer));
        assert_eq!(text(send(&app, get("/")).await).await, want);
    }
}

#[tokio::test]
async fn admission_has_no_hold_after_the_response() {
    let scope = in_memory();
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let answer = move |admission: Admission| {
        *keeps.lock().unwrap() = Some(admission);
        async { "hello" }
    };
    let app = Router::new().fallback(any(answer).layer(hundred(&scope).with_decision()));
    let response = send(&app, get("/")).await;
    assert!(kept.lock().unwrap().as_ref().unwrap().hold().is_some());
    text(response).await;
    assert!(kept.lock().unwrap().as_ref().unwrap().hold().is_none());
    assert_eq!((left(&scope), held(&scope)), (900, 0));
}
