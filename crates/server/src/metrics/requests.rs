//! What is recorded of every request: by places in arrays, nothing is looked up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::StatusCode;

use super::histogram::Histogram;
use super::text::{Kind, Text};
use crate::endpoint::RequestEndpoint;
use crate::store::StoreKind;

/// Those that the server answers with, and one for each class of others.
const STATUSES: [&str; 22] = [
    "200", "204", "400", "401", "403", "404", "405", "408", "409", "413", "414", "415", "422",
    "429", "431", "500", "503", "1xx", "2xx", "3xx", "4xx", "5xx",
];

/// Of every endpoint, in their order.
#[derive(Debug, Default)]
pub(super) struct Requests([Of; RequestEndpoint::ALL.len()]);

/// The requests to one endpoint.
#[derive(Debug, Default)]
struct Of {
    duration: Histogram,
    /// In the order of [`STATUSES`].
    by_status: [AtomicU64; STATUSES.len()],
}

impl Requests {
    pub(super) fn count(&self, endpoint: RequestEndpoint, status: StatusCode, took: Duration) {
        // OK because there is one for every endpoint.
        let of = &self.0[endpoint as usize];
        of.duration.record(took);
        // OK because a place is below the length of both.
        of.by_status[place(status)].fetch_add(1, Ordering::Relaxed);
    }

    /// Writes both families; a status that no request came to is left out.
    pub(super) fn write(&self, text: &mut Text, store: StoreKind) {
        text.metric("tollgate_requests_total", Kind::Counter, "Requests that were answered.");
        for (endpoint, of) in RequestEndpoint::ALL.into_iter().zip(&self.0) {
            for (status, count) in STATUSES.into_iter().zip(&of.by_status) {
                match count.load(Ordering::Relaxed) {
                    0 => {}
                    count => {
                        text.sample(&[("endpoint", endpoint.name()), ("status", status)], count);
                    }
                }
            }
        }
        let help = "How long requests took, from the last byte of their heads to their answers.";
        text.metric("tollgate_request_duration_seconds", Kind::Histogram, help);
        for (endpoint, of) in RequestEndpoint::ALL.into_iter().zip(&self.0) {
            let labels = [("endpoint", endpoint.name()), ("store", store.name())];
            text.histogram(&labels, &of.duration);
        }
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
