//! Calls to the gRPC port, and what is counted of them.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use hyper::{Request, Response};
use tonic::service::Routes;

use super::answer::{Answer, AnswerBytes, CallEnd};
use super::body::CallBody;
use super::call::{self, Answered};
use super::rate_limit::RateLimitService;
use super::routed;
use crate::budget::{BudgetExhausted, MemoryAccount, MemoryCharge};
use crate::endpoint::Endpoint;

/// The memory of a call until it is answered: its stream, its state, and a short answer.
const CALL_BYTES: usize = 4 << 10;

/// Runs calls. Cheap to clone.
#[derive(Clone)]
pub(super) struct Calls {
    /// Health and reflection.
    routes: Routes,
    envoy: Arc<RateLimitService>,
    /// How long a message may take to arrive.
    max_time: Duration,
}

/// A call that is not yet answered.
pub(super) struct RunningCall {
    /// `None` if the work sends the answer by itself.
    respond: Option<SendResponse<AnswerBytes>>,
    work: Pin<Box<dyn Future<Output = Work> + Send>>,
}

/// The result of the work on a call.
pub(super) enum Work {
    Answer(Response<Answer>, MemoryCharge),
    Ended(CallEnd),
}

impl Calls {
    pub(super) fn new(routes: Routes, envoy: Arc<RateLimitService>, max_time: Duration) -> Calls {
        Calls { routes, envoy, max_time }
    }

    /// Charges what any call takes.
    pub(super) fn charge(&self, account: &MemoryAccount) -> Result<MemoryCharge, BudgetExhausted> {
        account.charge(CALL_BYTES)
    }

    /// Starts a call, which does nothing until it is polled.
    pub(super) fn run(
        &self,
        request: Request<RecvStream>,
        respond: SendResponse<AnswerBytes>,
        charge: MemoryCharge,
    ) -> RunningCall {
        let request = request.map(CallBody::new);
        if Endpoint::of(request.uri().path()) == Endpoint::RateLimit {
            let work = rate_limit(Arc::clone(&self.envoy), request, self.max_time, charge);
            return RunningCall { respond: Some(respond), work: Box::pin(work) };
        }
        let work = routed::answer(self.routes.clone(), request, respond, self.max_time, charge);
        RunningCall { respond: None, work: Box::pin(async { Work::Ended(work.await) }) }
    }

    /// Counts a call that is refused because memory is short.
    pub(super) fn count_refused(&self, request: &Request<RecvStream>) {
        let endpoint = Endpoint::of(request.uri().path());
        if endpoint == Endpoint::RateLimit {
            self.envoy.observer.refused(endpoint);
        }
    }

    /// Counts a call that its client reset.
    pub(super) fn count_reset(&self) {
        self.envoy.metrics.count_reset_call();
    }
}

impl Future for RunningCall {
    type Output = CallEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallEnd> {
        // First: a call that is reset is not worked on, and charges no quota.
        if let Some(respond) = &mut self.respond
            && let Poll::Ready(reset) = respond.poll_reset(context)
        {
            return Poll::Ready(CallEnd::of(&reset));
        }
        let (response, charge) = match ready!(self.work.as_mut().poll(context)) {
            Work::Answer(response, charge) => (response, charge),
            Work::Ended(end) => return Poll::Ready(end),
        };
        Poll::Ready(match self.respond.take() {
            Some(respond) => CallEnd::Answer { response, respond, charge },
            None => CallEnd::Lost,
        })
    }
}

/// Answers a call of Envoy's. A call that is dropped meanwhile is not counted.
async fn rate_limit(
    envoy: Arc<RateLimitService>,
    request: Request<CallBody>,
    max_time: Duration,
    mut charge: MemoryCharge,
) -> Work {
    let mut observation = envoy.observer.begin(Endpoint::RateLimit, &request);
    let Answered { response, status } = {
        let began = observation.began();
        let answered = call::should_rate_limit(&envoy, request, max_time, began, &mut charge);
        let mut answered = pin!(answered);
        poll_fn(|context| {
            let _entered = observation.enter();
            answered.as_mut().poll(context)
        })
        .await
    };
    envoy.observer.answered(&mut observation, status);
    Work::Answer(response, charge)
}
