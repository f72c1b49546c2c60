//! The units that are charged, for each way in which a request can end.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use http::Request;
use http_body_util::BodyExt;
use tollgate::tower::{ActualCost, BodyMeter, ResponseHead};
use tower::{Layer, ServiceExt, service_fn};

use super::*;

/// The cost that a handler puts into the extensions of its response.
#[derive(Clone, Copy)]
struct RowsRead(u64);

/// Reads the cost from the last line of the body.
fn last_line(tail: &[u8]) -> Option<u64> {
    str::from_utf8(tail).ok()?.lines().last()?.strip_prefix("used ")?.parse().ok()
}

/// Reads the cost from the trailers.
struct Trailer(Option<u64>);

impl BodyMeter for Trailer {
    fn data(&mut self, _: &[u8]) {}

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.0 = trailers.get("used").and_then(|used| used.to_str().ok()?.parse().ok());
    }

    fn units(&mut self) -> Option<u64> {
        self.0
    }
}

fn by_header(response: &dyn ResponseHead) -> Option<u64> {
    response.headers().get("x-used")?.to_str().ok()?.parse().ok()
}

/// Sends a request whose response streams. Returns what remains while it streams, and after its end.
async fn streamed(
    scope: &Scope,
    layer: RateLimitLayer,
    head: impl FnOnce(&mut Response<Body>),
    end: impl FnOnce(&FrameSender),
) -> [u64; 2] {
    let (sender, body) = sent_body();
    let mut response = Response::new(Body::new(body));
    head(&mut response);
    let response = send(&answering(layer, response), get("/")).await;
    assert_eq!(shown(&response).as_deref(), Some("900"));
    let mut body = response.into_body();
    sender.data("hello\n");
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello\n");
    let held = left(scope);
    end(&sender);
    drop(sender);
    while let Some(frame) = body.frame().await {
        frame.ok();
    }
    [held, left(scope)]
}

#[tokio::test]
async fn actual_cost_is_charged_when_the_body_has_ended() {
    let scope = in_memory();
    let layer = hundred(&scope).settle(by_header);
    let head = |response: &mut Response<Body>| {
        response.headers_mut().insert("x-used", 70.into());
    };
    assert_eq!(streamed(&scope, layer, head, |_| ()).await, [900, 930], "header");

    let scope = in_memory();
    let layer = hundred(&scope).settle(|response| Some(response.extensions().get::<RowsRead>()?.0));
    let head = |response: &mut Response<Body>| {
        response.extensions_mut().insert(RowsRead(0));
    };
    assert_eq!(streamed(&scope, layer, head, |_| ()).await, [900, 1_000], "extension");

    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| ActualCost::from_tail(16, last_line));
    let end = |sender: &FrameSender| {
        for part in ["a long text\n", "used", " 7", "5"] {
            sender.data(part);
        }
    };
    assert_eq!(streamed(&scope, layer, |_| (), end).await, [900, 925], "tail");

    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| ActualCost::metered(Trailer(None)));
    let end = |sender: &FrameSender| {
        sender.trailers(HeaderMap::from_iter([("used".parse().unwrap(), 33.into())]));
    };
    assert_eq!(streamed(&scope, layer, |_| (), end).await, [900, 967], "trailers");
}

#[tokio::test]
async fn estimate_is_charged_in_full_when_no_actual_cost_is_found() {
    let scope = in_memory();
    assert_eq!(streamed(&scope, hundred(&scope), |_| (), |_| ()).await, [900, 900]);
    let scope = in_memory();
    let layer = hundred(&scope).settle(by_header);
    assert_eq!(streamed(&scope, layer, |_| (), |_| ()).await, [900, 900], "no header");
    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| ActualCost::from_tail(16, last_line));
    assert_eq!(streamed(&scope, layer, |_| (), |_| ()).await, [900, 900], "no such line");
}

#[tokio::test]
async fn cost_beyond_the_estimate_is_charged_too() {
    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| 950);
    assert_eq!(streamed(&scope, layer, |_| (), |_| ()).await, [900, 50]);
    // At most one whole limit is charged beyond a hold, and then requests are refused.
    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| u64::MAX);
    assert_eq!(streamed(&scope, layer.clone(), |_| (), |_| ()).await, [900, 0]);
    assert_eq!(status(&app(layer), get("/")).await, StatusCode::TOO_MANY_REQUESTS);
}

/// The body's own error is passed on.
#[tokio::test]
async fn body_that_fails_is_charged_as_one_that_ends() {
    let scope = in_memory();
    assert_eq!(streamed(&scope, hundred(&scope), |_| (), FrameSender::fail).await, [900, 900]);
    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| ActualCost::from_tail(16, last_line));
    let end = |sender: &FrameSender| {
        sender.data("used 40\n");
        sender.fail();
    };
    assert_eq!(streamed(&scope, layer, |_| (), end).await, [900, 960]);
}

#[tokio::test]
async fn server_error_is_charged_in_full_unless_the_layer_says_otherwise() {
    let failing =
        |layer: RateLimitLayer| answering(layer, StatusCode::INTERNAL_SERVER_ERROR.into_response());
    let scope = in_memory();
    text(send(&failing(hundred(&scope)), get("/")).await).await;
    assert_eq!(left(&scope), 900);

    let scope = in_memory();
    let free = |response: &dyn ResponseHead| response.status().is_server_error().then_some(0);
    text(send(&failing(hundred(&scope).settle(free)), get("/")).await).await;
    assert_eq!(left(&scope), 1_000);

    // A refund releases the hold before the response is sent, so the headers show it.
    let scope = in_memory();
    let layer = hundred(&scope).refund_if(|response| response.status().is_server_error());
    let response = send(&failing(layer), get("/")).await;
    assert_eq!((shown(&response).as_deref(), left(&scope)), (Some("1000"), 1_000));
}

#[tokio::test]
async fn service_that_fails_without_a_response_is_charged_in_full() {
    let scope = in_memory();
    let failing = service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(std::io::Error::other("broken"))
    });
    let mut service = hundred(&scope).layer(failing);
    let mut future = Box::pin(tower::Service::call(&mut service, get("/")));
    future.as_mut().await.unwrap_err();
    // Charged already, although the future still exists.
    assert_eq!((left(&scope), held(&scope)), (900, 0));
    drop(future);
    assert_eq!(left(&scope), 900);
}

#[tokio::test]
async fn panic_in_the_handler_is_charged_in_full() {
    let scope = in_memory();
    async fn handler() -> StatusCode {
        panic!("as the test wants")
    }
    let app = Router::new().fallback(any(handler).layer(hundred(&scope)));
    let ended = tokio::spawn(async move { status(&app, get("/")).await }).await;
    assert!(ended.unwrap_err().is_panic());
    assert_eq!(left(&scope), 900);
}

/// A meter that panics whenever it is called.
struct Panics;

impl BodyMeter for Panics {
    fn data(&mut self, _: &[u8]) {
        panic!("as the test wants");
    }

    fn units(&mut self) -> Option<u64> {
        panic!("as the test wants, too");
    }
}

#[tokio::test]
async fn panic_while_the_body_streams_is_charged_in_full_and_does_not_abort() {
    let scope = in_memory();
    let (metered, sender) = streaming(hundred(&scope).settle(|_| ActualCost::metered(Panics)));
    let response = send(&metered, get("/")).await;
    sender.data("hello");
    assert!(tokio::spawn(text(response)).await.unwrap_err().is_panic());
    assert_eq!(left(&scope), 900);

    // A closure of the layer that panics does the same.
    let scope = in_memory();
    let panics = app(hundred(&scope).settle(|_| -> u64 { panic!("as the test wants") }));
    let ended = tokio::spawn(async move { status(&panics, get("/")).await }).await;
    assert!(ended.unwrap_err().is_panic());
    assert_eq!(left(&scope), 900);
}

/// On a server, a client that hangs up has this effect: `sockets` tests it on real connections.
#[tokio::test]
async fn response_that_is_dropped_while_the_handler_works_is_charged_in_full() {
    let scope = in_memory();
    let never =
        service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let mut future = Box::pin(hundred(&scope).layer(never).oneshot(get("/")));
    assert!(poll_once(future.as_mut()).is_pending());
    assert_eq!(left(&scope), 900);
    drop(future);
    assert_eq!((left(&scope), held(&scope)), (900, 0));
}

#[tokio::test]
async fn body_that_is_dropped_is_charged_what_was_found_by_then() {
    for (line, want) in [("used 40\n", 960), ("no cost\n", 900)] {
        let scope = in_memory();
        let (app, sender) =
            streaming(hundred(&scope).settle(|_| ActualCost::from_tail(16, last_line)));
        let mut body = send(&app, get("/")).await.into_body();
        sender.data(line);
        body.frame().await.unwrap().unwrap();
        assert_eq!(left(&scope), 900);
        drop(body);
        assert_eq!(left(&scope), want);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_outside_is_charged_in_full_when_it_drops_the_request() {
    let scope = on_tokios_clock();
    let handler = || std::future::pending::<StatusCode>();
    let app = Router::new().fallback(any(handler).layer(hundred(&scope)));
    let late = tokio::time::timeout(Duration::from_secs(5), send(&app, get("/"))).await;
    assert!(late.is_err());
    assert_eq!((left(&scope), held(&scope)), (900, 0));
}

/// A refused request holds nothing, and its response has the exact wait.
#[tokio::test]
async fn refused_reservation_holds_nothing() {
    let (clock, limiter) = at_midnight();
    let scope = scope(&limiter, "tokens", "token-bucket capacity=250 refill=10/s");
    let (first, one) = streaming(hundred(&scope));
    let (second, _two) = streaming(hundred(&scope));
    let first = send(&first, get("/")).await;
    let _second = send(&second, get("/")).await;
    let refused = send(&app(hundred(&scope)), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(shown(&refused).as_deref(), Some("50"));
    // Held units do not come back: the holds expire after 60 s, and 50 units drain in 5 s.
    assert_eq!(header(refused.headers(), "retry-after").as_deref(), Some("65"));
    assert_eq!(held(&scope), 2);
    drop(one);
    text(first).await;
    clock.advance(ms(4_999));
    assert_eq!(status(&app(hundred(&scope)), get("/")).await, StatusCode::TOO_MANY_REQUESTS);
    clock.advance(ms(1));
    assert_eq!(status(&app(hundred(&scope)), get("/")).await, StatusCode::OK);
}

#[tokio::test]
async fn request_with_an_estimate_of_0_is_not_limited() {
    let scope = in_memory();
    let layer = RateLimitLayer::new(scope.clone())
        .reserve(|request| if request.path() == "/free" { 0 } else { 100 });
    let response = send(&app(layer.clone()), get("/free")).await;
    assert_eq!((shown(&response), held(&scope)), (None, 0));
    let response = send(&app(layer.skip(|_| true)), get("/")).await;
    assert_eq!((shown(&response), held(&scope)), (None, 0));
}

#[tokio::test]
async fn shaping_limit_cannot_reserve() {
    let (_, limiter) = at_midnight();
    let scope = scope(&limiter, "even", "leaky-bucket capacity=10 leak=1/s mode=shaping");
    assert_eq!(status(&app(hundred(&scope)), get("/")).await, StatusCode::SERVICE_UNAVAILABLE);
}
