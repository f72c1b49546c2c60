//! A request's way through.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::charge::Charge;
use super::decide::{Asked, Settled};
use super::settings::Settings;
use crate::http::Told;
use crate::tower::body::RefusalBody;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    ///
    /// Dropped while a shaping limit delays the request, it gives the place back, as far as the limit can.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        step: Step<S::Future, S, B, R>,
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<F, S, B, R> {
        /// It goes on to the service inside.
        Passing { #[pin] future: F, told: Option<Told> },
        /// The store has been asked.
        Asking { asked: Asked, next: Option<Next<S, B>>, settings: Arc<Settings> },
        /// It goes on when its delay has passed.
        Delayed { timer: Pin<Box<Sleep>>, waiting: Option<(Charge, Told, Next<S, B>)> },
        /// It goes on when the service inside is ready.
        Going { waiting: Option<(Charge, Told, Next<S, B>)> },
        Refused { response: Option<Response<R>> },
    }
}

/// A request, and the service that it goes to.
pub(super) struct Next<S, B> {
    service: S,
    request: Request<B>,
}

impl<S, B> Next<S, B> {
    pub(super) fn new(service: S, request: Request<B>) -> Next<S, B> {
        Next { service, request }
    }

    /// To a service that is ready.
    fn go<R>(mut self, told: Told) -> Step<S::Future, S, B, R>
    where
        S: Service<Request<B>>,
    {
        Step::Passing { future: self.service.call(self.request), told: Some(told) }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    pub(super) fn passing(future: S::Future, told: Option<Told>) -> Self {
        ResponseFuture { step: Step::Passing { future, told } }
    }

    pub(super) fn asking(asked: Asked, next: Next<S, B>, settings: Arc<Settings>) -> Self {
        ResponseFuture { step: Step::Asking { asked, next: Some(next), settings } }
    }

    pub(super) fn delayed(charge: Charge, told: Told, next: Next<S, B>) -> Self {
        ResponseFuture { step: delayed(charge, told, next) }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        ResponseFuture { step: Step::Refused { response: Some(response) } }
    }
}

fn delayed<F, S, B, R>(charge: Charge, told: Told, next: Next<S, B>) -> Step<F, S, B, R> {
    let timer = Box::pin(tokio::time::sleep(charge.delay));
    Step::Delayed { timer, waiting: Some((charge, told, next)) }
}

impl<F, S, B, R> Step<F, S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Future = F> + Clone,
    R: RefusalBody,
{
    /// The answer of the store is there, and the service is ready since before that.
    fn settled(settled: Settled, mut next: Next<S, B>) -> Self {
        match settled {
            Settled::Goes(told) => next.go(told),
            Settled::Delayed(charge, told) => {
                // What is ready is let go.
                next.service = next.service.clone();
                delayed(charge, told, next)
            }
            Settled::Refused(response) => Step::Refused { response: Some(response.map(R::of)) },
        }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: RefusalBody,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let step = match this.step.as_mut().project() {
                StepProjection::Passing { future, told } => {
                    let mut response = ready!(future.poll(context))?;
                    if let Some(told) = told.take() {
                        told.add_to(&mut response);
                    }
                    return Poll::Ready(Ok(response));
                }
                StepProjection::Asking { asked, next, settings } => {
                    let answered = ready!(Pin::new(asked).poll(context));
                    match next.take() {
                        Some(next) => {
                            Step::settled(settings.answered(&next.request, answered), next)
                        }
                        None => return Poll::Pending,
                    }
                }
                StepProjection::Delayed { timer, waiting } => {
                    ready!(timer.as_mut().poll(context));
                    Step::Going { waiting: waiting.take() }
                }
                StepProjection::Going { waiting } => {
                    let Some((_, _, next)) = waiting else { return Poll::Pending };
                    ready!(next.service.poll_ready(context))?;
                    match waiting.take() {
                        Some((charge, told, next)) => {
                            charge.keep();
                            next.go(told)
                        }
                        None => return Poll::Pending,
                    }
                }
                StepProjection::Refused { response } => match response.take() {
                    Some(response) => return Poll::Ready(Ok(response)),
                    None => return Poll::Pending,
                },
            };
            this.step.set(step);
        }
    }
}

impl<S, B, R> fmt::Debug for ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
