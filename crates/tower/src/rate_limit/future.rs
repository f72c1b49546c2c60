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

use super::admission::{Retelling, Tracked};
use super::charge::Charge;
use super::decide::{Asked, Settled};
use super::settings::Settings;
use crate::body::RefusalBody;
use tollgate_http::QuotaHeaders;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    ///
    /// Dropped while a shaping limit delays the request, it gives the place back, as far as the limit can. Dropped
    /// while the service inside works, it keeps the charge; dropped during the refund of
    /// [`refund_if`](super::RateLimitLayer::refund_if), the charge comes back all the same.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        pub(super) step: Step<S::Future, S, B, R>,
        // What is told with the response of the service inside.
        pub(super) told: QuotaHeaders,
        // Only in a layer that may give the charge back.
        pub(super) tracked: Option<Tracked>,
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
        /// The service inside has answered, and the charge is given back.
        Refunding { response: Option<Response<R>>, retelling: Retelling },
    }
}

/// A request, and the service that it goes to.
pub(super) struct Next<S, B> {
    service: S,
    request: Request<B>,
}

/// The steps of a request that has not gone yet, and its tracking from then on.
type Begun<F, S, B, R> = (Step<F, S, B, R>, Option<Tracked>);

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
        ResponseFuture { step, told: QuotaHeaders::Nothing, tracked: None }
    }

    pub(super) fn delayed(
        charge: Box<Charge>,
        told: QuotaHeaders,
        next: Next<S, B>,
        settings: &Arc<Settings>,
    ) -> Self {
        let (step, tracked) = delayed(charge, next, settings);
        ResponseFuture { step, told, tracked }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        let step = Step::Refused { response: Some(response) };
        ResponseFuture { step, told: QuotaHeaders::Nothing, tracked: None }
    }
}

fn delayed<F, S, B, R>(
    charge: Box<Charge>,
    mut next: Next<S, B>,
    settings: &Arc<Settings>,
) -> Begun<F, S, B, R> {
    let admission = charge.admission().filter(|_| settings.is_tracked);
    let track = |admission| Tracked::new(admission, settings, &mut next.request);
    let tracked = admission.map(track);
    let timer = Box::pin(tokio::time::sleep(charge.delay));
    (Step::Delayed { timer, waiting: Some((charge, next)) }, tracked)
}

impl<F, S, B, R> Step<F, S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Future = F> + Clone,
    R: RefusalBody,
{
    /// The answer of the store is there, and the service is ready since before that.
    fn settled(
        settled: Settled,
        mut next: Next<S, B>,
        settings: &Arc<Settings>,
    ) -> Begun<F, S, B, R> {
        match settled {
            Settled::Goes => (next.go(), None),
            Settled::Admitted(admission) => {
                let tracked = Tracked::new(admission, settings, &mut next.request);
                (next.go(), Some(tracked))
            }
            Settled::Delayed(charge) => {
                // What is ready is let go.
                next.service = next.service.clone();
                delayed(charge, next, settings)
            }
            Settled::Refused(response) => {
                (Step::Refused { response: Some(response.map(R::of)) }, None)
            }
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
            StepProjection::Passing { future } if this.tracked.is_none() => {
                pass(future, this.told, context)
            }
            _ => self.poll_before(context),
        }
    }
}

/// What the service inside answers, with what is to be told.
#[inline]
fn pass<F, R, E>(
    future: Pin<&mut F>,
    told: &mut QuotaHeaders,
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
    /// A request that does not go at once, or is tracked. Apart from the others, as it takes a large stack.
    #[inline(never)]
    fn poll_before(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<R>, S::Error>> {
        let mut this = self.project();
        loop {
            let step = match this.step.as_mut().project() {
                StepProjection::Passing { future } => {
                    let Some(tracked) = this.tracked else {
                        return pass(future, this.told, context);
                    };
                    let mut response = ready!(future.poll(context))?;
                    match tracked.settle(&response) {
                        Some(retelling) => Step::Refunding { response: Some(response), retelling },
                        None => {
                            mem::take(this.told).add_to(&mut response);
                            return Poll::Ready(Ok(response));
                        }
                    }
                }
                StepProjection::Refunding { response, retelling } => {
                    if let Some(told) = ready!(retelling.as_mut().poll(context)) {
                        *this.told = told;
                    }
                    let Some(mut response) = response.take() else { return Poll::Pending };
                    mem::take(this.told).add_to(&mut response);
                    return Poll::Ready(Ok(response));
                }
                StepProjection::Asking { asked, next, settings } => {
                    let answered = ready!(Pin::new(asked).poll(context));
                    match next.take() {
                        Some(next) => {
                            let settled = settings.answered(&next.request, answered, this.told);
                            let (step, tracked) = Step::settled(settled, next, settings);
                            *this.tracked = tracked;
                            step
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
