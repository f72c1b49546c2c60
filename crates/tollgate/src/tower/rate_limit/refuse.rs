//! How a refused request is told.

use ::http::header::CONTENT_LENGTH;
use ::http::{Method, Response};
use bytes::Bytes;

use super::settings::{By, Settings};
use crate::http::{Outcome, Reason, Refusal, RequestHead, Told};

impl Settings {
    /// What a request that goes is told with its response.
    pub(super) fn told(&self, outcome: &Outcome<'_>) -> Told {
        match &self.by {
            By::Limit { scope, ready } if outcome.is_of(scope) => {
                ready.told(outcome, self.families, || self.wall_us())
            }
            _ => Told::of(outcome, self.families, || self.wall_us()),
        }
    }

    /// The response to a request that does not go.
    pub(super) fn refuse(&self, head: &RequestHead<'_>, refusal: &Refusal<'_>) -> Response<Bytes> {
        let mut response = self.response(head, refusal);
        if let Reason::Quota(outcome) = refusal.reason() {
            self.told(outcome).write(response.headers_mut());
        }
        refusal.challenge(response.headers_mut());
        self.families.tell_when(refusal.retry_after_us(), response.headers_mut());
        response
    }

    fn response(&self, head: &RequestHead<'_>, refusal: &Refusal<'_>) -> Response<Bytes> {
        #[cfg(feature = "tonic")]
        if head.is_grpc() {
            return crate::tower::grpc::response(refusal);
        }
        let mut response = match &self.on_refusal {
            Some(response) => response(head, refusal),
            None => refusal.response(),
        };
        if *head.method() == Method::HEAD {
            // As long as it would have been, and not there.
            let length = response.body().len();
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
            *response.body_mut() = Bytes::new();
        }
        response
    }
}
