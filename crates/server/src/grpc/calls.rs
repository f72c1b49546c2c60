//! Calls to the gRPC port, and what is counted of them.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Request, Response};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service as _;

use super::call::{self, Answered, Once};
use crate::endpoint::Endpoint;
use crate::logs::RequestLine;
use crate::served::Served;
use crate::traces::RequestSpan;

/// What the port serves. Cheap to clone.
#[derive(Clone)]
pub(super) struct Calls {
    /// Health and reflection.
    routes: Routes,
    served: Arc<Served>,
    /// How long a message may take to come.
    max_time: Duration,
}

/// What a call is answered with.
pub(super) enum Answer {
    Message(Once),
    Routed(Body),
}

impl Calls {
    pub(super) fn new(routes: Routes, served: Arc<Served>, max_time: Duration) -> Calls {
        Calls { routes, served, max_time }
    }
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        match Endpoint::of(request.uri().path()) {
            Endpoint::RateLimit => {
                Box::pin(rate_limit(Arc::clone(&self.served), request, self.max_time))
            }
            _ => Box::pin(routed(self.routes.clone(), request, self.max_time)),
        }
    }
}

/// What Envoy asks. A call that nobody waits for any more is not counted.
async fn rate_limit(
    served: Arc<Served>,
    request: Request<Incoming>,
    max_time: Duration,
) -> Result<Response<Answer>, Infallible> {
    let began = Instant::now();
    let span = served.traces.as_ref().map(|traces| traces.request(&request, served.store));
    let line = RequestLine::begin(&request);
    let mut answered = pin!(call::should_rate_limit(&served, request, max_time, began));
    let Answered { response, status } = poll_fn(|context| {
        let _entered = span.as_ref().map(RequestSpan::enter);
        answered.as_mut().poll(context)
    })
    .await;
    served.metrics.request(Endpoint::RateLimit, status, began.elapsed());
    if let Some(span) = span {
        span.answered(status);
    }
    if let Some(line) = line {
        line.answered(status);
    }
    if status.is_server_error() {
        served.failures.failed(Endpoint::RateLimit, status);
    }
    Ok(response)
}

/// What is asked of the other services.
async fn routed(
    mut routes: Routes,
    request: Request<Incoming>,
    max_time: Duration,
) -> Result<Response<Answer>, Infallible> {
    let answered = timeout(max_time, routes.call(request.map(Body::new))).await;
    let answer = answered.unwrap_or_else(|_| Ok(call::too_slow(max_time).into_http()))?;
    Ok(answer.map(Answer::Routed))
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.get_mut() {
            Answer::Message(once) => Poll::Ready(once.next().map(Ok)),
            Answer::Routed(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Message(once) => once.is_over(),
            Answer::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Message(once) => once.size_hint(),
            Answer::Routed(body) => body.size_hint(),
        }
    }
}
