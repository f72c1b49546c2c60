//! The layers in common stacks with layers of tower, tower-http, axum and tonic.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, ready};
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use axum::{BoxError, Router};
use http::{Request, Response, StatusCode};
use tollgate::tower::{PaceError, PaceLayer, RateLimitLayer};
use tollgate::{Clock, Limit, Limiter, Scope};
use tonic::service::InterceptorLayer;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::trace::TraceLayer;

fn once_an_hour() -> RateLimitLayer {
    RateLimitLayer::per_ip("fixed-window limit=1 window=1h").unwrap()
}

fn one_a_second() -> Scope {
    let limit: Limit = "token-bucket capacity=1 refill=1/s".parse().unwrap();
    Limiter::builder().clock(Clock::tokio(0)).build().scope("test", limit).unwrap()
}

/// The statuses of two requests to a server.
async fn statuses<S, R>(service: S) -> [u16; 2]
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible> + Clone,
{
    let mut statuses = [0; 2];
    for status in &mut statuses {
        let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        *status = response.status().as_u16();
    }
    statuses
}

#[tokio::test]
async fn layer_works_around_a_layer_that_changes_the_body() {
    let layers = ServiceBuilder::new()
        .layer(once_an_hour())
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(TraceLayer::new_for_http());
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layers);
    assert_eq!(statuses(app).await, [200, 429]);
}

#[tokio::test]
async fn layer_works_inside_a_layer_that_changes_the_body() {
    let layers = ServiceBuilder::new().layer(TraceLayer::new_for_http()).layer(once_an_hour());
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layers);
    assert_eq!(statuses(app).await, [200, 429]);
}

#[tokio::test]
async fn layer_works_around_a_proxy_with_hypers_body() {
    async fn forward(_: Request<Body>) -> Result<Response<hyper::body::Incoming>, Infallible> {
        std::future::pending().await
    }
    let proxy = ServiceBuilder::new()
        .layer(once_an_hour())
        .map_response(|response: Response<_>| response.map(Body::new))
        .service(service_fn(forward));
    // The first request gets no answer; the second_status is refused.
    let send = || proxy.clone().oneshot(Request::new(Body::empty()));
    let first = tokio::spawn(send());
    tokio::task::yield_now().await;
    assert_eq!(send().await.unwrap().status(), 429);
    first.abort();
}

#[tokio::test]
async fn layer_works_around_a_tonic_interceptor() {
    fn authenticate(request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        match request.metadata().contains_key("authorization") {
            true => Ok(request),
            false => Err(tonic::Status::unauthenticated("no token")),
        }
    }
    let service = ServiceBuilder::new()
        .layer(once_an_hour())
        .map_response(|response: Response<_>| response.map(tonic::body::Body::new))
        .layer(InterceptorLayer::new(authenticate))
        .service(service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
        }));
    let mut codes = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/").header("content-type", "application/grpc");
        let response = service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        codes.push(response.headers()["grpc-status"].to_str().unwrap().parse::<i32>().unwrap());
    }
    let [unauthenticated, exhausted] =
        [tonic::Code::Unauthenticated, tonic::Code::ResourceExhausted].map(i32::from);
    assert_eq!(codes, [unauthenticated, exhausted]);
}

/// Sends two requests. The first takes the only permit and never ends. Returns the status of the second_status.
async fn second_status<S>(service: S) -> StatusCode
where
    S: Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
{
    let first = tokio::spawn(service.clone().oneshot(Request::new(Body::empty())));
    tokio::task::yield_now().await;
    let refused = service.oneshot(Request::new(Body::empty())).await.unwrap();
    first.abort();
    refused.status()
}

#[tokio::test]
async fn refusals_need_no_concurrency_permit_with_load_shed_or_buffer() {
    async fn never(_: Request<Body>) -> Result<Response<Body>, BoxError> {
        std::future::pending().await
    }
    let shed = ServiceBuilder::new().layer(once_an_hour()).load_shed().concurrency_limit(1);
    assert_eq!(second_status(shed.service(service_fn(never))).await, 429);
    let buffered = ServiceBuilder::new().layer(once_an_hour()).buffer(8).concurrency_limit(1);
    assert_eq!(second_status(buffered.service(service_fn(never))).await, 429);
}

#[tokio::test]
async fn layer_works_around_load_shed_in_a_router() {
    let layers = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(|_: BoxError| ready(StatusCode::SERVICE_UNAVAILABLE)))
        .layer(once_an_hour())
        .load_shed()
        .layer(GlobalConcurrencyLimitLayer::new(64));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layers);
    assert_eq!(statuses(app).await, [200, 429]);
}

/// A client that cannot be cloned.
struct Single;

impl Service<Request<()>> for Single {
    type Response = Response<()>;
    type Error = io::Error;
    type Future = Ready<io::Result<Response<()>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        ready(match request.uri().path() {
            "/fail" => Err(io::Error::new(io::ErrorKind::BrokenPipe, Cause)),
            _ => Ok(Response::new(())),
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("connection lost")]
struct Cause;

#[tokio::test(start_paused = true)]
async fn pace_layer_works_around_a_buffer_and_inside_a_timeout() {
    let client = ServiceBuilder::new()
        .timeout(Duration::from_millis(1_500))
        .layer(PaceLayer::new(one_a_second()))
        .buffer(8)
        .service(Single);
    let send = |path| client.clone().oneshot(Request::get(path).body(()).unwrap());
    let started = tokio::time::Instant::now();
    send("/").await.unwrap();
    // The second request waits for its own unit, and its error is the client's.
    let failed: BoxError = send("/fail").await.unwrap_err();
    assert_eq!(started.elapsed().as_millis(), 1_000);
    let Some(PaceError::Inner(inner)) = failed.downcast_ref() else { unreachable!("{failed:?}") };
    assert!(inner.is::<io::Error>(), "{inner:?}");
}

#[tokio::test]
async fn layer_works_around_a_buffer() {
    struct Own;

    impl Service<Request<Body>> for Own {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            ready(Ok(Response::default()))
        }
    }

    let limited = ServiceBuilder::new().layer(once_an_hour()).buffer(8).service(Own);
    for status in [200, 429] {
        let response = limited.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn paced_clients_error_keeps_every_cause() {
    #[derive(Debug, thiserror::Error)]
    #[error("could not ask")]
    struct Failed(#[source] Cause);

    let fails = service_fn(|()| ready(Err::<Response<()>, _>(Failed(Cause))));
    let failed = PaceLayer::new(one_a_second()).layer(fails).oneshot(()).await.unwrap_err();
    assert_eq!(failed.to_string(), "could not ask");
    assert_eq!(failed.source().unwrap().to_string(), "connection lost");
}

#[test]
fn paced_client_has_a_nameable_type() {
    struct Api {
        _client: tollgate::tower::Pace<reqwest::Client, reqwest::Request>,
    }
    let pace = PaceLayer::new(one_a_second());
    let _api = Api { _client: ServiceBuilder::new().layer(pace).service(reqwest::Client::new()) };
}
