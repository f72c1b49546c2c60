//! What is counted of a request, whatever it asks: how long it took, and what came of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::routing::future::RouteFuture;
use hyper::{Request, Response};
use pin_project_lite::pin_project;
use tower::Service;

use crate::endpoint::Endpoint;
use crate::logs::RequestLine;
use crate::served::Served;
use crate::traces::RequestSpan;

/// The API, observed.
#[derive(Clone)]
pub(crate) struct Observed {
    router: Router,
    served: Arc<Served>,
}

impl Observed {
    pub(crate) fn new(router: Router, served: Arc<Served>) -> Observed {
        Observed { router, served }
    }
}

impl Service<Request<Body>> for Observed {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Observing;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Observing {
        let began = Instant::now();
        let endpoint = Endpoint::of(request.uri().path());
        let served = Arc::clone(&self.served);
        let traces = served.traces.as_ref();
        let span = traces.map(|traces| traces.request(&request, served.store));
        let line = RequestLine::begin(&request);
        Observing { answer: self.router.call(request), served, endpoint, began, span, line }
    }
}

pin_project! {
    /// An answer on its way. One that nobody waits for any more is not counted.
    pub(crate) struct Observing {
        #[pin]
        answer: RouteFuture<Infallible>,
        served: Arc<Served>,
        endpoint: Endpoint,
        began: Instant,
        // Of those that are traced.
        span: Option<RequestSpan>,
        // If the log has lines for requests.
        line: Option<RequestLine>,
    }
}

impl Future for Observing {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let entered = this.span.as_ref().map(RequestSpan::enter);
        let answer = ready!(this.answer.poll(context))?;
        drop(entered);
        let status = answer.status();
        this.served.metrics.request(*this.endpoint, status, this.began.elapsed());
        if let Some(span) = this.span.take() {
            span.answered(status);
        }
        if let Some(line) = this.line.take() {
            line.answered(status);
        }
        // That it is not ready is an answer.
        if status.is_server_error() && *this.endpoint != Endpoint::Readyz {
            this.served.failures.failed(*this.endpoint, status);
        }
        Poll::Ready(Ok(answer))
    }
}
