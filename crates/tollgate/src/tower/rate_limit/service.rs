//! Takes a request.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower_service::Service;

use super::decide::Taken;
use super::future::{Next, ResponseFuture};
use super::settings::Settings;
use crate::tower::body::RefusalBody;

/// A service whose requests are limited, as a [`RateLimitLayer`](super::RateLimitLayer) says.
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

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B, R> {
        match self.settings.take(&request) {
            Taken::Skipped => ResponseFuture::passing(self.inner.call(request), None),
            Taken::Goes(told) => ResponseFuture::passing(self.inner.call(request), Some(told)),
            Taken::Delayed(charge, told) => {
                ResponseFuture::delayed(charge, told, self.next(request))
            }
            Taken::Refused(response) => ResponseFuture::refused(response.map(R::of)),
            Taken::Asked(asked) => {
                ResponseFuture::asking(asked, self.next(request), Arc::clone(&self.settings))
            }
        }
    }
}

impl<S: Clone> RateLimit<S> {
    /// The service that is ready, for a request that has to wait; what is not ready stays behind.
    fn next<B>(&mut self, request: Request<B>) -> Next<S, B> {
        let fresh = self.inner.clone();
        Next::new(mem::replace(&mut self.inner, fresh), request)
    }
}

/// Its name is that of the service inside, so that it can stand in a tonic server by itself.
#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
