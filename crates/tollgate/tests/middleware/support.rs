//! Requests, and a service to send them to.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::http::Peer;
use tollgate::rules::{Config, Rules};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, Limiter, ManualClock, Scope};
use tower::ServiceExt;

/// 2026-11-15 00:00:00, in the middle of no window.
pub const NOON_US: u64 = 1_794_700_800_000_000;

pub fn at_noon() -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(NOON_US);
    let limiter = Limiter::builder().clock(&clock).build();
    (clock, limiter)
}

pub fn scope(limiter: &Limiter, name: &str, limit: &str) -> Scope {
    limiter.scope(name, limit.parse::<Limit>().unwrap()).unwrap()
}

pub fn rules(limiter: &Limiter, yaml: &str) -> Rules {
    Rules::new(limiter, &Config::parse("rules.yaml", yaml).unwrap()).unwrap()
}

/// A request of one client.
pub fn request(method: &str, path: &str, peer: &str) -> Request<Body> {
    let address: SocketAddr = format!("{peer}:4711").parse().unwrap();
    let request = Request::builder().method(method).uri(path).extension(Peer(address));
    request.body(Body::empty()).unwrap()
}

pub fn get(path: &str) -> Request<Body> {
    request("GET", path, "203.0.113.9")
}

pub fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

/// An application that says hello, behind a layer.
pub fn app(layer: RateLimitLayer) -> Router {
    Router::new().fallback(any(|| async { "hello" }).layer(layer))
}

pub async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

pub async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    send(app, request).await.status()
}

/// How many of so many go.
pub async fn admitted(app: &Router, requests: impl IntoIterator<Item = Request<Body>>) -> usize {
    let mut admitted = 0;
    for request in requests {
        admitted += usize::from(status(app, request).await == StatusCode::OK);
    }
    admitted
}

pub async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

/// The lines of a header, as one.
pub fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The rate limit headers that a response has, one a line.
pub fn told(response: &Response<Body>) -> String {
    let names = [
        "ratelimit-policy",
        "ratelimit",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "retry-after",
    ];
    let line = |name: &str| Some(format!("{name}: {}", header(response.headers(), name)?));
    let lines: Vec<_> = names.into_iter().filter_map(line).collect();
    format!("{}\n{}", response.status().as_u16(), lines.join("\n"))
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
