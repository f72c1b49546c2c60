use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::Response;
use tokio::time::advance;
use tollgate::Scope;
use tollgate::tower::PaceLayer;
use tower::{Layer, Service};

use crate::setup::{Polled, Server, busy, ms, paced, poll, scope, send_all};

const TEN: &str = "token-bucket capacity=1 refill=10/s";
const SHAPED: &str = "leaky-bucket capacity=100 leak=10/s mode=shaping";

fn remaining(scope: &Scope) -> u64 {
    scope.peek("").now().unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn request_dropped_while_delayed_is_not_charged_and_leaves_the_queue() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[busy("7")]);
        let mut service = paced(&PaceLayer::new(scope.clone()), &server);
        send_all(&service, 0..1).await;
        let mut delayed: Vec<Polled> =
            (1..4).map(|request| Box::pin(service.call(request))).collect();
        assert!(delayed.iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(scope.limiter().waiting(), 3);
        advance(ms(1_000)).await;
        assert!(delayed.iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(remaining(&scope), scope.limit().size(), "{limit}");
        drop(delayed);
        assert_eq!(scope.limiter().waiting(), 0);
        send_all(&service, 4..6).await;
        assert_eq!(server.arrivals(), [(0, 0), (7_000, 4), (7_100, 5)], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn next_request_is_sent_when_the_waiting_one_is_dropped() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[]);
        let mut service = paced(&PaceLayer::new(scope.clone()), &server);
        send_all(&service, 0..1).await;
        let mut waiting: Polled = Box::pin(service.call(1));
        assert!(poll(&mut waiting).is_none());
        advance(ms(95)).await; // The shaping limit is charged by now.
        assert!(poll(&mut waiting).is_none());
        drop(waiting);
        assert_eq!(scope.limiter().waiting(), 0);
        send_all(&service, 2..3).await;
        assert_eq!(server.arrivals(), [(0, 0), (100, 2)], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_not_queued() {
    let scope = scope(TEN);
    let server = Server::new(&[]);
    let mut service = paced(&PaceLayer::new(scope.clone()), &server);
    drop(service.call(0));
    assert_eq!((remaining(&scope), server.arrivals()), (1, vec![]));
}

/// A client that is not ready until `become_ready` is called.
#[derive(Clone)]
struct NotYetReady {
    is_ready: Arc<AtomicBool>,
    server: Server,
}

impl NotYetReady {
    fn new(server: &Server) -> NotYetReady {
        NotYetReady { is_ready: Arc::default(), server: server.clone() }
    }

    fn become_ready(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
    }
}

impl Service<u32> for NotYetReady {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = <Server as Service<u32>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        match self.is_ready.load(Ordering::Relaxed) {
            true => self.server.poll_ready(context),
            false => Poll::Pending,
        }
    }

    fn call(&mut self, request: u32) -> Self::Future {
        assert!(self.is_ready.load(Ordering::Relaxed));
        self.server.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn request_dropped_before_the_client_is_ready_is_not_charged() {
    let scope = scope(TEN);
    let client = NotYetReady::new(&Server::new(&[]));
    let mut service = PaceLayer::new(scope.clone()).layer(client.clone());
    let mut pending = Box::pin(service.call(0));
    assert!(poll(&mut pending).is_none());
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (0, 0));
    drop(pending);
    assert_eq!(remaining(&scope), 1);
}

#[tokio::test(start_paused = true)]
async fn request_is_sent_when_its_client_becomes_ready_and_charged_once() {
    let scope = scope(TEN);
    let server = Server::new(&[]);
    let client = NotYetReady::new(&server);
    let mut service = PaceLayer::new(scope.clone()).layer(client.clone());
    let mut pending = Box::pin(service.call(0));
    assert!(poll(&mut pending).is_none());
    client.become_ready();
    assert!(poll(&mut pending).is_some_and(|outcome| outcome.is_ok()));
    drop(pending);
    assert_eq!((remaining(&scope), server.arrivals_ms()), (0, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_a_retry_after_that_comes_before_its_client_is_ready() {
    let scope = scope("token-bucket capacity=2 refill=10/s");
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope.clone());
    let client = NotYetReady::new(&server);
    let mut service = layer.layer(client.clone());
    let mut pending = Box::pin(service.call(0));
    assert!(poll(&mut pending).is_none());
    advance(ms(1_000)).await;
    send_all(&paced(&layer, &server), 1..2).await; // answered with `Retry-After: 7`
    client.become_ready();
    assert!(poll(&mut pending).is_none());
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (1, 1));
    pending.await.unwrap();
    assert_eq!(server.arrivals(), [(1_000, 1), (8_000, 0)]);
}

#[tokio::test(start_paused = true)]
async fn max_wait_counts_from_the_start_of_the_request() {
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope("token-bucket capacity=2 refill=10/s")).max_wait(ms(7_500));
    let client = NotYetReady::new(&server);
    let mut service = layer.layer(client.clone());
    let mut pending = Box::pin(service.call(0));
    assert!(poll(&mut pending).is_none());
    advance(ms(1_000)).await;
    send_all(&paced(&layer, &server), 1..2).await;
    client.become_ready();
    let late = poll(&mut pending).unwrap().unwrap_err();
    assert_eq!(late.to_string(), "would have to wait 8s; try again later, or raise `max_wait`");
}
