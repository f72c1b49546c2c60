//! Lines about requests. Nothing of what a client sent is in them.

use std::time::Instant;

use hyper::{Request, StatusCode};

use super::Sparingly;
use crate::endpoint::{self, RequestEndpoint};

/// What a line about a request needs, if there is to be one.
#[derive(Debug)]
pub(crate) struct RequestLine {
    method: &'static str,
    route: &'static str,
    begun: Instant,
}

impl RequestLine {
    /// `None` unless the log has lines for requests.
    pub(crate) fn begin<B>(request: &Request<B>) -> Option<RequestLine> {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return None;
        }
        let method = endpoint::method(request.method());
        let route = RequestEndpoint::of(request.uri().path()).route().unwrap_or("other");
        Some(RequestLine { method, route, begun: Instant::now() })
    }

    pub(crate) fn answered(self, status: StatusCode) {
        let RequestLine { method, route, begun } = self;
        let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        tracing::debug!(method, endpoint = route, status = status.as_u16(), took_us, "request");
    }
}

impl Sparingly {
    /// A request came to nothing because of this server or its store.
    pub(crate) fn failed(&self, endpoint: RequestEndpoint, status: StatusCode) {
        let Some(left_out) = self.again(Instant::now()) else { return };
        if left_out > 0 {
            say_left_out(left_out);
        }
        let (endpoint, status) = (endpoint.route().unwrap_or("other"), status.as_u16());
        tracing::warn!(endpoint, status, "a request failed");
    }

    /// Logs how many failed requests were left out, if any were and the last line is old enough.
    pub(crate) fn log_failed_rest(&self, now: Instant) {
        if let Some(left_out) = self.rest(now) {
            say_left_out(left_out);
        }
    }
}

fn say_left_out(left_out: u64) {
    tracing::warn!(left_out, "{left_out} more requests failed since, not logged one by one");
}
