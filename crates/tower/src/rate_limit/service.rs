//! Takes a request.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower_service::Service;

use super::admission::Tracked;
use super::decide::{Settled, Taken};
use super::future::{Next, ResponseFuture, Step};
use super::settings::Settings;
use crate::body::RefusalBody;
use tollgate_http::QuotaHeaders;

/// A service whose requests are limited, as a [`RateLimitLayer`](super::RateLimitLayer) says.
///
/// The service inside must be `Clone`, for requests that have to wait; one that is not goes into tower's `Buffer`. It
/// must be ready before a request is looked at, so refusals wait for a limit on concurrency inside, unless tower's
/// `LoadShed` or `Buffer` is between.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> RateLimit<S> {
        RateLimit { inner, settings }
    }

    /// The service inside.
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
        let mut told = QuotaHeaders::Nothing;
        match self.settings.take(&request, &mut told) {
            Taken::Settled(Settled::Goes) => ResponseFuture {
                step: Step::Passing { future: self.inner.call(request) },
                told,
                tracked: None,
            },
            Taken::Settled(Settled::Admitted(admission)) => {
                let tracked = Some(Tracked::new(admission, &self.settings, &mut request));
                let future = self.inner.call(request);
                ResponseFuture { step: Step::Passing { future }, told, tracked }
            }
            Taken::Settled(Settled::Delayed(charge)) => {
                // What is ready is let go: one that waits must not take room from others.
                self.inner = self.inner.clone();
                let next = Next::new(self.inner.clone(), request);
                ResponseFuture::delayed(charge, told, next, &self.settings)
            }
            Taken::Settled(Settled::Refused(response)) => {
                ResponseFuture::refused(response.map(R::of))
            }
            Taken::Asked(asked) => {
                let fresh = self.inner.clone();
                let next = Next::new(mem::replace(&mut self.inner, fresh), request);
                ResponseFuture::asking(asked, next, Arc::clone(&self.settings))
            }
        }
    }
}

/// Its name is that of the service inside, so that it can stand in a tonic server by itself.
// The types of tonic.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
