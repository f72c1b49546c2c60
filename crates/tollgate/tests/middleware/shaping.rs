//! Delayed requests, on tokio's paused clock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use joined::join_all;
use tokio::time::Instant;
use tollgate::tower::RateLimitLayer;
use tollgate::{Clock, Limiter};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::*;

type Departures = Arc<Mutex<Vec<(usize, Duration)>>>;
type Served = Response<Full<Bytes>>;

/// A limiter on tokio's clock, which is paused and advances when all tasks wait.
fn limiter() -> Limiter {
    Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build()
}

/// A service that records the number and time of each request.
fn recording(
    departures: &Departures,
) -> impl Service<Request<usize>, Response = Served, Error = Infallible, Future: Send> + Clone + use<>
{
    let (departures, start) = (Arc::clone(departures), Instant::now());
    service_fn(move |request: Request<usize>| {
        departures.lock().unwrap().push((*request.body(), start.elapsed()));
        async { Ok(Response::new(Full::default())) }
    })
}

fn numbered(number: usize) -> Request<usize> {
    get("/").map(|_: Body| number)
}

/// Many futures at once, each in a task.
mod joined {
    pub(crate) async fn join_all<T: Send + 'static>(
        each: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
    ) -> Vec<T> {
        let tasks: Vec<_> = each.into_iter().map(tokio::spawn).collect();
        let mut done = Vec::new();
        for task in tasks {
            done.push(task.await.unwrap());
        }
        done
    }
}

#[tokio::test(start_paused = true)]
async fn requests_leave_evenly_and_in_order_to_the_microsecond() {
    let yaml = "
limits: { even: leaky-bucket capacity=100 leak=100/s mode=shaping }
rules: [{ name: r, domain: api, key: [ip], limit: even }]
";
    let limiter = limiter();
    let direct = RateLimitLayer::new(scope(
        &limiter,
        "even",
        "leaky-bucket capacity=100 leak=100/s mode=shaping",
    ));
    let by_rules = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    for layer in [direct, by_rules] {
        let departures = Departures::default();
        let service = layer.layer(recording(&departures));
        let responses =
            join_all((0..50).map(|number| service.clone().oneshot(numbered(number)))).await;
        assert!(responses.into_iter().all(|response| response.unwrap().status() == 200));
        let even: Vec<_> = (0..50).map(|number| (number, ms(10 * number as u64))).collect();
        assert_eq!(*departures.lock().unwrap(), even);
    }
}

#[tokio::test(start_paused = true)]
async fn fractional_delay_is_late_by_less_than_a_millisecond_and_never_early() {
    let departures = Departures::default();
    let layer = RateLimitLayer::new(scope(
        &limiter(),
        "thirds",
        "leaky-bucket capacity=100 leak=3/s mode=shaping",
    ));
    let service = layer.layer(recording(&departures));
    join_all((0..20).map(|number| service.clone().oneshot(numbered(number)))).await;
    for (number, at) in departures.lock().unwrap().iter() {
        let due_us = (*number as u128 * 1_000_000).div_ceil(3);
        assert!((due_us..due_us + 1_000).contains(&at.as_micros()), "{number} at {at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn too_long_delay_is_refused_at_once_without_a_charge() {
    let departures = Departures::default();
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=100 leak=10/s mode=shaping");
    let service =
        RateLimitLayer::new(limit.clone()).max_wait(ms(300)).layer(recording(&departures));
    let start = Instant::now();
    let statuses = join_all((0..10).map(|number| service.clone().oneshot(numbered(number)))).await;
    let refused = statuses
        .iter()
        .filter(|response| response.as_ref().unwrap().status() == StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.count(), 6);
    assert_eq!(start.elapsed(), ms(300));
    // Four requests were admitted, and three of them have leaked.
    assert_eq!(limit.peek("ip=203.0.113.9").now().unwrap().remaining(), 99);
}

#[tokio::test(start_paused = true)]
async fn delay_is_refused_when_too_many_requests_wait() {
    let departures = Departures::default();
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=100 leak=10/s mode=shaping");
    let service = RateLimitLayer::new(limit).max_waiting(2).layer(recording(&departures));
    let statuses = join_all((0..10).map(|number| service.clone().oneshot(numbered(number)))).await;
    let admitted =
        statuses.iter().filter(|response| response.as_ref().unwrap().status() == StatusCode::OK);
    assert_eq!(admitted.count(), 3);
    // Requests that have left the queue make room.
    let later = join_all((10..12).map(|number| service.clone().oneshot(numbered(number)))).await;
    assert!(later.iter().all(|response| response.as_ref().unwrap().status() == StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn dropped_request_refunds_its_charge_when_it_is_the_last() {
    let departures = Departures::default();
    let yaml = "
limits: { even: leaky-bucket capacity=100 leak=10/s mode=shaping }
rules: [{ name: r, domain: api, key: [ip], limit: even }]
";
    let limiter = limiter();
    let limit = scope(&limiter, "even", "leaky-bucket capacity=100 leak=10/s mode=shaping");
    let rules = rules(&limiter, yaml);
    let remaining = || {
        let peeked = limit.peek("ip=203.0.113.9").now().unwrap().remaining();
        let attributes = tollgate::rules::Attributes::new().with("ip", "203.0.113.9");
        let ruling = rules.check("api", &attributes).now().unwrap();
        (peeked, ruling.rules().next().unwrap().decision().unwrap().remaining())
    };
    for layer in [RateLimitLayer::new(limit.clone()), RateLimitLayer::rules(&rules, "api")] {
        let service = layer.layer(recording(&departures));
        assert_eq!(service.clone().oneshot(numbered(0)).await.unwrap().status(), 200);
        let mut second = Box::pin(service.clone().oneshot(numbered(1)));
        let mut third = Box::pin(service.clone().oneshot(numbered(2)));
        for waiting in [&mut second, &mut third] {
            let polled = std::future::poll_fn(|context| {
                std::task::Poll::Ready(waiting.as_mut().poll(context))
            })
            .await;
            assert!(polled.is_pending());
        }
        // The last charge is refunded, and then the one before it, which is then the last.
        drop(third);
        drop(second);
    }
    // Each layer charged one unit, and the check above another under the rule.
    assert_eq!(remaining(), (99, 98));
    assert!(departures.lock().unwrap().iter().all(|(number, _)| *number == 0));
}

#[tokio::test(start_paused = true)]
async fn delayed_requests_hold_no_concurrency_permit() {
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=100 leak=1/10s mode=shaping");
    let served =
        service_fn(|_: Request<usize>| async { Ok::<_, Infallible>(Served::new(Full::default())) });
    let service = RateLimitLayer::new(limit).layer(tower::limit::ConcurrencyLimit::new(served, 1));
    let start = Instant::now();
    assert_eq!(service.clone().oneshot(numbered(0)).await.unwrap().status(), 200);
    let delayed = tokio::spawn(service.clone().oneshot(numbered(1)));
    tokio::task::yield_now().await;
    let other = request("GET", "/", "198.51.100.7").map(|_: Body| 2);
    assert_eq!(service.oneshot(other).await.unwrap().status(), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(delayed.await.unwrap().unwrap().status(), 200);
    assert_eq!(start.elapsed(), ms(10_000));
}

#[tokio::test(start_paused = true)]
async fn headers_of_a_delayed_request_are_current() {
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=2 leak=1/10s mode=shaping");
    let departures = Departures::default();
    let service = RateLimitLayer::new(limit.clone()).layer(recording(&departures));
    service.clone().oneshot(numbered(0)).await.unwrap();
    let response = service.clone().oneshot(numbered(1)).await.unwrap();
    // The first charge has leaked by then, so more remains.
    assert_eq!(response.headers()["ratelimit"], "\"even\";r=0;t=0");
    assert_eq!(limit.peek("ip=203.0.113.9").now().unwrap().remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn too_long_delay_names_its_limit_and_the_wait() {
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=100 leak=1/s mode=shaping");
    let app = app(RateLimitLayer::new(limit).max_wait(Duration::ZERO));
    send(&app, get("/")).await;
    let refused = text(send(&app, get("/")).await).await;
    assert!(
        refused.contains("the delay by `even` would be too long; come back in 1 s"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn reused_service_does_not_wait_for_its_own_permit() {
    let limit = scope(&limiter(), "even", "leaky-bucket capacity=100 leak=1/10s mode=shaping");
    let served =
        service_fn(|_: Request<usize>| async { Ok::<_, Infallible>(Served::new(Full::default())) });
    let mut service =
        RateLimitLayer::new(limit).layer(tower::limit::ConcurrencyLimit::new(served, 1));
    for number in 0..3 {
        let response = service.ready().await.unwrap().call(numbered(number));
        let response = tokio::time::timeout(ms(60_000), response).await.expect("a permit");
        assert_eq!(response.unwrap().status(), 200);
    }
}
