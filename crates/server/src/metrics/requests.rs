//! What is recorded of every request: by places in arrays, nothing is looked up.

use std::sync::OnceLock;
use std::time::Duration;

use hyper::StatusCode;
use metrics::{Counter, Histogram, Key, Recorder};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::METADATA;
use crate::endpoint::Endpoint;
use crate::store::StoreKind;

const DURATION: &str = "tollgate_request_duration_seconds";
const COUNT: &str = "tollgate_requests_total";

/// Those that the server answers with, and one for each class of others.
const STATUSES: [&str; 22] = [
    "200", "204", "400", "401", "403", "404", "405", "408", "409", "413", "414", "415", "422",
    "429", "431", "500", "503", "1xx", "2xx", "3xx", "4xx", "5xx",
];

/// Of every endpoint, in their order.
#[derive(Debug)]
pub(super) struct Requests([Of; Endpoint::ALL.len()]);

/// The requests to one endpoint.
#[derive(Debug)]
struct Of {
    duration: Histogram,
    /// In the order of [`STATUSES`]; those that never came are not there.
    by_status: [OnceLock<Counter>; STATUSES.len()],
}

impl Requests {
    pub(super) fn new(recorder: &PrometheusRecorder, store: StoreKind) -> Requests {
        let help = "How long requests took, from the last byte of their heads to their answers.";
        recorder.describe_histogram(DURATION.into(), None, help.into());
        let help = "Requests that were answered.";
        recorder.describe_counter(COUNT.into(), None, help.into());
        Requests(Endpoint::ALL.map(|endpoint| {
            let labels = [("endpoint", endpoint.name()), ("store", store.name())];
            let key = Key::from_parts(DURATION, &labels);
            let duration = recorder.register_histogram(&key, &METADATA);
            Of { duration, by_status: Default::default() }
        }))
    }

    pub(super) fn count(
        &self,
        recorder: &PrometheusRecorder,
        endpoint: Endpoint,
        status: StatusCode,
        took: Duration,
    ) {
        // OK because there is one for every endpoint.
        let of = &self.0[endpoint as usize];
        of.duration.record(took);
        let place = place(status);
        // OK because a place is below the length of both.
        let counter = of.by_status[place].get_or_init(|| {
            let labels = [("endpoint", endpoint.name()), ("status", STATUSES[place])];
            recorder.register_counter(&Key::from_parts(COUNT, &labels), &METADATA)
        });
        counter.increment(1);
    }
}

/// Where a status is among [`STATUSES`].
fn place(status: StatusCode) -> usize {
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
    fn every_status_has_its_name_or_its_class() {
        for code in 100..1000 {
            let name = STATUSES[place(StatusCode::from_u16(code).unwrap())];
            let (own, class) = (code.to_string(), format!("{}xx", (code / 100).min(5)));
            let is_known = STATUSES.contains(&&*own);
            assert_eq!(name, if is_known { own } else { class }, "{code}");
        }
    }
}
