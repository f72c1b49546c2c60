//! The service: a client whose requests wait their turn.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::keys::PaceKeys;
use super::{BoxError, PaceError, PaceFuture, Pacer, ResponseHead};

/// A client whose requests wait their turn; see [`PaceLayer`](super::PaceLayer).
///
/// This service is always ready. Requests queue in the order in which their futures are first polled. The client's
/// readiness is polled only when a request's turn has come, so that waiting requests do not use up the client's
/// capacity.
pub struct Pace<S, R> {
    inner: S,
    pacer: Arc<Pacer>,
    keys: PaceKeys<R>,
}

impl<S, R> Pace<S, R> {
    pub(super) fn new(inner: S, pacer: Arc<Pacer>, keys: PaceKeys<R>) -> Pace<S, R> {
        Pace { inner, pacer, keys }
    }
}

impl<S, R> Service<R> for Pace<S, R>
where
    S: Service<R> + Clone,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = PaceError;
    type Future = PaceFuture<S, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> PaceFuture<S, R> {
        let (key, cost) = (self.keys.key_of(&request), self.keys.cost_of(&request));
        PaceFuture::new(Arc::clone(&self.pacer), key, cost, self.inner.clone(), request)
    }
}

// Not derived: `derive` would require traits of `R`, here and below.
impl<S: Clone, R> Clone for Pace<S, R> {
    fn clone(&self) -> Pace<S, R> {
        let (pacer, keys) = (Arc::clone(&self.pacer), self.keys.clone());
        Pace { inner: self.inner.clone(), pacer, keys }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for Pace<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pace = f.debug_struct("Pace");
        pace.field("inner", &self.inner).field("pacer", &self.pacer).finish_non_exhaustive()
    }
}
