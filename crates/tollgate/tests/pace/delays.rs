use tollgate::tower::PaceLayer;
use tower::{Layer, Service};

use crate::setup::{Answer, FINE, Server, busy, ms, paced, scope, send, send_all};

const PLENTY: &str = "token-bucket capacity=100 refill=100/s";
const TEN: &str = "token-bucket capacity=1 refill=10/s";
const SHAPED: &str = "leaky-bucket capacity=100 leak=10/s mode=shaping";

#[tokio::test(start_paused = true)]
async fn retry_after_delays_all_clones() {
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope(PLENTY));
    let service = paced(&layer, &server);
    let refused = send(&service, 0).await.await.unwrap().unwrap();
    assert_eq!(refused.status(), 429);
    let of_the_layer = send(&paced(&layer.clone(), &server), 1).await;
    let of_the_service = send(&service.clone(), 2).await;
    for sent in [of_the_layer, of_the_service] {
        assert_eq!(sent.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(server.arrivals(), [(0, 0), (7_000, 1), (7_000, 2)]);
}

#[tokio::test(start_paused = true)]
async fn delayed_requests_are_sent_at_the_limits_pace() {
    for limit in [TEN, SHAPED] {
        let server = Server::new(&[busy("7")]);
        send_all(&paced(&PaceLayer::new(scope(limit)), &server), 0..5).await;
        assert_eq!(
            server.arrivals(),
            [(0, 0), (7_000, 1), (7_100, 2), (7_200, 3), (7_300, 4)],
            "{limit}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn queued_requests_wait_for_retry_after() {
    for limit in [TEN, SHAPED] {
        let server = Server::new(&[busy("1").after(ms(50))]);
        send_all(&paced(&PaceLayer::new(scope(limit)), &server), 0..4).await;
        assert_eq!(server.arrivals(), [(0, 0), (1_050, 1), (1_150, 2), (1_250, 3)], "{limit}");
    }
}

/// A shaping limit is charged 10 ms ahead. Such a request is sent at the same time as the first in line, in any order.
#[tokio::test(start_paused = true)]
async fn request_about_to_be_sent_waits_for_retry_after() {
    let server = Server::new(&[busy("1").after(ms(95))]);
    send_all(&paced(&PaceLayer::new(scope(SHAPED)), &server), 0..4).await;
    let mut arrivals = server.arrivals();
    arrivals.sort();
    assert_eq!(arrivals, [(0, 0), (1_095, 1), (1_095, 2), (1_195, 3)]);
}

#[tokio::test(start_paused = true)]
async fn longest_of_several_retry_afters_counts() {
    let [seven, three, nine] = [busy("7"), busy("3"), busy("9")];
    let script = [seven.after(ms(1)), three.after(ms(1_000)), nine.after(ms(2_000))];
    let server = Server::new(&script);
    let service = paced(&PaceLayer::new(scope(PLENTY)), &server);
    // All three are sent before the first answer comes.
    let sent = [send(&service, 0).await, send(&service, 1).await, send(&service, 2).await];
    for sent in sent {
        assert_eq!(sent.await.unwrap().unwrap().status(), 429);
    }
    send_all(&service, 3..4).await;
    assert_eq!(server.arrivals().last(), Some(&(11_000, 3)));
}

#[tokio::test(start_paused = true)]
async fn retry_after_delays_only_its_key() {
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope(PLENTY)).key(|request: &u32| (request % 2).to_string());
    send_all(&paced(&layer, &server), 0..4).await;
    assert_eq!(server.arrivals(), [(0, 0), (0, 1), (0, 3), (7_000, 2)]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_does_not_delay_another_layer() {
    let scope = scope(PLENTY);
    let server = Server::new(&[busy("7")]);
    for request in 0..2 {
        let layer = PaceLayer::new(scope.clone());
        send_all(&paced(&layer, &server), request..request + 1).await;
    }
    assert_eq!(server.arrivals_ms(), [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn ratelimit_header_of_a_success_delays_requests_when_nothing_remains() {
    let spent = Answer { header: ("ratelimit", "\"default\";r=0;t=5"), ..FINE };
    let some = Answer { header: ("ratelimit", "\"default\";r=1;t=5"), ..FINE };
    let server = Server::new(&[spent, some]);
    send_all(&paced(&PaceLayer::new(scope(PLENTY)), &server), 0..3).await;
    assert_eq!(server.arrivals_ms(), [0, 5_000, 5_000]);
}

#[tokio::test(start_paused = true)]
async fn delay_is_capped_at_max_delay() {
    let an_hour_ms = 3_600_000;
    for (max_delay, want_ms) in [(None, an_hour_ms), (Some(ms(2_000)), 2_000), (Some(ms(0)), 0)] {
        let mut layer = PaceLayer::new(scope(PLENTY));
        if let Some(max_delay) = max_delay {
            layer = layer.max_delay(max_delay);
        }
        let server = Server::new(&[busy("99999999999999999999999999")]);
        send_all(&paced(&layer, &server), 0..2).await;
        assert_eq!(server.arrivals_ms(), [0, want_ms]);
    }
}

#[tokio::test(start_paused = true)]
async fn whole_burst_is_sent_after_max_delay() {
    let server = Server::new(&[busy("9000"); 4].map(|answer| answer.after(ms(5))));
    let burst_of_three = scope("token-bucket capacity=3 refill=10/s");
    let service = paced(&PaceLayer::new(burst_of_three).max_delay(ms(2_000)), &server);
    send(&service, 0).await.await.unwrap().unwrap();
    send_all(&service, 1..5).await;
    assert_eq!(server.arrivals(), [(0, 0), (2_005, 1), (2_005, 2), (2_005, 3), (4_010, 4)]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_date_counts_from_the_wall_clock() {
    let past = busy("Sun, 06 Nov 1994 08:49:37 GMT");
    let future = busy("Fri, 31 Dec 9999 23:59:59 GMT");
    let server = Server::new(&[past, future]);
    let layer = PaceLayer::new(scope(PLENTY)).max_delay(ms(2_000));
    send_all(&paced(&layer, &server), 0..3).await;
    assert_eq!(server.arrivals_ms(), [0, 0, 2_000]);
}

#[tokio::test(start_paused = true)]
async fn layer_needs_no_type_annotations() {
    let server = Server::new(&[busy("1")]);
    let mut service = PaceLayer::new(scope(PLENTY)).layer(server.clone());
    for request in 0..2 {
        let ready = tower::ServiceExt::ready(&mut service).await.unwrap();
        ready.call(request).await.unwrap();
    }
    assert_eq!(server.arrivals_ms(), [0, 1_000]);
}
