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
async fn request_dropped_while_held_leaves_no_trace() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[busy("7")]);
        let mut service = paced(&PaceLayer::new(scope.clone()), &server);
        send_all(&service, 0..1).await;
        let mut held: Vec<Polled> = (1..4).map(|request| Box::pin(service.call(request))).collect();
        assert!(held.iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(scope.limiter().waiting(), 3);
        advance(ms(1_000)).await;
        assert!(held.iter_mut().all(|one| poll(one).is_none()));
        assert_eq!(remaining(&scope), scope.limit().size(), "{limit}");
        drop(held);
        assert_eq!(scope.limiter().waiting(), 0);
        send_all(&service, 4..6).await;
        assert_eq!(server.came(), [(0, 0), (7_000, 4), (7_100, 5)], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_request_lets_the_next_go() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[]);
        let mut service = paced(&PaceLayer::new(scope.clone()), &server);
        send_all(&service, 0..1).await;
        let mut waiting: Polled = Box::pin(service.call(1));
        assert!(poll(&mut waiting).is_none());
        advance(ms(95)).await; // the shaping limit's place is taken by now
        assert!(poll(&mut waiting).is_none());
        drop(waiting);
        assert_eq!(scope.limiter().waiting(), 0);
        send_all(&service, 2..3).await;
        assert_eq!(server.came(), [(0, 0), (100, 2)], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_not_queued() {
    let scope = scope(TEN);
    let server = Server::new(&[]);
    let mut service = paced(&PaceLayer::new(scope.clone()), &server);
    drop(service.call(0));
    assert_eq!((remaining(&scope), server.came()), (1, vec![]));
}

/// A server behind a client that is not always ready.
#[derive(Clone)]
struct Slow {
    is_ready: Arc<AtomicBool>,
    server: Server,
}

impl Slow {
    fn new(server: &Server) -> Slow {
        Slow { is_ready: Arc::default(), server: server.clone() }
    }

    fn wake_up(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
    }
}

impl Service<u32> for Slow {
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
    let slow = Slow::new(&Server::new(&[]));
    let mut service = PaceLayer::new(scope.clone()).layer(slow.clone());
    let mut turned = Box::pin(service.call(0));
    assert!(poll(&mut turned).is_none());
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (0, 0));
    drop(turned);
    assert_eq!(remaining(&scope), 1);
}

#[tokio::test(start_paused = true)]
async fn request_goes_when_its_client_becomes_ready_and_is_charged_once() {
    let scope = scope(TEN);
    let server = Server::new(&[]);
    let slow = Slow::new(&server);
    let mut service = PaceLayer::new(scope.clone()).layer(slow.clone());
    let mut turned = Box::pin(service.call(0));
    assert!(poll(&mut turned).is_none());
    slow.wake_up();
    assert!(poll(&mut turned).is_some_and(|outcome| outcome.is_ok()));
    drop(turned);
    assert_eq!((remaining(&scope), server.came_ms()), (0, vec![0]));
}

#[tokio::test(start_paused = true)]
async fn request_waits_again_when_the_server_says_so_before_the_client_is_ready() {
    let scope = scope("token-bucket capacity=2 refill=10/s");
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope.clone());
    let slow = Slow::new(&server);
    let mut service = layer.layer(slow.clone());
    let mut turned = Box::pin(service.call(0));
    assert!(poll(&mut turned).is_none());
    advance(ms(1_000)).await;
    send_all(&paced(&layer, &server), 1..2).await; // told to wait
    slow.wake_up();
    assert!(poll(&mut turned).is_none());
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (1, 1));
    turned.await.unwrap();
    assert_eq!(server.came(), [(1_000, 1), (8_000, 0)]);
}

#[tokio::test(start_paused = true)]
async fn patience_counts_from_the_start() {
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope("token-bucket capacity=2 refill=10/s")).max_wait(ms(7_500));
    let slow = Slow::new(&server);
    let mut service = layer.layer(slow.clone());
    let mut turned = Box::pin(service.call(0));
    assert!(poll(&mut turned).is_none());
    advance(ms(1_000)).await;
    send_all(&paced(&layer, &server), 1..2).await;
    slow.wake_up();
    let late = poll(&mut turned).unwrap().unwrap_err();
    assert_eq!(late.to_string(), "would have to wait 8s; try again later, or raise `max_wait`");
}
