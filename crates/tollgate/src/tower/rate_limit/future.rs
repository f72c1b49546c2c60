//! A request's way through.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::decide::{Answered, Asked, Charge, Taken};
use super::settings::Settings;
use crate::http::Told;
use crate::tower::body::RefusalBody;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    ///
    /// Dropped while a shaping limit delays the request, it gives the place back, as far as the limit can.
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
        Refused { response: Option<Response<R>> },
    }
}

/// A request, and the service that is ready for it.
pub(super) struct Next<S, B> {
    service: S,
    request: Request<B>,
}

impl<S, B> Next<S, B> {
    pub(super) fn new(service: S, request: Request<B>) -> Next<S, B> {
        Next { service, request }
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
    S: Service<Request<B>, Response = Response<R>, Future = F>,
    R: RefusalBody,
{
    /// The answer of the store is there.
    fn answered(answered: Answered, next: Next<S, B>, settings: &Settings) -> Self {
        match settings.answered(&next.request, answered) {
            Taken::Goes(told) => Step::go(next, Some(told)),
            Taken::Delayed(charge, told) => delayed(charge, told, next),
            Taken::Refused(response) => Step::Refused { response: Some(response.map(R::of)) },
            // Not reached: what was asked about is not asked about again.
            Taken::Skipped | Taken::Asked(_) => Step::go(next, None),
        }
    }

    fn go(Next { mut service, request }: Next<S, B>, told: Option<Told>) -> Self {
        Step::Passing { future: service.call(request), told }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>>,
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
                        told.write(response.headers_mut());
                    }
                    return Poll::Ready(Ok(response));
                }
                StepProjection::Asking { asked, next, settings } => {
                    let answered = ready!(Pin::new(asked).poll(context));
                    match next.take() {
                        Some(next) => Step::answered(answered, next, settings),
                        None => return Poll::Pending,
                    }
                }
                StepProjection::Delayed { timer, waiting } => {
                    ready!(timer.as_mut().poll(context));
                    match waiting.take() {
                        Some((charge, told, next)) => {
                            charge.keep();
                            Step::go(next, Some(told))
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
