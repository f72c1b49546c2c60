//! Holds on a real server: what another process sees of them while a response streams, and when it ends.

use std::net::SocketAddr;
use std::time::Duration;

use tollgate::tower::{ActualCost, Admission};
use tollgate::{OnFailure, Redis};
use tollgate_launcher::Flavour;
use tower::{Layer, ServiceExt, service_fn};

use super::sockets::{state_of_localhost, until_held};
use super::*;
use crate::failure::Store;
use crate::servers::*;

const PLACES: &str = "concurrency limit=2 for=1h";

/// A server, the limiter of the middleware, and the limiter of another process.
struct OnRedis {
    store: Store,
    own: Limiter,
    other: Limiter,
}

impl OnRedis {
    fn start(flavour: Flavour) -> OnRedis {
        let store = Store::of(flavour);
        // Under `local` a limiter also writes its heartbeat.
        let closed = |redis: Redis| redis.on_failure(OnFailure::Closed).build().unwrap();
        let (own, other) = (closed(store.builder()), closed(store.observer()));
        OnRedis { store, own, other }
    }

    /// How often scripts have changed or deleted a key.
    fn writes(&self) -> u64 {
        let calls = |command| self.store.info(&format!("cmdstat_{command}:calls="));
        ["set", "setrange", "del"].into_iter().map(calls).sum()
    }

    /// The scope of a limit in the middleware, and in the other process.
    fn scopes(&self, limit: &str) -> [Scope; 2] {
        [&self.own, &self.other].map(|limiter| scope(limiter, limit, limit))
    }
}

/// Waits until the client's hold expires later than this, and returns the new expiry.
async fn until_expiry_after(scope: &Scope, after_us: u64) -> u64 {
    let expiry = async {
        loop {
            let state = scope.state("ip=127.0.0.1").await.unwrap();
            match state.holds.iter().next() {
                Some(hold) if hold.expires_us > after_us => return hold.expires_us,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, expiry).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaming_body_holds_its_units_on_the_server_until_it_has_ended() {
    for (flavour, version) in Flavour::ALL.into_iter().zip(VERSIONS) {
        let redis = OnRedis::start(flavour);
        let [own, other] = redis.scopes(LIMIT);
        let counted = |body: &[u8]| Some(body.len() as u64);
        let layer = hundred(&own)
            .hold_for(Duration::from_secs(1))
            .settle(move |_| ActualCost::from_tail(64, counted));
        let (app, sender) = streaming(layer);
        let server = serve(app).await;
        let mut connection = Connection::open(server, version).await;
        sender.data("seven__");
        let waiting = tokio::spawn(async move { connection.get("/").await.into_body() });
        assert_eq!(until_held(&other, 1).await, 900, "{flavour}");
        // The hold is renewed on the server, beyond its first expiry.
        let first_us = until_expiry_after(&other, 0).await;
        until_expiry_after(&other, first_us + 1_000_000).await;
        assert_eq!(state_of_localhost(&other).await, (900, 1), "{flavour}");
        drop(sender);
        assert_eq!(waiting.await.unwrap(), "seven__");
        assert_eq!(until_held(&other, 0).await, 993, "{flavour}");
    }
}

/// A connection whose request is answered with a body that does not end, until the client hangs up.
async fn hang_up_while_streaming(
    server: SocketAddr,
    sender: &FrameSender,
    other: &Scope,
    free: u64,
) {
    let mut connection = Connection::open(server, VERSIONS[0]).await;
    let mut waiting = Box::pin(connection.get("/"));
    tokio::select! {
        response = &mut waiting => panic!("{response:?}"),
        left = until_held(other, 1) => assert!(left < free),
    }
    drop(waiting);
    drop(connection);
    let freed = async {
        // The server may notice only when it writes.
        while state_of_localhost(other).await.1 > 0 {
            sender.data(" ");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.unwrap();
    assert_eq!(state_of_localhost(other).await, (free, 0));
}

/// The places are held for an hour: only the release can free them in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_arrives_at_the_server_when_the_client_hangs_up() {
    for flavour in Flavour::ALL {
        let redis = OnRedis::start(flavour);
        let [own, other] = redis.scopes(PLACES);
        let (app, sender) = streaming(RateLimitLayer::new(own));
        hang_up_while_streaming(serve(app).await, &sender, &other, 2).await;
        let [own, other] = redis.scopes(LIMIT);
        let (app, sender) = streaming(hundred(&own).settle(|_| 0));
        hang_up_while_streaming(serve(app).await, &sender, &other, 1_000).await;
    }
}

/// The client hangs up while the server decides. The reservation is made all the same, and is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_is_released_on_the_server_when_its_request_was_dropped() {
    let handler = service_fn(|_: http::Request<Body>| async {
        panic!("not called");
        #[allow(unreachable_code)]
        Ok::<Response<Body>, std::convert::Infallible>(Response::new(Body::empty()))
    });
    let key = "ip=203.0.113.9";
    for flavour in Flavour::ALL {
        let redis = OnRedis::start(flavour);
        for (limit, free) in [(LIMIT, 1_000), (PLACES, 2)] {
            let [own, other] = redis.scopes(limit);
            let layer = match limit {
                PLACES => RateLimitLayer::new(own),
                _ => hundred(&own),
            };
            let before = redis.writes();
            redis.store.pause();
            let mut request = Box::pin(layer.layer(handler).oneshot(get("/")));
            assert!(poll_once(request.as_mut()).is_pending());
            until("the reservation is at the server", || redis.store.info("blocked_clients:") > 0)
                .await;
            drop(request);
            redis.store.resume();
            until("the reservation and its release are made", || redis.writes() == before + 2)
                .await;
            let state = other.state(key).await.unwrap();
            let left = other.peek(key).await.unwrap().remaining();
            assert_eq!((left, state.holds.len()), (free, 0), "{flavour}, {limit}");
        }
    }
}

/// A handler that sends an extension and drops the answer before it comes.
async fn extends_unseen(admission: Admission) -> String {
    let hold = admission.hold().unwrap();
    drop(hold.extend(50));
    hold.units().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_that_is_dropped_in_flight_counts_as_granted() {
    for flavour in Flavour::ALL {
        let redis = OnRedis::start(flavour);
        let [own, other] = redis.scopes(LIMIT);
        let layer = hundred(&own).with_decision();
        let app = Router::new().fallback(any(extends_unseen).layer(layer));
        let server = serve(app).await;
        let mut connection = Connection::open(server, VERSIONS[0]).await;
        assert_eq!(connection.get("/").await.body(), "150", "{flavour}");
        // The whole hold is charged, because its use is not known: with the units of the extension.
        let charged = async {
            while state_of_localhost(&other).await != (850, 0) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, charged).await.unwrap();
    }
}

/// The settlement is cut to the hold and one whole limit beyond it, also when it is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlement_of_an_impossible_cost_is_sent_again_and_cut() {
    let redis = OnRedis::start(Flavour::Redis);
    let [own, other] = redis.scopes("token-bucket capacity=1000 refill=1/h");
    let (app, sender) = streaming(hundred(&own).settle(|_| u64::MAX));
    let server = serve(app).await;
    let mut connection = Connection::open(server, VERSIONS[0]).await;
    let waiting = tokio::spawn(async move { connection.get("/").await.into_body() });
    assert_eq!(until_held(&other, 1).await, 900);
    redis.store.fail();
    drop(sender);
    assert_eq!(waiting.await.unwrap(), "");
    assert_eq!(state_of_localhost(&other).await, (900, 1));
    redis.store.recover(&redis.own).await;
    assert_eq!(until_held(&other, 0).await, 0);
    // 100 units of the hold and 1,000 beyond it drain at one an hour.
    let resets = other.peek("ip=127.0.0.1").await.unwrap().reset_after();
    let hours = resets.as_secs().div_ceil(3_600);
    assert_eq!(hours, 1_100);
}
