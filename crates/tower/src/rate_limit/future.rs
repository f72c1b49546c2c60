//! The future of a limited request: the check, the delay, the inner service, the refund.

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

use super::admission::{HeaderRefresh, TrackedRequest};
use super::charge::DelayedCharge;
use super::decide::Disposition;
use super::pending::PendingCheck;
use super::settings::LayerSettings;
use crate::body::RefusalBody;
use tollgate_http::QuotaHeaders;

pin_project! {
    /// The response of a [`RateLimit`](super::RateLimit).
    ///
    /// Dropping it while a shaping limit delays the request refunds the charge, as far as the limit can refund it.
    /// Dropping it while the inner service works keeps the charge, and ends a
    /// [hold](super::RateLimitLayer::reserve), which is charged in full unless the service has said otherwise. Dropping
    /// it during the refund of [`refund_if`](super::RateLimitLayer::refund_if) does not stop that refund.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, B, R>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        pub(super) step: ResponseStep<S::Future, S, B, R>,
        // The headers for the response of the inner service.
        pub(super) quota_headers: QuotaHeaders,
        // Only for a request that has a hold, or whose charge may be refunded.
        pub(super) tracked: Option<TrackedRequest>,
    }
}

pin_project! {
    #[project = StepProjection]
    pub(super) enum ResponseStep<F, S, B, R> {
        /// The inner service handles the request.
        Passing { #[pin] future: F },
        /// The store decides.
        Checking { check: Box<PendingCheck>, next: Option<NextCall<S, B>>, settings: Arc<LayerSettings> },
        /// The request waits until its delay has passed.
        Delayed { timer: Pin<Box<Sleep>>, waiting: Option<(Box<DelayedCharge>, NextCall<S, B>)> },
        /// The request waits until the inner service is ready.
        AwaitingService { waiting: Option<(Box<DelayedCharge>, NextCall<S, B>)> },
        Refused { response: Option<Response<R>> },
        /// The inner service has responded, and the charge is being refunded.
        Refunding { response: Option<Response<R>>, refresh: HeaderRefresh },
    }
}

/// A request, and the service that it goes to.
pub(super) struct NextCall<S, B> {
    service: S,
    request: Request<B>,
}

/// A request's next step, and its tracking if it has a hold or its charge may be refunded.
type StepAndTracking<F, S, B, R> = (ResponseStep<F, S, B, R>, Option<TrackedRequest>);

impl<S, B> NextCall<S, B> {
    pub(super) fn new(service: S, request: Request<B>) -> NextCall<S, B> {
        NextCall { service, request }
    }

    /// Calls the service, which must be ready.
    fn go<R>(mut self) -> ResponseStep<S::Future, S, B, R>
    where
        S: Service<Request<B>>,
    {
        ResponseStep::Passing { future: self.service.call(self.request) }
    }
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>>,
{
    pub(super) fn checking(
        check: Box<PendingCheck>,
        next: NextCall<S, B>,
        settings: Arc<LayerSettings>,
    ) -> Self {
        let step = ResponseStep::Checking { check, next: Some(next), settings };
        ResponseFuture { step, quota_headers: QuotaHeaders::Nothing, tracked: None }
    }

    pub(super) fn delayed(
        charge: Box<DelayedCharge>,
        quota_headers: QuotaHeaders,
        next: NextCall<S, B>,
        settings: &Arc<LayerSettings>,
    ) -> Self {
        let (step, tracked) = delayed(charge, next, settings);
        ResponseFuture { step, quota_headers, tracked }
    }

    pub(super) fn refused(response: Response<R>) -> Self {
        let step = ResponseStep::Refused { response: Some(response) };
        ResponseFuture { step, quota_headers: QuotaHeaders::Nothing, tracked: None }
    }
}

fn delayed<F, S, B, R>(
    charge: Box<DelayedCharge>,
    mut next: NextCall<S, B>,
    settings: &Arc<LayerSettings>,
) -> StepAndTracking<F, S, B, R> {
    let admission =
        charge.admission().filter(|admission| settings.is_tracked || admission.is_held());
    let track = |admission| TrackedRequest::new(admission, settings, &mut next.request);
    let tracked = admission.map(track);
    let timer = Box::pin(tokio::time::sleep(charge.delay));
    (ResponseStep::Delayed { timer, waiting: Some((charge, next)) }, tracked)
}

impl<F, S, B, R> ResponseStep<F, S, B, R>
where
    S: Service<Request<B>, Response = Response<R>, Future = F> + Clone,
    R: RefusalBody,
{
    /// Returns the next step after the store's answer. The service was ready before the check.
    fn disposition(
        disposition: Disposition,
        mut next: NextCall<S, B>,
        settings: &Arc<LayerSettings>,
    ) -> StepAndTracking<F, S, B, R> {
        match disposition {
            Disposition::Passes => (next.go(), None),
            Disposition::Admitted(admission) => {
                let tracked = TrackedRequest::new(admission, settings, &mut next.request);
                (next.go(), Some(tracked))
            }
            Disposition::Delayed(charge) => {
                // A new clone is not ready yet: a delayed request must not hold a ready service.
                next.service = next.service.clone();
                delayed(charge, next, settings)
            }
            Disposition::Refused(response) => {
                (ResponseStep::Refused { response: Some(response.map(R::of)) }, None)
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
                pass(future, this.quota_headers, context)
            }
            _ => self.poll_before(context),
        }
    }
}

/// Passes the hold of a request on to the body of its response, and adds the headers.
fn finish<R: RefusalBody>(
    tracked: &mut Option<TrackedRequest>,
    response: Response<R>,
    quota_headers: &mut QuotaHeaders,
) -> Response<R> {
    let mut response = match tracked.take() {
        Some(tracked) => tracked.hold_until_end(response),
        None => response,
    };
    mem::take(quota_headers).add_to(&mut response);
    response
}

/// Polls the inner service, and adds the headers to its response.
#[inline]
fn pass<F, R, E>(
    future: Pin<&mut F>,
    quota_headers: &mut QuotaHeaders,
    context: &mut Context<'_>,
) -> Poll<Result<Response<R>, E>>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    let mut polled = future.poll(context);
    if let Poll::Ready(Ok(response)) = &mut polled {
        mem::take(quota_headers).add_to(response);
    }
    polled
}

impl<S, B, R> ResponseFuture<S, B, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: RefusalBody,
{
    /// Polls a request that is not passed on at once, or that is tracked. A separate function, because it needs a large
    /// stack frame.
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
                        return pass(future, this.quota_headers, context);
                    };
                    tracked.renew_if_due();
                    let response = match ready!(future.poll(context)) {
                        Ok(response) => response,
                        Err(error) => {
                            // Ends the hold of the request.
                            *this.tracked = None;
                            return Poll::Ready(Err(error));
                        }
                    };
                    match tracked.refund_after(&response) {
                        Some(refresh) => {
                            ResponseStep::Refunding { response: Some(response), refresh }
                        }
                        None => {
                            let response = finish(this.tracked, response, this.quota_headers);
                            return Poll::Ready(Ok(response));
                        }
                    }
                }
                StepProjection::Refunding { response, refresh } => {
                    if let Some(quota_headers) = ready!(refresh.as_mut().poll(context)) {
                        *this.quota_headers = quota_headers;
                    }
                    let Some(response) = response.take() else { return Poll::Pending };
                    let response = finish(this.tracked, response, this.quota_headers);
                    return Poll::Ready(Ok(response));
                }
                StepProjection::Checking { check, next, settings } => {
                    let answer = ready!(Pin::new(check).poll(context));
                    match next.take() {
                        Some(next) => {
                            let disposition =
                                settings.decide_answered(&next.request, answer, this.quota_headers);
                            let (step, tracked) =
                                ResponseStep::disposition(disposition, next, settings);
                            *this.tracked = tracked;
                            step
                        }
                        None => return Poll::Pending,
                    }
                }
                StepProjection::Delayed { timer, waiting } => {
                    ready!(timer.as_mut().poll(context));
                    ResponseStep::AwaitingService { waiting: waiting.take() }
                }
                StepProjection::AwaitingService { waiting } => {
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
