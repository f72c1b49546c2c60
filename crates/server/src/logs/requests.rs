//! Lines about requests. They contain nothing that a client sent.

use std::time::Instant;

use hyper::{Request, StatusCode};

use super::LogThrottle;
use crate::endpoint::{self, RequestEndpoint};

/// The fields of a request's log line, kept until the request is answered.
#[derive(Debug)]
pub(crate) struct RequestLine {
    method: &'static str,
    route: &'static str,
    begun: Instant,
}

impl RequestLine {
    /// Begins the line of a request; `None` if the log does not include the level `debug`, so that requests are not
    /// logged.
    pub(crate) fn begin<B>(request: &Request<B>) -> Option<RequestLine> {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return None;
        }
        let method = endpoint::method(request.method());
        let route = RequestEndpoint::of(request.uri().path()).route().unwrap_or("other");
        Some(RequestLine { method, route, begun: Instant::now() })
    }

    /// Logs the request with the status of its answer.
    pub(crate) fn answered(self, status: StatusCode) {
        let RequestLine { method, route, begun } = self;
        let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(method, endpoint = route, status = status.as_u16(), took_us, "request");
    }
}

impl LogThrottle {
    /// Logs a request that failed because of this server or its store, if the last line is old enough; otherwise counts
    /// it.
    pub(crate) fn failed(&self, endpoint: RequestEndpoint, status: StatusCode) {
        let Some(left_out) = self.admit(Instant::now()) else { return };
        if left_out > 0 {
            log_left_out(left_out);
        }
        let (endpoint, status) = (endpoint.route().unwrap_or("other"), status.as_u16());
        tracing::warn!(endpoint, status, "a request failed");
    }

    /// Logs how many failed requests were left out, if any were and the last line is old enough.
    pub(crate) fn log_failed_rest(&self, now: Instant) {
        if let Some(left_out) = self.take_rest(now) {
            log_left_out(left_out);
        }
    }
}

fn log_left_out(left_out: u64) {
    tracing::warn!(left_out, "{left_out} more requests failed since the last line");
}
