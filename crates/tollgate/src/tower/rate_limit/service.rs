//! Takes a request.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Request, Response};
use tower_service::Service;

use super::decide::Begun;
use super::future::{Next, ResponseFuture};
use super::settings::Settings;
use crate::http::RequestHead;
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
        let head = RequestHead::new(&request, &self.settings.identity);
        match self.settings.begin(&head) {
            Begun::Skipped => ResponseFuture::passing(self.inner.call(request), None),
            Begun::Known(answered) => {
                let settled = self.settings.settle(&head, &answered);
                drop(head);
                match settled {
                    Ok(told) if !answered.is_delayed() => {
                        ResponseFuture::passing(self.inner.call(request), Some(told))
                    }
                    Ok(told) => {
                        let charge = self.settings.charged(answered);
                        ResponseFuture::delayed(charge, told, self.next(request))
                    }
                    Err(response) => ResponseFuture::refused(response.map(R::of)),
                }
            }
            Begun::Asked(asked) => {
                drop(head);
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
