use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::Error;
use tollgate::tower::{PaceError, PaceLayer};

use crate::setup::{Outcome, Server, busy, ms, paced, scope, send, send_all};

const TEN: &str = "token-bucket capacity=1 refill=10/s";
const SHAPED: &str = "leaky-bucket capacity=100 leak=10/s mode=shaping";

fn would_wait(outcome: Outcome) -> Duration {
    match outcome {
        Err(PaceError::TooLong { would_wait }) => would_wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_would_be_late_fails_at_once_without_a_charge() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[]);
        let service = paced(&PaceLayer::new(scope.clone()).max_wait(ms(150)), &server);
        let in_time = [send(&service, 0).await, send(&service, 1).await];
        let late = send(&service, 2).await;
        assert_eq!(would_wait(late.await.unwrap()), ms(200), "{limit}");
        for sent in in_time {
            sent.await.unwrap().unwrap();
        }
        send_all(&service, 3..4).await;
        assert_eq!(server.arrivals(), [(0, 0), (100, 1), (200, 3)], "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_counts_against_max_wait() {
    let server = Server::new(&[busy("7")]);
    let service = paced(&PaceLayer::new(scope(TEN)).max_wait(ms(7_150)), &server);
    send_all(&service, 0..1).await;
    let in_time = [send(&service, 1).await, send(&service, 2).await];
    let started = Instant::now();
    let late = send(&service, 3).await.await.unwrap();
    assert_eq!((would_wait(late), started.elapsed()), (ms(7_200), ms(0)));
    for sent in in_time {
        sent.await.unwrap().unwrap();
    }
    assert_eq!(server.arrivals(), [(0, 0), (7_000, 1), (7_100, 2)]);
}

#[tokio::test(start_paused = true)]
async fn first_waiters_forecast_includes_retry_after_and_the_limit() {
    let scope = scope("token-bucket capacity=1 refill=1/10s");
    for (max_wait_ms, want_ms) in [(500, 10_000), (5_000, 10_000)] {
        let server = Server::new(&[busy("1")]);
        scope.reset_now("").unwrap();
        let service = paced(&PaceLayer::new(scope.clone()).max_wait(ms(max_wait_ms)), &server);
        send_all(&service, 0..1).await;
        let started = Instant::now();
        let late = send(&service, 1).await.await.unwrap();
        assert_eq!((would_wait(late), started.elapsed()), (ms(want_ms), ms(0)));
        assert_eq!(scope.limiter().waiting(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_requests_fail_at_once_when_retry_after_makes_them_late() {
    for limit in [TEN, SHAPED] {
        let scope = scope(limit);
        let server = Server::new(&[busy("7").after(ms(50))]);
        let service = paced(&PaceLayer::new(scope.clone()).max_wait(ms(500)), &server);
        let refused = send(&service, 0).await;
        let late = [send(&service, 1).await, send(&service, 2).await];
        let started = Instant::now();
        for sent in late {
            assert_eq!(would_wait(sent.await.unwrap()), ms(7_050), "{limit}");
        }
        assert_eq!(started.elapsed(), ms(50), "{limit}");
        assert_eq!(refused.await.unwrap().unwrap().status(), 429);
        assert_eq!((server.arrivals_ms(), scope.limiter().waiting()), (vec![0], 0), "{limit}");
    }
}

/// A shaping limit is charged 10 ms ahead; the charge is refunded.
#[tokio::test(start_paused = true)]
async fn request_about_to_be_sent_is_not_charged_when_its_wait_becomes_too_long() {
    let scope = scope(SHAPED);
    let server = Server::new(&[busy("7").after(ms(95))]);
    let service = paced(&PaceLayer::new(scope.clone()).max_wait(ms(500)), &server);
    send(&service, 0).await;
    let late = send(&service, 1).await;
    assert_eq!(would_wait(late.await.unwrap()), ms(7_095));
    assert_eq!(scope.peek("").now().unwrap().remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn wait_of_exactly_max_wait_is_accepted() {
    let server = Server::new(&[busy("7")]);
    let service = paced(&PaceLayer::new(scope(TEN)).max_wait(ms(7_000)), &server);
    send_all(&service, 0..2).await;
    assert_eq!(server.arrivals_ms(), [0, 7_000]);
}

#[tokio::test(start_paused = true)]
async fn request_that_costs_0_or_more_than_the_limit_fails() {
    let server = Server::new(&[]);
    let layer = PaceLayer::new(scope("token-bucket capacity=2 refill=10/s"));
    let service = paced(&layer.cost(|cost: &u32| u64::from(*cost)), &server);
    let never = send(&service, 3).await.await.unwrap().unwrap_err();
    assert_eq!(
        never.to_string(),
        "costs 3, which is more than the limit of 2; lower the cost, or raise the limit"
    );
    let nothing = send(&service, 0).await.await.unwrap();
    assert!(matches!(nothing, Err(PaceError::Limiter(Error::Cost(_)))), "{nothing:?}");
    assert_eq!(server.arrivals(), []);
}

#[tokio::test(start_paused = true)]
async fn too_long_error_says_how_long_and_what_to_do() {
    let server = Server::new(&[busy("7")]);
    let service = paced(&PaceLayer::new(scope(TEN)).max_wait(ms(1)), &server);
    send_all(&service, 0..1).await;
    sleep(ms(500)).await;
    let late = send(&service, 1).await.await.unwrap().unwrap_err();
    assert_eq!(late.to_string(), "would have to wait 6.5s; try again later, or raise `max_wait`");
}
