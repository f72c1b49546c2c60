//! What is counted, traced and logged of a request on either port, whatever it asks: how long it took, and what came
//! of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Request, StatusCode};
use opentelemetry::ContextGuard;

use crate::endpoint::Endpoint;
use crate::logs::{RequestLine, Sparingly};
use crate::metrics::Metrics;
use crate::store::StoreKind;
use crate::traces::{RequestSpan, Traces};

/// Observes requests.
#[derive(Debug)]
pub(crate) struct Observer {
    metrics: Arc<Metrics>,
    /// `None` unless traces are collected.
    traces: Option<Traces>,
    store: StoreKind,
    /// Requests that came to a 5xx, for the log.
    failures: Sparingly,
}

/// A request under observation. One that nobody waits for any more is dropped, and not counted.
#[derive(Debug)]
pub(crate) struct Observation {
    endpoint: Endpoint,
    began: Instant,
    /// If requests are traced.
    span: Option<RequestSpan>,
    /// If the log has lines for requests.
    line: Option<RequestLine>,
}

impl Observer {
    pub(crate) fn new(metrics: Arc<Metrics>, traces: Option<Traces>, store: StoreKind) -> Observer {
        Observer { metrics, traces, store, failures: Sparingly::default() }
    }

    /// Begins to observe a request, whose head has arrived.
    pub(crate) fn begin<B>(&self, endpoint: Endpoint, request: &Request<B>) -> Observation {
        let began = Instant::now();
        let span = self.traces.as_ref().map(|traces| traces.request(request, self.store));
        Observation { endpoint, began, span, line: RequestLine::begin(request) }
    }

    /// Counts, traces and logs that the request is answered; `status` is in HTTP's words on both ports. Called once.
    pub(crate) fn answered(&self, observation: &mut Observation, status: StatusCode) {
        let Observation { endpoint, began, span, line } = observation;
        self.metrics.request(*endpoint, status, began.elapsed());
        if let Some(span) = span.take() {
            span.answered(status);
        }
        if let Some(line) = line.take() {
            line.answered(status);
        }
        // That the server is not ready is an answer, and no failure.
        if status.is_server_error() && *endpoint != Endpoint::Readyz {
            self.failures.failed(*endpoint, status);
        }
    }

    /// Counts a request that is refused at once because memory is short.
    pub(crate) fn refused(&self, endpoint: Endpoint) {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        self.metrics.request(endpoint, status, Duration::ZERO);
        self.failures.failed(endpoint, status);
    }

    /// Logs failures that were left out of the log, if the last line is old enough.
    pub(crate) fn log_rest(&self, now: Instant) {
        self.failures.log_failed_rest(now);
    }
}

impl Observation {
    /// When the head of the request had arrived.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Makes the request's span the current one until the guard is dropped.
    pub(crate) fn enter(&self) -> Option<ContextGuard> {
        self.span.as_ref().map(RequestSpan::enter)
    }
}
