//! Holds of requests that take longer than the time of their holds.

use std::convert::Infallible;
use std::time::Duration;

use http::Request;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use super::*;
use crate::log::Log;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How many tasks run.
async fn tasks() -> usize {
    // A task that was aborted ends when the runtime polls it.
    tokio::task::yield_now().await;
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// A service that responds after a while.
fn late(
    after: Duration,
) -> impl tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone {
    service_fn(move |_: Request<Body>| async move {
        sleep(after).await;
        Ok(Response::new(Body::from("hello")))
    })
}

#[tokio::test(start_paused = true)]
async fn hold_is_renewed_while_the_handler_works() {
    let scope = on_tokios_clock();
    let layer = hundred(&scope).hold_for(seconds(10)).settle(|_| 1);
    let response = tokio::spawn(layer.layer(late(seconds(100))).oneshot(get("/")));
    for _ in 0..9 {
        sleep(seconds(11)).await;
        assert_eq!((left(&scope), held(&scope)), (900, 1));
    }
    text(response.await.unwrap().unwrap()).await;
    assert_eq!((left(&scope), held(&scope)), (999, 0));
}

/// A client that does not read: the server does not poll the body.
#[tokio::test(start_paused = true)]
async fn hold_is_renewed_while_nothing_polls_the_body() {
    let scope = on_tokios_clock();
    let (app, sender) = streaming(hundred(&scope).hold_for(seconds(10)).settle(|_| 1));
    let response = send(&app, get("/")).await;
    sleep(seconds(1_000)).await;
    assert_eq!((left(&scope), held(&scope)), (900, 1));
    drop(sender);
    text(response).await;
    assert_eq!((left(&scope), held(&scope)), (999, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_of_a_shorter_request_is_not_renewed_afterwards() {
    let scope = on_tokios_clock();
    let layer = hundred(&scope).hold_for(seconds(10));
    text(layer.layer(late(seconds(3))).oneshot(get("/")).await.unwrap()).await;
    assert_eq!((left(&scope), held(&scope), tasks().await), (900, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_is_renewed_for_max_hold_at_most_and_then_expires() {
    let scope = on_tokios_clock();
    let layer = hundred(&scope).hold_for(seconds(10)).max_hold(seconds(60)).settle(|_| 1);
    let (app, sender) = streaming(layer);
    let response = send(&app, get("/")).await;
    sleep(seconds(64)).await;
    assert_eq!(held(&scope), 1);
    sleep(seconds(6)).await;
    // Charged in full at its expiry, and not a second time.
    assert_eq!((left(&scope), held(&scope), tasks().await), (900, 0, 0));
    drop(sender);
    text(response).await;
    assert_eq!((left(&scope), held(&scope)), (900, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_that_a_reset_has_forgotten_is_not_renewed_and_logged() {
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    let scope = on_tokios_clock();
    let (app, _sender) = streaming(hundred(&scope).hold_for(seconds(10)).settle(|_| 1));
    let response = send(&app, get("/")).await;
    scope.reset("ip=203.0.113.9").await.unwrap();
    sleep(seconds(100)).await;
    assert_eq!(tasks().await, 0);
    drop(response);
    assert_eq!(left(&scope), 1_000);
    let lines = lines.lock().unwrap();
    let logged = lines.iter().filter(|line| line.contains("ended before its response")).count();
    assert_eq!(logged, 1, "{lines:?}");
}

/// Times of a few milliseconds do not make a busy loop.
#[tokio::test(start_paused = true)]
async fn shortest_times_are_renewed_once_a_millisecond() {
    let scope = on_tokios_clock();
    let (app, sender) = streaming(hundred(&scope).hold_for(Duration::from_millis(3)));
    let response = send(&app, get("/")).await;
    sleep(seconds(1)).await;
    assert_eq!(held(&scope), 1);
    drop(sender);
    text(response).await;
    // A hold that ends before the first timer is charged at its expiry.
    let (app, _sender) = streaming(hundred(&scope).hold_for(Duration::from_micros(1)));
    let _response = send(&app, get("/")).await;
    sleep(seconds(1)).await;
    assert_eq!((left(&scope), held(&scope)), (800, 0));
    assert_eq!(tasks().await, 0);
}

/// Without a tokio runtime there are no timers: the hold is renewed when the future and the body are polled.
#[test]
fn hold_is_renewed_when_polled_without_a_runtime() {
    let (clock, limiter) = at_midnight();
    let scope = tokens(&limiter);
    let (handler, works) = tokio::sync::oneshot::channel::<Response<Body>>();
    let works = Arc::new(Mutex::new(Some(works)));
    let service = service_fn(move |_: Request<Body>| {
        let works = works.lock().unwrap().take().unwrap();
        async move { Ok::<_, Infallible>(works.await.unwrap()) }
    });
    let layer = hundred(&scope).hold_for(seconds(10)).max_hold(seconds(60)).settle(|_| 1);
    let mut future = Box::pin(layer.layer(service).oneshot(get("/")));
    assert!(poll_once(future.as_mut()).is_pending());
    for _ in 0..3 {
        clock.advance(seconds(6));
        assert!(poll_once(future.as_mut()).is_pending());
        assert_eq!((left(&scope), held(&scope)), (900, 1));
    }
    let (sender, body) = sent_body();
    handler.send(Response::new(Body::new(body))).unwrap();
    let Poll::Ready(Ok(response)) = poll_once(future.as_mut()) else { panic!("no response") };
    let mut body = Box::pin(response.into_body());
    let mut poll = || {
        let mut frame = pin!(http_body_util::BodyExt::frame(&mut body));
        poll_once(frame.as_mut()).is_pending()
    };
    for _ in 0..7 {
        clock.advance(seconds(6));
        assert!(poll());
        assert_eq!((left(&scope), held(&scope)), (900, 1));
    }
    // Last renewed after 54 s, and not after 60 s.
    clock.advance(seconds(6));
    assert!(poll());
    assert_eq!((left(&scope), held(&scope)), (900, 0));
    drop(sender);
    assert!(!poll());
    assert_eq!(left(&scope), 900);
}
