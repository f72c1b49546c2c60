//! A request's way through.

use std::fmt;
use std::future::Future;
use std::mem;
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
        pub(super) step: Step<S::Future, S, B, R>,
        // What is told with the response of the service inside.
        pub(super) told: Told,
    }
}

pin_project! {
    #[project = StepProjection]
    pub(super) enum Step<F, S, B, R> {
        /// It goes on to the service inside.
        Passing { #[pin] future: F },
        /// The store has been asked.
        Asking { asked: Box<Asked>, next: Option<Next<S, B>>, settings: Arc<Settings> },
        /// It goes on when its delay has passed.
        Delayed { timer: Pin<Box<Sleep>>, waiting: Option<(Box<Charge>, Next<S, B>)> },
        /// It goes on when the service inside is ready.
        Going { waiting: Option<(Box<Charge>, Next<S, B>)> },
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
    fn go<R>(mut self) -> Step<S::Future, S, B, R>
    where
        S: Service<Request<B>>,
    {
        Step::Passing { future: self.service.call(self.request) }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    pub(super) fn asking(asked: Box<Asked>, next: Next<S, B>, settings: Arc<Settings>) -> Self {
        let step = Step::Asking { asked, next: Some(next), settings };
        ResponseFuture { step, told: Told::Nothing }
    }

    pub(super) fn delayed(charge: Box<Charge>, told: Told, next: Next<S, B>) -> Self {
        ResponseFuture { step: delayed(charge, next), told }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        let step = Step::Refused { response: Some(response) };
        ResponseFuture { step, told: Told::Nothing }
    }
}

fn delayed<F, S, B, R>(charge: Box<Charge>, next: Next<S, B>) -> Step<F, S, B, R> {
    let timer = Box::pin(tokio::time::sleep(charge.delay));
    Step::Delayed { timer, waiting: Some((charge, next)) }
}

impl<F, S, B, R> Step<F, S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Future = F> + Clone,
    R: RefusalBody,
{
    /// The answer of the store is there, and the service is ready since before that.
    fn settled(settled: Settled, mut next: Next<S, B>) -> Self {
        match settled {
            Settled::Goes => next.go(),
            Settled::Delayed(charge) => {
                // What is ready is let go.
                next.service = next.service.clone();
                delayed(charge, next)
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

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        match this.step.project() {
            StepProjection::Passing { future } => pass(future, this.told, context),
            _ => self.poll_before(context),
        }
    }
}

/// What the service inside answers, with what is to be told.
#[inline]
fn pass<F, R, E>(
    future: Pin<&mut F>,
    told: &mut Told,
    context: &mut Context<'_>,
) -> Poll<Result<Response<R>, E>>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    let mut polled = future.poll(context);
    if let Poll::Ready(Ok(response)) = &mut polled {
        mem::take(told).add_to(response);
    }
    polled
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: RefusalBody,
{
    /// A request that does not go at once. Apart from those that do, as it takes a large stack.
    #[inline(never)]
    fn poll_before(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<R>, S::Error>> {
        let mut this = self.project();
        loop {
            let step = match this.step.as_mut().project() {
                StepProjection::Passing { future } => return pass(future, this.told, context),
                StepProjection::Asking { asked, next, settings } => {
                    let answered = ready!(Pin::new(asked).poll(context));
                    match next.take() {
                        Some(next) => {
                            let settled = settings.answered(&next.request, answered, this.told);
                            Step::settled(settled, next)
                        }
                        None => return Poll::Pending,
                    }
                }
                StepProjection::Delayed { timer, waiting } => {
                    ready!(timer.as_mut().poll(context));
                    Step::Going { waiting: waiting.take() }
                }
                StepProjection::Going { waiting } => {
                    let Some((_, next)) = waiting else { return Poll::Pending };
                    ready!(next.service.poll_ready(context))?;
                    match waiting.take() {
                        Some((charge, next)) => {
                            charge.keep();
                            next.go()
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
