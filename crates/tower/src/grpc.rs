//! Refusals in gRPC: a status in the headers, with the time to wait.

use ::http::Response;
use bytes::Bytes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use tollgate_http::{Refusal, RefusalReason};

/// Returns `RESOURCE_EXHAUSTED` for a quota, with `RetryInfo` and the policies that refuse; `PERMISSION_DENIED` for a
/// blocked request; `UNAVAILABLE` for a request that could not be decided.
pub(super) fn response(refusal: &Refusal<'_>) -> Response<Bytes> {
    let mut details = ErrorDetails::new();
    if let Some(retry_after) = refusal.retry_after() {
        details.set_retry_info(Some(retry_after));
    }
    let code = match refusal.reason() {
        RefusalReason::Quota(outcome) if outcome.is_blocked() => Code::PermissionDenied,
        RefusalReason::Quota(outcome) => {
            let violation = |name: &str| QuotaViolation::new(name, "is spent");
            details.set_quota_failure(outcome.refusers().map(violation).collect::<Vec<_>>());
            Code::ResourceExhausted
        }
        RefusalReason::Token(_) => Code::Unauthenticated,
        _ => Code::Unavailable,
    };
    Status::with_error_details(code, refusal.detail(), details).into_http()
}
