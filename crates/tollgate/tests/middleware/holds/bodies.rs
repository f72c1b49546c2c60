//! Types of response body.

use std::convert::Infallible;

use http::Request;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use hyper::body::Body as _;
use tollgate::tower::{ActualCost, BodyHold, RefusalBody};
use tower::{Layer, ServiceExt, service_fn};

use super::*;

/// Reads the cost from the length of the body.
fn by_length(layer: RateLimitLayer) -> RateLimitLayer {
    layer.settle(|_| ActualCost::from_tail(1_024, |body| Some(body.len() as u64)))
}

async fn respond<B>(scope: &Scope, body: impl Fn() -> B + Clone) -> B
where
    B: RefusalBody,
{
    let service = service_fn(move |_: Request<Body>| {
        let response = Response::new(body());
        async move { Ok::<_, Infallible>(response) }
    });
    by_length(hundred(scope)).layer(service).oneshot(get("/")).await.unwrap().into_body()
}

#[tokio::test]
async fn body_in_memory_ends_the_hold_with_the_response() {
    let scope = in_memory();
    assert_eq!(respond(&scope, || Bytes::from("four")).await, "four");
    assert_eq!((left(&scope), held(&scope)), (996, 0));
    assert_eq!(respond(&scope, || String::from("seven__")).await, "seven__");
    assert_eq!((left(&scope), held(&scope)), (989, 0));
    let full = respond(&scope, || Full::<Bytes>::from("four")).await;
    assert_eq!((left(&scope), held(&scope)), (985, 0));
    assert_eq!(full.collect().await.unwrap().to_bytes(), "four");
    let empty = respond(&scope, Full::<Bytes>::default).await;
    assert_eq!((left(&scope), held(&scope)), (985, 0));
    assert!(empty.is_end_stream());
}

/// Asserts that the hold ends with the body, and that the length of the body stays known.
async fn assert_held<B>(body: impl Fn() -> B + Clone)
where
    B: RefusalBody + hyper::body::Body<Data = Bytes, Error: std::fmt::Debug> + Unpin,
{
    let scope = in_memory();
    let mut body = respond(&scope, body).await;
    assert_eq!((left(&scope), held(&scope)), (900, 1));
    assert_eq!(body.size_hint().exact(), Some(4));
    assert!(!body.is_end_stream());
    // hyper does not poll a body again after it says that it has ended.
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "four");
    assert!(body.is_end_stream());
    assert_eq!((left(&scope), held(&scope)), (996, 0));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn hold_ends_with_boxed_bodies_of_known_length() {
    let full = || Full::<Bytes>::from("four");
    assert_held(move || BoxBody::new(full())).await;
    assert_held(move || UnsyncBoxBody::new(full())).await;
    assert_held(move || Body::new(full())).await;
    assert_held(move || ::tonic::body::Body::new(full())).await;
}

#[tokio::test]
async fn empty_boxed_body_ends_the_hold_with_the_response() {
    let scope = in_memory();
    let body = respond(&scope, Body::empty).await;
    assert!(body.is_end_stream());
    assert_eq!((left(&scope), held(&scope)), (1_000, 0));
}

/// A body type of a user's own that passes the hold on.
struct OwnBody(BoxBody<Bytes, Infallible>);

impl RefusalBody for OwnBody {
    fn of(bytes: Bytes) -> OwnBody {
        OwnBody(RefusalBody::of(bytes))
    }

    fn holding(self, hold: BodyHold) -> OwnBody {
        OwnBody(hold.wrap(self.0).boxed())
    }
}

/// One that does not.
struct SimpleBody(&'static str);

impl RefusalBody for SimpleBody {
    fn of(_: Bytes) -> SimpleBody {
        SimpleBody("")
    }
}

#[tokio::test]
async fn own_body_type_holds_if_it_says_so() {
    let scope = in_memory();
    let body = respond(&scope, || OwnBody(Full::from("four").boxed())).await;
    assert_eq!(held(&scope), 1);
    drop(body.0.collect().await);
    assert_eq!((left(&scope), held(&scope)), (996, 0));
}

/// The body is not seen, so the actual cost is not either.
#[tokio::test]
async fn hold_ends_with_the_response_if_its_body_cannot_hold() {
    let log = crate::log::Log::default();
    let lines = Arc::clone(&log.lines);
    let _logging = tracing::subscriber::set_default(log);
    let scope = in_memory();
    for _ in 0..3 {
        assert_eq!(respond(&scope, || SimpleBody("four")).await.0, "four");
    }
    assert_eq!((left(&scope), held(&scope)), (1_000, 0));
    let lines = lines.lock().unwrap();
    let warned = lines.iter().filter(|line| line.contains("RefusalBody::holding")).count();
    assert_eq!(warned, 1, "{lines:?}");
}

/// A server that has sent the trailers does not poll the body again.
#[tokio::test]
async fn hold_ends_with_the_trailers() {
    let scope = in_memory();
    let (app, sender) = streaming(hundred(&scope).settle(|_| 10));
    let mut body = send(&app, get("/")).await.into_body();
    sender.trailers(http::HeaderMap::new());
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert_eq!((left(&scope), held(&scope)), (990, 0));
    drop(sender);
}
