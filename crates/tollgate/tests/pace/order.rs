use tollgate::tower::PaceLayer;
use tower::Service;

use crate::setup::{Server, paced, poll, scope, send_all};

#[tokio::test(start_paused = true)]
async fn requests_are_sent_in_order_at_the_limits_pace() {
    for limit in [
        "token-bucket capacity=1 refill=10/s",
        "leaky-bucket capacity=1 leak=10/s",
        "leaky-bucket capacity=100 leak=10/s mode=shaping",
        "leaky-bucket capacity=1 leak=10/s mode=shaping",
        "sliding-window-log limit=1 window=100ms",
        "fixed-window limit=1 window=100ms",
    ] {
        let server = Server::new(&[]);
        send_all(&paced(&PaceLayer::new(scope(limit)), &server), 0..20).await;
        let want = (0..20).map(|at| (u128::from(at) * 100, at)).collect::<Vec<_>>();
        assert_eq!(server.arrivals(), want, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn burst_is_sent_at_once() {
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope("token-bucket capacity=3 refill=10/s"));
    send_all(&paced(&layer, &server), 0..5).await;
    assert_eq!(server.arrivals_ms(), [0, 0, 0, 100, 200]);
}

/// Requests at 1,500/s are less than a millisecond apart, which is the resolution of tokio's timers.
#[tokio::test(start_paused = true)]
async fn timer_lateness_does_not_add_up() {
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope("leaky-bucket capacity=10000 leak=1500/s mode=shaping"));
    send_all(&paced(&layer, &server), 0..3_001).await;
    let last_ms = server.arrivals_ms()[3_000];
    assert!((2_000..=2_002).contains(&last_ms), "{last_ms} ms for 3,000 at 1,500/s");
}

#[test]
fn request_that_need_not_wait_needs_no_timer() {
    // Without a runtime a timer would panic.
    let server = Server::new(&[]);
    let mut service = paced(&PaceLayer::new(scope("token-bucket capacity=1 refill=1/s")), &server);
    let response = poll(&mut Box::pin(service.call(0)));
    assert!(response.is_some_and(|response| response.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_queue() {
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope("token-bucket capacity=1 refill=10/s"));
    let layer = layer.key(|request: &u32| (request % 2).to_string());
    send_all(&paced(&layer, &server), 0..4).await;
    assert_eq!(server.arrivals(), [(0, 0), (0, 1), (100, 2), (100, 3)]);
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_its_own_cost() {
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope("token-bucket capacity=3 refill=10/s"));
    let layer = layer.cost(|request: &u32| u64::from(*request));
    send_all(&paced(&layer, &server), 1..4).await;
    assert_eq!(server.arrivals(), [(0, 1), (0, 2), (300, 3)]);
}

#[tokio::test(start_paused = true)]
async fn clones_and_their_scope_share_one_limit() {
    let scope = scope("token-bucket capacity=1 refill=10/s");
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope.clone());
    send_all(&paced(&layer, &server), 0..1).await;
    send_all(&paced(&layer.clone(), &server), 1..2).await;
    assert!(scope.acquire("").await.unwrap().is_admitted());
    send_all(&paced(&layer, &server).clone(), 2..3).await;
    assert_eq!(server.arrivals_ms(), [0, 100, 300]);
}
