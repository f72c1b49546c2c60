//! Counts, traces and logs every request on both ports: how long it took, and the status of its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Request, StatusCode};
use opentelemetry::ContextGuard;

use crate::endpoint::RequestEndpoint;
use crate::logs::{LogThrottle, RequestLine};
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
    /// Logs requests that were answered with a 5xx.
    failures: LogThrottle,
}

/// A request that is not answered yet. If its client goes away, the observation is dropped and not counted.
#[derive(Debug)]
pub(crate) struct Observation {
    endpoint: RequestEndpoint,
    began: Instant,
    /// `None` unless requests are traced.
    span: Option<RequestSpan>,
    /// `None` unless requests are logged.
    line: Option<RequestLine>,
}

impl Observer {
    pub(crate) fn new(metrics: Arc<Metrics>, traces: Option<Traces>, store: StoreKind) -> Observer {
        Observer { metrics, traces, store, failures: LogThrottle::default() }
    }

    /// Begins to observe a request whose head has arrived.
    pub(crate) fn begin<B>(&self, endpoint: RequestEndpoint, request: &Request<B>) -> Observation {
        let began = Instant::now();
        let span = self.traces.as_ref().map(|traces| traces.request(request, self.store));
        Observation { endpoint, began, span, line: RequestLine::begin(request) }
    }

    /// Counts, traces and logs the answer to a request. `status` is an HTTP status on both ports. Call this once.
    pub(crate) fn answered(&self, observation: &mut Observation, status: StatusCode) {
        let Observation { endpoint, began, span, line } = observation;
        self.metrics.request(*endpoint, status, began.elapsed());
        if let Some(span) = span.take() {
            span.answered(status);
        }
        if let Some(line) = line.take() {
            line.answered(status);
        }
        // A 503 of `/readyz` says that the server is not ready, and is no failure.
        if status.is_server_error() && *endpoint != RequestEndpoint::Readyz {
            self.failures.failed(*endpoint, status);
        }
    }

    /// Counts a request that is refused at once because memory is short.
    pub(crate) fn refused(&self, endpoint: RequestEndpoint) {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        self.metrics.request(endpoint, status, Duration::ZERO);
        self.failures.failed(endpoint, status);
    }

    /// Logs how many failures were left out of the log, if the last line is old enough.
    pub(crate) fn log_rest(&self, now: Instant) {
        self.failures.log_failed_rest(now);
    }
}

impl Observation {
    /// Returns the time at which the head of the request arrived.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Makes the request's span the current one until the guard is dropped.
    pub(crate) fn enter(&self) -> Option<ContextGuard> {
        self.span.as_ref().map(RequestSpan::enter)
    }
}
