//! Headers and responses for the client: the quota headers, and the response to a refused request.

use ::http::header::CONTENT_LENGTH;
use ::http::{Method, Response};
use bytes::Bytes;

use super::settings::{LayerSettings, LimitSource};
use tollgate_http::{Outcome, QuotaHeaders, Refusal, RefusalReason};
use tollgate_identity::RequestHead;

impl LayerSettings {
    /// Writes the headers for the response to `quota_headers`.
    #[inline]
    pub(super) fn note_headers(&self, outcome: &Outcome<'_>, quota_headers: &mut QuotaHeaders) {
        match &self.by {
            LimitSource::Limit { scope, ready } if outcome.is_of(scope) => {
                ready.quota_headers(outcome, self.families, || self.wall_us(), quota_headers);
            }
            _ => *quota_headers = QuotaHeaders::of(outcome, self.families, || self.wall_us()),
        }
    }

    /// Returns the response to a refused request.
    #[inline(never)]
    pub(super) fn refuse(&self, head: &RequestHead<'_>, refusal: &Refusal<'_>) -> Response<Bytes> {
        let mut response = self.response(head, refusal);
        if let RefusalReason::Quota(outcome) = refusal.reason() {
            let mut quota_headers = QuotaHeaders::Nothing;
            self.note_headers(outcome, &mut quota_headers);
            quota_headers.write(response.headers_mut());
        }
        refusal.challenge(response.headers_mut());
        self.families.add_retry_after(refusal.retry_after_us(), response.headers_mut());
        response
    }

    fn response(&self, head: &RequestHead<'_>, refusal: &Refusal<'_>) -> Response<Bytes> {
        // A refusal as a gRPC status needs the types of tonic.
        #[cfg(feature = "tonic")]
        if head.is_grpc() {
            return crate::grpc::response(refusal);
        }
        let mut response = match &self.on_refusal {
            Some(response) => response(head, refusal),
            None => refusal.response(),
        };
        if *head.method() == Method::HEAD {
            // The length of the body that a GET would get, without the body.
            let length = response.body().len();
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
            *response.body_mut() = Bytes::new();
        }
        response
    }
}
