//! Real clients and a real server, with a `Retry-After` of one second.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tollgate::tower::PaceLayer;
use tollgate::{Limit, Limiter, Scope};
use tower::{Layer, Service, ServiceExt};

/// Starts a server that answers the first request with 429 and `Retry-After: 1`.
async fn busy_once() -> SocketAddr {
    let count = Arc::new(AtomicUsize::new(0));
    let answer = move || {
        let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if is_first { refusal() } else { "welcome".into_response() } }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(answer));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn refusal() -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response()
}

fn plenty() -> Scope {
    let limit: Limit = "token-bucket capacity=100 refill=100/s".parse().unwrap();
    Limiter::memory().scope("test", limit).unwrap()
}

/// Asserts that a second has passed since the refusal.
fn assert_waited_a_second(since: Instant) {
    let waited = since.elapsed();
    assert!(waited >= Duration::from_millis(990), "{waited:?}");
}

#[tokio::test]
async fn reqwest_waits_for_retry_after() {
    let address = busy_once().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut paced = PaceLayer::new(plenty()).layer(client.clone());
    let request = client.get(format!("http://{address}/")).build().unwrap();
    let again = request.try_clone().unwrap();
    let refused = paced.ready().await.unwrap().call(request).await.unwrap();
    let since = Instant::now();
    assert_eq!(refused.status(), 429);
    let welcome = paced.oneshot(again).await.unwrap();
    assert_waited_a_second(since);
    assert_eq!(
        (welcome.status().as_u16(), welcome.text().await.unwrap().as_str()),
        (200, "welcome")
    );
}

#[tokio::test]
async fn hyper_waits_for_retry_after() {
    let address = busy_once().await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut paced = PaceLayer::new(plenty()).layer(client);
    let request = http::Request::get(format!("http://{address}/")).body(Empty::new()).unwrap();
    let refused = paced.call(request.clone()).await.unwrap();
    let since = Instant::now();
    assert_eq!(refused.status(), 429);
    let welcome = paced.oneshot(request).await.unwrap();
    assert_waited_a_second(since);
    assert_eq!(welcome.status(), 200);
}
