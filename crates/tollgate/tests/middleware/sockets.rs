//! The middleware over TCP, with HTTP/1.1 and HTTP/2.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use tokio::task::JoinSet;
use tollgate::tower::RateLimitLayer;
use tower_http::cors::CorsLayer;

use crate::servers::*;
use crate::support::*;

const PAGE: &str = "https://shop.example";

fn layer(limit: &str) -> RateLimitLayer {
    RateLimitLayer::per_ip(limit).unwrap()
}

/// Sends 10 requests on each of 20 connections. Returns how many were admitted.
async fn admitted_of_200(to: SocketAddr, version: Version) -> usize {
    let mut connections = JoinSet::new();
    for _ in 0..20 {
        connections.spawn(async move {
            let mut connection = Connection::open(to, version).await;
            let mut admitted = 0;
            for _ in 0..10 {
                let response = connection.get("/").await;
                match response.status() {
                    StatusCode::OK => assert_eq!(response.body(), "hello"),
                    status => assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
                }
                admitted += usize::from(response.status() == StatusCode::OK);
            }
            admitted
        });
    }
    connections.join_all().await.into_iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_share_one_limit_exactly() {
    for version in VERSIONS {
        let limit = "fixed-window limit=37 window=366d";
        for server in [serve(app(layer(limit))).await, serve_hyper(layer(limit)).await] {
            assert_eq!(admitted_of_200(server, version).await, 37, "{version:?}");
        }
    }
}

/// Sends 5 requests from each of two addresses. Returns how many of each were admitted.
async fn from_two(to: SocketAddr) -> [usize; 2] {
    let mut admitted = [0; 2];
    for (own, admitted) in [[127, 0, 0, 1], [127, 0, 0, 2]].into_iter().zip(&mut admitted) {
        let mut connection = Connection::from(IpAddr::from(own), to, Version::HTTP_11).await;
        for _ in 0..5 {
            *admitted += usize::from(connection.get("/").await.status() == StatusCode::OK);
        }
    }
    admitted
}

#[tokio::test]
async fn client_is_identified_by_its_connections_address() {
    let limit = "fixed-window limit=3 window=366d";
    assert_eq!(from_two(serve(app(layer(limit))).await).await, [3, 3]);
    assert_eq!(from_two(serve_hyper(layer(limit)).await).await, [3, 3]);
}

#[tokio::test]
async fn server_without_peer_addresses_has_one_quota_for_all() {
    let (listener, address) = listener().await;
    let app = app(layer("fixed-window limit=3 window=366d"));
    tokio::spawn(async move { axum::serve(listener, app).await });
    assert_eq!(from_two(address).await, [3, 0]);
}

#[tokio::test]
async fn connection_works_after_a_refused_head() {
    let layer = layer("fixed-window limit=2 window=366d");
    let own = layer.clone().skip(|request| request.path() == "/free");
    for server in [serve(app(own.clone())).await, serve_hyper(own).await] {
        let mut wire = Wire::open(server).await;
        // The requests to the first server spend the limit, which both servers share.
        let mut refused = 0;
        while refused < 2 {
            let head = wire.ask("HEAD", "/").await;
            refused += usize::from(head.starts_with("http/1.1 429"));
        }
        let head = wire.ask("HEAD", "/").await;
        assert!(head.starts_with("http/1.1 429"), "{head}");
        let length = in_head(&head, "content-length").unwrap().to_owned();
        assert!(in_head(&head, "retry-after").is_some(), "{head}");
        // If the server had sent a body, it would be read as the next response.
        let head = wire.ask("GET", "/").await;
        assert!(head.starts_with("http/1.1 429"), "{head}");
        assert_eq!(in_head(&head, "content-length"), Some(&*length));
        let problem = wire.body(length.parse().unwrap()).await;
        let problem: serde_json::Value = serde_json::from_str(&problem).unwrap();
        assert_eq!(problem["status"], 429);
        let head = wire.ask("GET", "/free").await;
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert_eq!(wire.body(5).await, "hello");
    }
}

#[tokio::test]
async fn refused_head_has_no_body_in_http_2() {
    let server = serve(app(layer("fixed-window limit=1 window=366d"))).await;
    let mut connection = Connection::open(server, Version::HTTP_2).await;
    let head = || Request::head("/").body(Full::default()).unwrap();
    assert_eq!(connection.send(head()).await.status(), StatusCode::OK);
    let refused = connection.send(head()).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let length = header(refused.headers(), "content-length").unwrap();
    assert_eq!(refused.body().len(), 0);
    let refused = connection.get("/").await;
    assert_eq!(refused.body().len().to_string(), length);
}

#[tokio::test]
async fn large_upload_is_refused_before_its_body_is_sent() {
    let server = serve(app(layer("fixed-window limit=1 window=366d"))).await;
    assert!(Wire::open(server).await.ask("GET", "/").await.starts_with("http/1.1 200"));
    for expect in ["", "expect: 100-continue\r\n"] {
        let mut wire = Wire::open(server).await;
        let length = 8 << 20;
        wire.write(&format!(
            "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{expect}\r\n"
        ))
        .await;
        let head = wire.head().await;
        assert!(head.starts_with("http/1.1 429"), "{head}");
        let length = in_head(&head, "content-length").unwrap().parse().unwrap();
        assert!(wire.body(length).await.contains("quota-exceeded"));
        // The announced body never comes, so the connection cannot be used again.
        assert!(wire.is_closed().await);
    }
}

#[tokio::test]
async fn http_2_connection_works_after_a_refused_upload() {
    let layer = layer("fixed-window limit=1 window=366d");
    let server = serve(app(layer.skip(|request| request.path() == "/free"))).await;
    let mut connection = Connection::open(server, Version::HTTP_2).await;
    assert_eq!(connection.get("/").await.status(), StatusCode::OK);
    for _ in 0..5 {
        let body = Full::new(Bytes::from(vec![b'x'; 4 << 20]));
        let refused = connection.send(Request::post("/").body(body).unwrap()).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.body().starts_with(b"{"));
        assert_eq!(connection.get("/free").await.status(), StatusCode::OK);
    }
}

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin([PAGE.parse().unwrap()])
        .allow_methods([Method::GET, Method::PUT])
        .max_age(ms(0))
}

fn preflight() -> Request<Full<Bytes>> {
    let request = Request::options("/").header("origin", PAGE);
    request.header("access-control-request-method", "PUT").body(Full::default()).unwrap()
}

fn from_page() -> Request<Full<Bytes>> {
    Request::get("/").header("origin", PAGE).body(Full::default()).unwrap()
}

fn may_be_read(response: &Response<Bytes>) -> bool {
    header(response.headers(), "access-control-allow-origin").as_deref() == Some(PAGE)
}

#[tokio::test]
async fn preflights_are_free_and_refusals_readable_with_cors_outside() {
    let limited = layer("fixed-window limit=2 window=366d");
    let server = serve(app(limited).layer(cors())).await;
    let mut connection = Connection::open(server, Version::HTTP_11).await;
    for _ in 0..5 {
        let response = connection.send(preflight()).await;
        assert_eq!((response.status(), may_be_read(&response)), (StatusCode::OK, true));
        assert_eq!(header(response.headers(), "ratelimit"), None);
    }
    for want in [200, 200, 429, 429] {
        let response = connection.send(from_page()).await;
        assert_eq!((response.status().as_u16(), may_be_read(&response)), (want, true));
        assert!(header(response.headers(), "ratelimit").is_some());
    }
}

#[tokio::test]
async fn preflights_have_their_own_quota_with_cors_inside() {
    let app = Router::new().fallback(any(|| async { "hello" })).layer(cors());
    let server = serve(app.layer(layer("fixed-window limit=2 window=366d"))).await;
    let mut connection = Connection::open(server, Version::HTTP_11).await;
    for request in [preflight, from_page] {
        for want in [200, 200, 429] {
            let response = connection.send(request()).await;
            assert_eq!((response.status().as_u16(), may_be_read(&response)), (want, want == 200));
        }
    }
}

/// How a client cancels a request.
#[derive(Clone, Copy, Debug)]
enum Cancel {
    Disconnect(Version),
    /// Resets the stream, with HTTP/2. The connection stays open.
    ResetStream,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_charge_is_refunded_when_the_client_disconnects() {
    for how in [
        Cancel::Disconnect(Version::HTTP_11),
        Cancel::Disconnect(Version::HTTP_2),
        Cancel::ResetStream,
    ] {
        let (_clock, limiter) = at_midnight();
        let even = scope(&limiter, "even", "leaky-bucket capacity=10 leak=1/h mode=shaping");
        let remaining = || even.peek("ip=127.0.0.1").now().unwrap().remaining();
        let hours = ms(24 * 3_600_000);
        let server = serve(app(RateLimitLayer::new(even.clone()).max_wait(hours))).await;
        let version = match how {
            Cancel::Disconnect(version) => version,
            Cancel::ResetStream => Version::HTTP_2,
        };
        let mut first = Connection::open(server, version).await;
        assert_eq!(first.get("/").await.status(), StatusCode::OK);
        for _ in 0..3 {
            let mut second = Connection::open(server, version).await;
            let mut waiting = Box::pin(second.get("/"));
            tokio::select! {
                response = &mut waiting => panic!("{how:?}: {response:?}"),
                () = until("the second is delayed", || remaining() == 8) => {}
            }
            assert_eq!(remaining(), 8, "{how:?}");
            drop(waiting);
            if let Cancel::Disconnect(_) = how {
                drop(second);
                until("the charge is refunded", || remaining() == 9).await;
            } else {
                until("the charge is refunded", || remaining() == 9).await;
                let mut third = Box::pin(second.get("/"));
                tokio::select! {
                    response = &mut third => panic!("{how:?}: {response:?}"),
                    () = until("the connection works", || remaining() == 8) => {}
                }
                drop(third);
                until("the charge is refunded", || remaining() == 9).await;
            }
        }
    }
}
