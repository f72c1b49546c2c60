//! The future of one request: it waits for its turn, then for the client to be ready, then for the response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use super::{BoxError, PaceCharge, PaceError, Pacer, ResponseHead};

pin_project! {
    /// The future of a [`Pace`](super::Pace): waits for the request's turn, then for the response.
    ///
    /// Dropping it before the request was sent leaves the queue, and refunds the charge.
    #[must_use = "nothing is sent until this is awaited"]
    pub struct PaceFuture<S, R>
    where
        S: Service<R>,
    {
        pacer: Arc<Pacer>,
        key: Arc<str>,
        // Until the request is sent.
        waiting: Option<PacedRequest<S, R>>,
        #[pin]
        response: Option<S::Future>,
    }
}

/// A request that was not sent yet.
struct PacedRequest<S, R> {
    request: R,
    cost: u64,
    service: S,
    since: Instant,
    turn: TurnFuture,
    /// Set when the turn has come.
    charge: Option<PaceCharge>,
}

type TurnFuture = Pin<Box<dyn Future<Output = Result<PaceCharge, PaceError>> + Send>>;

impl<S: Service<R>, R> PaceFuture<S, R> {
    pub(super) fn new(
        pacer: Arc<Pacer>,
        key: Arc<str>,
        cost: u64,
        service: S,
        request: R,
    ) -> PaceFuture<S, R> {
        let turn = Box::pin(Arc::clone(&pacer).turn(Arc::clone(&key), cost, Duration::ZERO));
        let since = Instant::now();
        let waiting = PacedRequest { request, cost, service, since, turn, charge: None };
        PaceFuture { pacer, key, waiting: Some(waiting), response: None }
    }
}

impl<S, R> PacedRequest<S, R>
where
    S: Service<R>,
    S::Error: Into<BoxError>,
{
    /// Ready when the request may be sent and the client is ready for it.
    fn poll_depart(
        &mut self,
        pacer: &Arc<Pacer>,
        key: &Arc<str>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), PaceError>> {
        loop {
            if self.charge.is_none() {
                let turn = ready!(self.turn.as_mut().poll(context));
                self.charge = Some(turn?);
            }
            ready!(self.service.poll_ready(context)).map_err(inner)?;
            let charge = self.charge.take();
            if pacer.is_open(key) {
                charge.into_iter().for_each(PaceCharge::spend);
                return Poll::Ready(Ok(()));
            }
            // The server asked to wait while the client was not ready: queue again.
            drop(charge);
            let waited = self.since.elapsed();
            self.turn = Box::pin(Arc::clone(pacer).turn(Arc::clone(key), self.cost, waited));
        }
    }
}

impl<S, R> Future for PaceFuture<S, R>
where
    S: Service<R>,
    S::Response: ResponseHead,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, PaceError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(waiting) = this.waiting {
            let departs = ready!(waiting.poll_depart(this.pacer, this.key, context));
            if let Some(PacedRequest { mut service, request, .. }) = this.waiting.take() {
                departs?;
                this.response.set(Some(service.call(request)));
            }
        }
        // `None` after the response or an error: polled again, the future stays pending.
        let Some(response) = this.response.as_mut().as_pin_mut() else { return Poll::Pending };
        let result = ready!(response.poll(context));
        this.response.set(None);
        let response = result.map_err(inner)?;
        this.pacer.apply_hint(this.key, &response);
        Poll::Ready(Ok(response))
    }
}

fn inner(error: impl Into<BoxError>) -> PaceError {
    PaceError::Inner(error.into())
}

impl<S: Service<R>, R> fmt::Debug for PaceFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut future = f.debug_struct("PaceFuture");
        future.field("has_gone", &self.waiting.is_none()).finish_non_exhaustive()
    }
}
