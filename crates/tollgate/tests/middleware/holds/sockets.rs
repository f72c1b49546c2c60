//! Clients that hang up, and connections that are upgraded, on real servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::Request;
use http::{Version, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tollgate::tower::{ActualCost, Admission};

use super::*;
use crate::servers::*;

/// Returns the units that remain for clients of this machine, and how many holds they have.
pub(super) async fn state_of_localhost(scope: &Scope) -> (u64, usize) {
    let key = "ip=127.0.0.1";
    let state = scope.state(key).await.unwrap();
    (scope.peek(key).await.unwrap().remaining(), state.holds.iter().count())
}

/// Waits until clients of this machine have this number of holds. Returns the units that remain.
pub(super) async fn until_held(scope: &Scope, wanted: usize) -> u64 {
    let held = async {
        loop {
            match state_of_localhost(scope).await {
                (left, held) if held == wanted => return left,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_ends_when_a_client_hangs_up_before_the_response() {
    for version in VERSIONS {
        let scope = in_memory();
        let handler = || std::future::pending::<StatusCode>();
        let server = serve(Router::new().fallback(any(handler).layer(hundred(&scope)))).await;
        let mut connection = Connection::open(server, version).await;
        let mut waiting = Box::pin(connection.get("/"));
        tokio::select! {
            response = &mut waiting => panic!("{version:?}: {response:?}"),
            left = until_held(&scope, 1) => assert_eq!(left, 900),
        }
        drop(waiting);
        drop(connection);
        assert_eq!(until_held(&scope, 0).await, 900, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_ends_when_a_client_hangs_up_during_the_body() {
    for version in VERSIONS {
        let scope = in_memory();
        let counted = |body: &[u8]| Some(body.len() as u64);
        let layer = hundred(&scope).settle(move |_| ActualCost::from_tail(64, counted));
        let (app, sender) = streaming(layer);
        let server = serve(app).await;
        let mut connection = Connection::open(server, version).await;
        sender.data("seven__");
        let mut waiting = Box::pin(connection.get("/"));
        tokio::select! {
            response = &mut waiting => panic!("{version:?}: {response:?}"),
            left = until_held(&scope, 1) => assert_eq!(left, 900),
        }
        drop(waiting);
        drop(connection);
        // The server may notice only when it writes.
        let left = loop {
            sender.data("");
            if let (left, 0) = state_of_localhost(&scope).await {
                break left;
            }
            tokio::task::yield_now().await;
        };
        assert!([1_000, 993].contains(&left), "{version:?}: {left}");
    }
}

/// Each body ends in another way: with a length, in chunks, without a body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_ends_with_each_response_of_a_connection() {
    for version in VERSIONS {
        let scope = in_memory();
        let answer = |request: Request| async move {
            match request.uri().path() {
                "/length" => Body::from("hello"),
                "/chunks" => {
                    let (sender, body) = sent_body();
                    sender.data("hel");
                    sender.data("lo");
                    Body::new(body)
                }
                _ => Body::empty(),
            }
        };
        let layer = hundred(&scope).settle(|_| 10);
        let server = serve(Router::new().fallback(any(answer).layer(layer))).await;
        let mut connection = Connection::open(server, version).await;
        for (path, body, want) in
            [("/length", "hello", 990), ("/chunks", "hello", 980), ("/", "", 970)]
        {
            assert_eq!(connection.get(path).await.body(), body, "{version:?}");
            assert_eq!(until_held(&scope, 0).await, want, "{version:?} {path}");
        }
        let head = Request::head("/chunks").body(Full::default()).unwrap();
        assert_eq!(connection.send(head).await.body(), "");
        assert_eq!(until_held(&scope, 0).await, 960, "{version:?} HEAD");
    }
}

/// An application that echoes one byte on an upgraded connection, and keeps it open until `close`.
fn upgrading(layer: RateLimitLayer, keeps: bool, close: &Arc<Notify>) -> Router {
    let close = Arc::clone(close);
    let answer = move |admission: Admission, mut request: Request| {
        let hold = admission.hold().filter(|_| keeps);
        let close = Arc::clone(&close);
        let upgrade = request.extensions_mut().remove::<OnUpgrade>().unwrap();
        tokio::spawn(async move {
            let _hold = hold;
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let byte = stream.read_u8().await.unwrap();
            stream.write_u8(byte).await.unwrap();
            close.notified().await;
        });
        async {
            let head = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "echo")];
            (StatusCode::SWITCHING_PROTOCOLS, head)
        }
    };
    Router::new().fallback(any(answer).layer(layer.with_decision()))
}

/// Upgrades a connection, and sends a byte over it.
async fn upgraded(server: SocketAddr) -> TokioIo<hyper::upgrade::Upgraded> {
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let request = Request::get("/").header("host", "a").header("connection", "upgrade");
    let request = request.header("upgrade", "echo").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(shown(&response).as_deref(), Some("900"));
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_u8(7).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), 7);
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_connection_keeps_the_hold_of_its_handle() {
    let (scope, close) = (in_memory(), Arc::new(Notify::new()));
    let server = serve(upgrading(hundred(&scope), true, &close)).await;
    let stream = upgraded(server).await;
    assert_eq!(state_of_localhost(&scope).await, (900, 1));
    close.notify_one();
    assert_eq!(until_held(&scope, 0).await, 900);
    drop(stream);
}

/// Without a handle nothing says when the connection ends: the hold is not renewed, and expires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_connection_without_a_handle_holds_until_the_expiry() {
    let (clock, limiter) = at_midnight();
    let (scope, close) = (tokens(&limiter), Arc::new(Notify::new()));
    let server = serve(upgrading(hundred(&scope), false, &close)).await;
    let _stream = upgraded(server).await;
    assert_eq!(state_of_localhost(&scope).await, (900, 1));
    clock.advance(Duration::from_secs(60));
    let spent = scope.check("ip=127.0.0.1").await.unwrap();
    assert!(spent.is_allowed());
    // Charged in full at its expiry.
    assert_eq!(state_of_localhost(&scope).await, (899, 0));
    close.notify_one();
}

/// The same for a tunnel, which a successful response to CONNECT starts; a refused CONNECT is a response like any other.
#[tokio::test]
async fn tunnel_is_an_upgrade() {
    use tower::{Layer, ServiceExt, service_fn};
    for (status, held_after) in [(StatusCode::OK, 1), (StatusCode::BAD_GATEWAY, 0)] {
        let scope = in_memory();
        let service = service_fn(move |_: Request| async move {
            let mut response = Response::new(Body::from("ignored"));
            *response.status_mut() = status;
            Ok::<_, Infallible>(response)
        });
        let connect = request("CONNECT", "a:1", "203.0.113.9");
        let response = hundred(&scope).layer(service).oneshot(connect).await.unwrap();
        drop(response.into_body().collect().await);
        assert_eq!((left(&scope), held(&scope)), (900, held_after), "{status}");
    }
    // Units that the head of the response states are settled at once.
    let scope = in_memory();
    let service = service_fn(|_: Request| async {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        Ok::<_, Infallible>(response)
    });
    hundred(&scope).settle(|_| 30).layer(service).oneshot(get("/")).await.unwrap();
    assert_eq!((left(&scope), held(&scope)), (970, 0));
}

/// HTTP/2 resets the stream of a request, and the connection stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_ends_when_a_client_resets_its_stream() {
    let scope = in_memory();
    let answer = |request: Request| async move {
        if request.uri().path() == "/wait" {
            std::future::pending::<()>().await;
        }
    };
    let server = serve(Router::new().fallback(any(answer).layer(hundred(&scope)))).await;
    let mut connection = Connection::open(server, Version::HTTP_2).await;
    let mut waiting = Box::pin(connection.get("/wait"));
    tokio::select! {
        response = &mut waiting => panic!("{response:?}"),
        left = until_held(&scope, 1) => assert_eq!(left, 900),
    }
    drop(waiting);
    assert_eq!(until_held(&scope, 0).await, 900);
    assert_eq!(connection.get("/").await.status(), StatusCode::OK);
    assert_eq!(until_held(&scope, 0).await, 800);
}
