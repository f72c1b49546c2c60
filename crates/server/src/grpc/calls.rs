//! Runs the calls to the gRPC port, and counts them.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use hyper::{Request, Response};
use tonic::service::Routes;

use super::answer::{AnswerBytes, CallEnd, CallReply};
use super::body::CallBody;
use super::call::{self, CallResponse};
use super::rate_limit::RateLimitService;
use super::tonic_calls;
use crate::budget::{BudgetExhausted, MemoryAccount, MemoryCharge};
use crate::endpoint::RequestEndpoint;

/// The memory of a call until it is answered: its stream, its state, and a short answer.
const CALL_BYTES: usize = 4 << 10;

/// Runs calls. Cheap to clone.
#[derive(Clone)]
pub(super) struct Calls {
    /// The services of health and reflection.
    routes: Routes,
    envoy: Arc<RateLimitService>,
    /// How long a message may take to arrive.
    max_time: Duration,
}

/// A call that is not yet answered.
pub(super) struct RunningCall {
    /// `None` if `work` itself sends the answer.
    respond: Option<SendResponse<AnswerBytes>>,
    work: Pin<Box<dyn Future<Output = WorkResult> + Send>>,
}

/// The result of the work on a call.
pub(super) enum WorkResult {
    Answer(Response<CallReply>, MemoryCharge),
    Ended(CallEnd),
}

impl Calls {
    pub(super) fn new(routes: Routes, envoy: Arc<RateLimitService>, max_time: Duration) -> Calls {
        Calls { routes, envoy, max_time }
    }

    /// Charges the memory that every call needs.
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
        if RequestEndpoint::of(request.uri().path()) == RequestEndpoint::RateLimit {
            let work = rate_limit(Arc::clone(&self.envoy), request, self.max_time, charge);
            return RunningCall { respond: Some(respond), work: Box::pin(work) };
        }
        let work =
            tonic_calls::answer(self.routes.clone(), request, respond, self.max_time, charge);
        RunningCall { respond: None, work: Box::pin(async { WorkResult::Ended(work.await) }) }
    }

    /// Counts a call of Envoy's service that is refused because memory is short. Calls of other services are not
    /// counted.
    pub(super) fn count_refused(&self, request: &Request<RecvStream>) {
        let endpoint = RequestEndpoint::of(request.uri().path());
        if endpoint == RequestEndpoint::RateLimit {
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
        // Checked first, so that a call that was reset is not decided and charges no quota.
        if let Some(respond) = &mut self.respond
            && let Poll::Ready(reset) = respond.poll_reset(context)
        {
            return Poll::Ready(CallEnd::of(&reset));
        }
        let (response, charge) = match ready!(self.work.as_mut().poll(context)) {
            WorkResult::Answer(response, charge) => (response, charge),
            WorkResult::Ended(end) => return Poll::Ready(end),
        };
        Poll::Ready(match self.respond.take() {
            Some(respond) => CallEnd::Answer { response, respond, charge },
            None => CallEnd::Lost,
        })
    }
}

/// Answers a call of Envoy's service. A call that is dropped before its answer is not counted.
async fn rate_limit(
    envoy: Arc<RateLimitService>,
    request: Request<CallBody>,
    max_time: Duration,
    mut charge: MemoryCharge,
) -> WorkResult {
    let mut observation = envoy.observer.begin(RequestEndpoint::RateLimit, &request);
    let CallResponse { response, status } = {
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
    WorkResult::Answer(response, charge)
}
