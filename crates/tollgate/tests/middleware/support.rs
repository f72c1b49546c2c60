//! Requests, and an application to send them to.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tollgate::http::Peer;
use tollgate::rules::{Config, Rules};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, Limiter, ManualClock, Scope};
use tower::ServiceExt;

/// 2026-11-15 00:00:00 UTC, at which every window that divides a day starts.
pub(crate) const MIDNIGHT_US: u64 = 1_794_700_800_000_000;

pub(crate) fn at_midnight() -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(MIDNIGHT_US);
    let limiter = Limiter::builder().clock(&clock).build();
    (clock, limiter)
}

pub(crate) fn scope(limiter: &Limiter, name: &str, limit: &str) -> Scope {
    limiter.scope(name, limit.parse::<Limit>().unwrap()).unwrap()
}

pub(crate) fn rules(limiter: &Limiter, yaml: &str) -> Rules {
    Rules::new(limiter, &config(yaml)).unwrap()
}

/// A request from the address `peer`.
pub(crate) fn request(method: &str, path: &str, peer: &str) -> Request<Body> {
    let address: SocketAddr = format!("{peer}:4711").parse().unwrap();
    let request = Request::builder().method(method).uri(path).extension(Peer(address));
    request.body(Body::empty()).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Body> {
    request("GET", path, "203.0.113.9")
}

pub(crate) fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().append(name, value.parse().unwrap());
    request
}

/// An application that answers `hello`, behind a layer.
pub(crate) fn app(layer: RateLimitLayer) -> Router {
    Router::new().fallback(any(|| async { "hello" }).layer(layer))
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

pub(crate) async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    send(app, request).await.status()
}

/// Sends requests. Returns how many were admitted.
pub(crate) async fn admitted(
    app: &Router,
    requests: impl IntoIterator<Item = Request<Body>>,
) -> usize {
    let mut admitted = 0;
    for request in requests {
        admitted += usize::from(status(app, request).await == StatusCode::OK);
    }
    admitted
}

pub(crate) async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

/// The value of a header, with its lines joined by commas.
pub(crate) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The status and the rate limit headers of a response, one a line.
pub(crate) fn rate_limit_headers(response: &Response<Body>) -> String {
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

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The secret with which tokens are signed.
pub(crate) const SECRET: &[u8] = b"a secret for tests, 34 bytes long.";

/// Parses rules. The files that they name are `jwt.secret`, with the [`SECRET`], and `rsa.pem`, with a public key.
pub(crate) fn config(yaml: &str) -> Config {
    let read = |named: &Path| match named.to_str() {
        Some("jwt.secret") => Ok(SECRET.to_vec()),
        Some("rsa.pem") => Ok(RSA_PUBLIC.into()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    Config::parse_with("rules.yaml", yaml, read).unwrap_or_else(|problems| panic!("{problems}"))
}

/// A token with these claims, valid for an hour from midnight.
pub(crate) fn token(claims: &str) -> String {
    signed(SECRET, &format!(r#"{{"exp":{},{claims}}}"#, MIDNIGHT_US / 1_000_000 + 3_600))
}

/// A token with exactly these claims, signed with this secret.
pub(crate) fn signed(secret: &[u8], claims: &str) -> String {
    let message = format!("{}.{}", base64(r#"{"alg":"HS256"}"#), base64(claims));
    let key = jsonwebtoken::EncodingKey::from_secret(secret);
    let algorithm = jsonwebtoken::Algorithm::HS256;
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, algorithm).unwrap();
    format!("{message}.{signature}")
}

pub(crate) fn base64(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// A request with a token.
pub(crate) fn bearing(token: &str, peer: &str) -> Request<Body> {
    with(request("GET", "/", peer), "authorization", &format!("Bearer {token}"))
}

pub(crate) const RSA_PUBLIC: &str = include_str!("../keys/rsa.pem");
