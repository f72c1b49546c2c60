//! A production service, with its limits in a file and its counts on Redis:
//! `cargo run -p tollgate --features axum,redis,watch --example axum_redis -- redis://127.0.0.1:6379 examples/axum_redis.yaml`
//!
//! Try `curl -i`, change the file or send SIGHUP, and end the process with SIGTERM. `DEADLINE_MS` sets how long a check may
//! wait for Redis.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use axum::routing::{Router, get, post};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Redis;
use tollgate::rules::RulesFile;
use tollgate::tower::{LayerDecision, RateLimitLayer};

/// The numbers of decided requests.
#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    refused: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let path = arguments.next().unwrap_or_else(|| "examples/axum_redis.yaml".to_owned());

    // A check that Redis does not answer in this time is decided by the failure policy.
    let deadline_ms = std::env::var("DEADLINE_MS").map_or(Ok(10), |text| text.parse())?;

    // All processes with this Redis and this prefix share the limits. While Redis fails, each of them decides on its share
    // of each limit: Redis has counted the processes.
    let limiter = Redis::at(&url)?
        .prefix("example:")?
        .deadline(Duration::from_millis(deadline_ms))
        .build()?;

    // The file is read again when it changes, and on SIGHUP, until `following` is dropped.
    let file = RulesFile::open(&limiter, &path)?;
    let following = file.follow()?.and_on_hangup()?;

    let counts = Arc::new(Counts::default());
    let counted = Arc::clone(&counts);
    let limit = RateLimitLayer::rules(file.rules(), "api")
        .skip(|request| request.path() == "/health")
        .on_decision(move |request, decided| match decided {
            LayerDecision::Allowed(_) => {
                counted.allowed.fetch_add(1, Ordering::Relaxed);
            }
            LayerDecision::Refused(refusal) => {
                counted.refused.fetch_add(1, Ordering::Relaxed);
                println!("refused {}: {}", request.path(), refusal.detail());
            }
        })
        // Requests that this service failed to answer are not charged to the client.
        .refund_if(|response| response.status().is_server_error());

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/broken", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .route("/login", post(|| async { "welcome\n" }))
        .route("/health", get(|| async { "ok\n" }))
        .layer(limit);

    // Before the address is printed, so that SIGTERM is graceful as soon as a client knows the address.
    let mut terminated = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    // With connect info, so that the layer knows the addresses of clients.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    // Requests in flight are answered before the process ends.
    axum::serve(listener, service)
        .with_graceful_shutdown(async move { _ = terminated.recv().await })
        .await?;

    drop(following);
    let [allowed, refused] =
        [&counts.allowed, &counts.refused].map(|count| count.load(Ordering::Relaxed));
    println!("ended: {allowed} allowed, {refused} refused");
    Ok(())
}
