//! Support for axum: the decision as an extractor, and axum's responses as refusals.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use ::http::request::Parts;
use ::http::{Response, StatusCode};
use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};

use super::admission::Admission;
use super::layer::RateLimitLayer;
use tollgate_http::Refusal;
use tollgate_identity::RequestHead;

/// The largest body of a refusal.
const MAX_BODY_BYTES: usize = 1 << 20;

impl RateLimitLayer {
    /// Sets the response to refused requests like [`on_refusal`](Self::on_refusal), with anything that axum can
    /// turn into a response: `(StatusCode, Json(…))`, `Html(…)`, a type of your own.
    ///
    /// The body must be in memory and at most 1 MiB: a refusal does not wait for a stream. Any other body is
    /// replaced by problem+json, with a warning in the log.
    ///
    /// ```
    /// use axum::{Json, http::StatusCode};
    /// # use tollgate::tower::RateLimitLayer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let json = |text: &str| serde_json::from_str::<serde_json::Value>(text);
    /// let busy = json(r#"{"error":"too busy"}"#)?;
    /// let layer = RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?
    ///     .refuse_with(move |_, _| (StatusCode::SERVICE_UNAVAILABLE, Json(busy.clone())));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn refuse_with<R: IntoResponse>(
        self,
        response: impl Fn(&RequestHead<'_>, &Refusal<'_>) -> R + Send + Sync + 'static,
    ) -> RateLimitLayer {
        let has_warned = AtomicBool::new(false);
        self.on_refusal(move |request, refusal| {
            let own = in_memory(response(request, refusal).into_response());
            own.unwrap_or_else(|| {
                if !has_warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "the body of a refusal is a stream, or above 1 MiB: refusals are problem+json instead"
                    );
                }
                refusal.response()
            })
        })
    }
}

/// Returns the response with its whole body, if all of the body is available at once.
fn in_memory(response: Response<Body>) -> Option<Response<Bytes>> {
    let (parts, body) = response.into_parts();
    let mut collecting = pin!(Limited::new(body, MAX_BODY_BYTES).collect());
    match collecting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(body)) => Some(Response::from_parts(parts, body.to_bytes())),
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}

/// The rejection when a handler extracts an [`Admission`] and the request has none: the request was not limited, or the
/// layer has no [`with_decision`](RateLimitLayer::with_decision). Answered 500. Extract an `Option<Admission>` if some
/// requests are not limited.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the request has no rate limit decision; add `.with_decision()` to its `RateLimitLayer`, or take `Option<Admission>`"
)]
#[non_exhaustive]
pub struct MissingAdmission;

impl IntoResponse for MissingAdmission {
    fn into_response(self) -> axum::response::Response {
        tracing::error!("{self}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Admission {
    type Rejection = MissingAdmission;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Admission, MissingAdmission> {
        parts.extensions.get::<Admission>().cloned().ok_or(MissingAdmission)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Admission {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Admission>, Infallible> {
        Ok(parts.extensions.get::<Admission>().cloned())
    }
}
