//! A service that is called without a socket.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use anyhow::{Result, bail, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use tollgate::tower::RateLimitLayer;
use tollgate::{Limit, Limiter};
use tower_service::Service;

/// Returns a service that says hello, with a limit for each address.
pub fn limited(limiter: &Limiter, limit: &str) -> Result<Router> {
    let scope = limiter.scope("per-ip", limit.parse::<Limit>()?)?;
    let hello = Router::new().route("/", get(|| async { "hello" }));
    Ok(hello.layer(RateLimitLayer::new(scope)).with_state(()))
}

/// Makes a request whose answer must be ready at once, and returns the answer.
pub fn request(router: &mut Router) -> Result<Response<Body>> {
    let mut context = Context::from_waker(Waker::noop());
    let mut request = Request::new(Body::empty());
    let from = SocketAddr::from(([203, 0, 113, 9], 4711));
    request.extensions_mut().insert(ConnectInfo(from));
    ensure!(Service::<Request<Body>>::poll_ready(router, &mut context).is_ready(), "not ready");
    let answer = pin!(router.call(request)).poll(&mut context);
    let Poll::Ready(Ok(response)) = answer else { bail!("the answer is not ready at once") };
    let status = response.status();
    ensure!(status == StatusCode::OK, "unexpected status {status}: the limit is too small");
    Ok(response)
}
