//! A client that stays within its own limit, and waits as long as the server's answers say:
//! `cargo run -p tollgate --example reqwest_pacing --features axum,reqwest`

use std::time::Instant;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use tollgate::tower::PaceLayer;
use tollgate::{Limiter, Scope, Verdict};
use tower::{Layer, Service};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::memory();
    let server_limit = limiter.scope("theirs", "token-bucket capacity=4 refill=2/s")?;
    let app = Router::new().route("/", routing::get(move || async move { answer(&server_limit) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let own_limit = limiter.scope("ours", "token-bucket capacity=1 refill=10/s")?;
    // The server is on this machine, so a proxy from the environment is ignored.
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut paced = PaceLayer::new(own_limit).layer(client.clone());
    let started = Instant::now();
    for request in 1..=10 {
        let response = paced.call(client.get(&url).build()?).await?;
        let at_ms = started.elapsed().as_millis();
        println!("request {request:2} at {at_ms:4} ms: {}", response.status());
    }
    Ok(())
}

/// Answers a request. The server allows fewer requests than the client would send, and says when to retry.
fn answer(limit: &Scope) -> Response {
    match limit.check("everyone").now().map(|decision| decision.verdict()) {
        Ok(Verdict::Allowed { .. }) => "welcome".into_response(),
        Ok(Verdict::Denied { retry }) => match retry.after() {
            Some(wait) => {
                let retry_after = wait.as_micros().div_ceil(1_000_000).to_string();
                (StatusCode::TOO_MANY_REQUESTS, [("retry-after", retry_after)]).into_response()
            }
            None => StatusCode::TOO_MANY_REQUESTS.into_response(),
        },
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
