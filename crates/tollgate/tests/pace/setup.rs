//! A server that answers as scripted, and records when requests arrive.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Response;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate::tower::{Pace, PaceError, PaceFuture, PaceLayer};
use tollgate::{Clock, Limit, Limiter, Scope};
use tower::{Layer, Service};

pub(crate) type Outcome = Result<Response<()>, PaceError>;

/// A midnight (UTC), at which every window that divides a day starts.
pub(crate) const START_US: u64 = 1_699_920_000_000_000;

pub(crate) fn scope(limit: &str) -> Scope {
    let limiter = Limiter::builder().clock(Clock::tokio(START_US)).build();
    limiter.scope("test", limit.parse::<Limit>().unwrap()).unwrap()
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A scripted server. Its requests are numbers.
#[derive(Clone)]
pub(crate) struct Server {
    started: Instant,
    script: Arc<Mutex<VecDeque<Answer>>>,
    arrivals: Arc<Mutex<Vec<(u128, u32)>>>,
}

/// An answer of the server, and how long it takes.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) header: (&'static str, &'static str),
    pub(crate) after: Duration,
}

/// `429` with `Retry-After`.
pub(crate) const fn busy(retry_after: &'static str) -> Answer {
    Answer { status: 429, header: ("retry-after", retry_after), after: Duration::ZERO }
}

pub(crate) const FINE: Answer =
    Answer { status: 200, header: ("server", "scripted"), after: Duration::ZERO };

impl Answer {
    pub(crate) const fn after(self, after: Duration) -> Answer {
        Answer { after, ..self }
    }
}

impl Server {
    /// Makes a server that gives these answers in turn, and then only 200.
    pub(crate) fn new(script: &[Answer]) -> Server {
        let script = Arc::new(Mutex::new(script.iter().copied().collect()));
        Server { started: Instant::now(), script, arrivals: Arc::default() }
    }

    /// The milliseconds from the start, and the number, of each request that arrived.
    pub(crate) fn arrivals(&self) -> Vec<(u128, u32)> {
        self.arrivals.lock().unwrap().clone()
    }

    /// The milliseconds from the start of each request that arrived.
    pub(crate) fn arrivals_ms(&self) -> Vec<u128> {
        self.arrivals().into_iter().map(|(at_ms, _)| at_ms).collect()
    }
}

impl Service<u32> for Server {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<()>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        self.arrivals.lock().unwrap().push((self.started.elapsed().as_millis(), request));
        let answer = self.script.lock().unwrap().pop_front().unwrap_or(FINE);
        let (name, value) = answer.header;
        let response = Response::builder().status(answer.status).header(name, value);
        Box::pin(async move {
            if !answer.after.is_zero() {
                sleep(answer.after).await;
            }
            Ok(response.body(()).unwrap())
        })
    }
}

/// Sends a request from a new task. When this returns, the task has polled it.
pub(crate) async fn send(service: &Pace<Server, u32>, request: u32) -> JoinHandle<Outcome> {
    let mut service = service.clone();
    let sent = tokio::spawn(async move { service.call(request).await });
    tokio::task::yield_now().await;
    sent
}

/// Sends requests one after the other, and waits for all responses.
pub(crate) async fn send_all(service: &Pace<Server, u32>, requests: std::ops::Range<u32>) {
    let mut sent = Vec::new();
    for request in requests {
        sent.push(send(service, request).await);
    }
    for one in sent {
        one.await.unwrap().unwrap();
    }
}

/// Makes a new service of the layer.
pub(crate) fn paced(layer: &PaceLayer<u32>, server: &Server) -> Pace<Server, u32> {
    layer.layer(server.clone())
}

/// A request that a test polls itself, with a waker that does nothing.
pub(crate) type Polled = Pin<Box<PaceFuture<Server, u32>>>;

pub(crate) fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
