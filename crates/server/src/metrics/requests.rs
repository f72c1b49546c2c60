//! The metrics of requests. Recording a request indexes arrays, without a hash table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;

use super::histogram::Histogram;
use super::text::{MetricKind, MetricsText};
use crate::endpoint::RequestEndpoint;
use crate::store::StoreKind;

/// The labels of statuses: the statuses that the server sends, and one label for each class of others.
const STATUSES: [&str; 22] = [
    "200", "204", "400", "401", "403", "404", "405", "408", "409", "413", "414", "415", "422",
    "429", "431", "500", "503", "1xx", "2xx", "3xx", "4xx", "5xx",
];

/// The metrics of requests to each endpoint, in the order of [`RequestEndpoint::ALL`].
#[derive(Debug, Default)]
pub(super) struct RequestMetrics([EndpointMetrics; RequestEndpoint::ALL.len()]);

/// The metrics of requests to one endpoint.
#[derive(Debug, Default)]
struct EndpointMetrics {
    duration: Histogram,
    /// In the order of [`STATUSES`].
    by_status: [AtomicU64; STATUSES.len()],
}

impl RequestMetrics {
    pub(super) fn count(&self, endpoint: RequestEndpoint, status: StatusCode, took: Duration) {
        // OK because the array has an entry for every endpoint.
        let metrics = &self.0[endpoint as usize];
        metrics.duration.record(took);
        // OK because the index is below the length of `STATUSES`.
        metrics.by_status[status_index(status)].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the counter and the histogram. Statuses without a request are left out.
    pub(super) fn write(&self, text: &mut MetricsText, store: StoreKind) {
        text.metric(
            "tollgate_requests_total",
            MetricKind::Counter,
            "Answered requests, by endpoint and HTTP status.",
        );
        for (endpoint, metrics) in RequestEndpoint::ALL.into_iter().zip(&self.0) {
            for (status, count) in STATUSES.into_iter().zip(&metrics.by_status) {
                match count.load(Ordering::Relaxed) {
                    0 => {}
                    count => {
                        text.sample(&[("endpoint", endpoint.name()), ("status", status)], count);
                    }
                }
            }
        }
        let help = "Time from the end of a request's head to its answer, in seconds.";
        text.metric("tollgate_request_duration_seconds", MetricKind::Histogram, help);
        for (endpoint, metrics) in RequestEndpoint::ALL.into_iter().zip(&self.0) {
            let labels = [("endpoint", endpoint.name()), ("store", store.name())];
            text.histogram(&labels, &metrics.duration);
        }
    }
}

/// Returns the index of a status in [`STATUSES`].
fn status_index(status: StatusCode) -> usize {
    match status.as_u16() {
        200 => 0,
        204 => 1,
        400 => 2,
        401 => 3,
        403 => 4,
        404 => 5,
        405 => 6,
        408 => 7,
        409 => 8,
        413 => 9,
        414 => 10,
        415 => 11,
        422 => 12,
        429 => 13,
        431 => 14,
        500 => 15,
        503 => 16,
        ..200 => 17,
        201..300 => 18,
        300..400 => 19,
        402..500 => 20,
        _ => 21,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_its_own_label_or_that_of_its_class() {
        for code in 100..1000 {
            let name = STATUSES[status_index(StatusCode::from_u16(code).unwrap())];
            let (own, class) = (code.to_string(), format!("{}xx", (code / 100).min(5)));
            let is_known = STATUSES.contains(&&*own);
            assert_eq!(name, if is_known { own } else { class }, "{code}");
        }
    }
}
