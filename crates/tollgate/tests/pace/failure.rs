use std::future::{Ready, ready};

use http::Response;
use tollgate::tower::{PaceError, PaceLayer};
use tollgate::{Clock, Error, Limit, Limiter, Redis};
use tower::{Layer, ServiceExt, service_fn};

use crate::setup::{START_US, Server, busy, paced, scope, send, send_all};

const TEN: &str = "token-bucket capacity=1 refill=10/s";

fn fails(_: u32) -> Ready<Result<Response<()>, std::io::Error>> {
    ready(Err(std::io::Error::other("connection lost")))
}

#[tokio::test(start_paused = true)]
async fn client_errors_are_passed_through() {
    let scope = scope(TEN);
    let failing = PaceLayer::new(scope.clone()).layer(service_fn(fails));
    let failed = failing.oneshot(0).await.unwrap_err();
    assert!(matches!(failed, PaceError::Inner(_)));
    assert_eq!(failed.to_string(), "connection lost");
    // The charge stays, because the request may have reached the server.
    assert_eq!(scope.peek("").now().unwrap().remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded_by_max_waiting() {
    let limiter = Limiter::builder().clock(Clock::tokio(START_US)).max_waiting(1).build();
    let scope = limiter.scope("test", TEN.parse::<Limit>().unwrap()).unwrap();
    let server = Server::new(&[busy("7"), busy("7")]);
    let layer = PaceLayer::new(scope).key(|request: &u32| (request % 2).to_string());
    let service = paced(&layer, &server);
    send_all(&service, 0..2).await;
    let waits = send(&service, 2).await;
    for request in [3, 4] {
        let refused = send(&service, request).await.await.unwrap();
        assert!(
            matches!(refused, Err(PaceError::Limiter(Error::TooManyWaiting { waiting: 1 }))),
            "{refused:?}"
        );
    }
    waits.await.unwrap().unwrap();
    assert_eq!(server.arrivals(), [(0, 0), (0, 1), (7_000, 2)]);
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn request_follows_the_scopes_failure_policy_without_the_store() {
    use tollgate::OnFailure;

    let limiter = Redis::at("redis://127.0.0.1:1").unwrap().build().unwrap();
    let scope = limiter.scope("test", TEN.parse::<Limit>().unwrap()).unwrap();
    let server = Server::new(&[]);
    let open = PaceLayer::new(scope.clone().on_failure(OnFailure::Open));
    send_all(&paced(&open, &server), 0..2).await;
    let closed = PaceLayer::new(scope.on_failure(OnFailure::Closed));
    let failed = send(&paced(&closed, &server), 2).await.await.unwrap();
    assert!(matches!(failed, Err(PaceError::Limiter(Error::Store(_)))), "{failed:?}");
    assert_eq!(server.arrivals().len(), 2);
}

/// The first request is sent at once, then one every 100 ms.
#[cfg(feature = "redis")]
#[tokio::test]
async fn requests_keep_their_pace_while_the_store_is_frozen_or_dead() {
    use tollgate_launcher::{Flavour, Launch};

    let mut store = Launch::new(Flavour::Redis).start().unwrap();
    let limiter = Redis::at(&store.url()).unwrap().build().unwrap();
    for name in ["frozen", "dead"] {
        let scope = limiter.scope(name, TEN.parse::<Limit>().unwrap()).unwrap();
        match name {
            "frozen" => store.freeze(),
            _ => store.kill(),
        }
        let server = Server::new(&[]);
        send_all(&paced(&PaceLayer::new(scope.clone()), &server), 0..4).await;
        let arrivals_ms = server.arrivals_ms();
        assert!(arrivals_ms[3] - arrivals_ms[0] >= 3 * 100 - 1, "{name}: {arrivals_ms:?}");
        assert!(scope.check("").await.unwrap().is_degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn keys_are_not_shown_by_debug() {
    let server = Server::new(&[busy("7")]);
    let layer = PaceLayer::new(scope(TEN)).key(|_: &u32| "secret".to_owned());
    let service = paced(&layer, &server);
    send_all(&service, 0..1).await;
    let mut sending = layer.layer(service_fn(fails));
    let future = tower::Service::call(&mut sending, 1);
    let shown = format!("{layer:?} {:?} {future:?}", layer.layer(()));
    assert!(shown.contains("count: 1"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}
