//! The service: decides each request, and passes it on, delays it or refuses it.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower_service::Service;

use super::admission::TrackedRequest;
use super::decide::{DecisionProgress, Disposition};
use super::future::{NextCall, ResponseFuture, ResponseStep};
use super::settings::LayerSettings;
use crate::body::RefusalBody;
use tollgate_http::QuotaHeaders;

/// A service whose requests are limited by a [`RateLimitLayer`](super::RateLimitLayer).
///
/// The inner service must be `Clone`, for requests that are delayed; put a service that is not `Clone` into tower's
/// `Buffer`. The inner service must be ready before a request is decided. So if it has a concurrency limit, requests
/// that will be refused wait for a permit too, unless tower's `LoadShed` or `Buffer` is between the two.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<LayerSettings>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, settings: Arc<LayerSettings>) -> RateLimit<S> {
        RateLimit { inner, settings }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: RefusalBody,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> ResponseFuture<S, B, R> {
        let mut quota_headers = QuotaHeaders::Nothing;
        match self.settings.decide(&request, &mut quota_headers) {
            DecisionProgress::Decided(Disposition::Passes) => ResponseFuture {
                step: ResponseStep::Passing { future: self.inner.call(request) },
                quota_headers,
                tracked: None,
            },
            DecisionProgress::Decided(Disposition::Admitted(admission)) => {
                let tracked = Some(TrackedRequest::new(admission, &self.settings, &mut request));
                let future = self.inner.call(request);
                ResponseFuture { step: ResponseStep::Passing { future }, quota_headers, tracked }
            }
            DecisionProgress::Decided(Disposition::Delayed(charge)) => {
                // New clones are not ready yet: a delayed request must not hold a ready service that others need.
                self.inner = self.inner.clone();
                let next = NextCall::new(self.inner.clone(), request);
                ResponseFuture::delayed(charge, quota_headers, next, &self.settings)
            }
            DecisionProgress::Decided(Disposition::Refused(response)) => {
                ResponseFuture::refused(response.map(R::of))
            }
            DecisionProgress::Pending(asked) => {
                let fresh = self.inner.clone();
                let next = NextCall::new(mem::replace(&mut self.inner, fresh), request);
                ResponseFuture::checking(asked, next, Arc::clone(&self.settings))
            }
        }
    }
}

/// Has the same name as the inner service, so that a limited gRPC service can be added to a tonic server.
// Uses types of tonic.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
