//! A gateway to an LLM: reserves the tokens that a request may use, and settles the `usage` at the end of its stream:
//! `cargo run -p tollgate --features axum --example axum_llm`

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Json, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{Router, post};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tollgate::Limiter;
use tollgate::tower::{ActualCost, RateLimitLayer};

/// The largest request.
const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The last event with the usage is in the last 4 KiB of a stream.
const TAIL_BYTES: usize = 4_096;

#[derive(Deserialize, Serialize)]
struct Completion {
    prompt: String,
    max_tokens: u64,
}

/// The most tokens that a request can use.
#[derive(Clone, Copy)]
struct MostTokens(u64);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let tokens = Limiter::memory().scope("tokens", "sliding-window-log limit=10000 window=1h")?;
    let layer = RateLimitLayer::new(tokens)
        .reserve(|request| request.extensions().get().map_or(0, |&MostTokens(most)| most))
        .settle(|response| match response.status() {
            StatusCode::OK => ActualCost::from_tail(TAIL_BYTES, total_tokens),
            _ => ActualCost::from(0), // the model has refused the request
        });
    let model = Arc::new(Semaphore::new(0));
    let app = Router::new()
        .route("/v1/completions", post(complete).layer(layer))
        .layer(from_fn(read_max_tokens)) // outside of the limit
        .with_state(Arc::clone(&model));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/completions", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    // 3,996 tokens and the prompt are held while the answer streams. It uses 1,204, and the rest is free again.
    let first = send(&url, 3_996, "tell me a story").await?;
    println!("one stream: {}", left(first.headers()));
    model.add_permits(120);
    println!("  it used {}", used(first).await?);

    let (second, third) =
        (send(&url, 3_996, "one for me").await?, send(&url, 3_996, "and me").await?);
    println!("two streams: {}", left(third.headers()));
    let refused = send(&url, 3_996, "and one for us").await?;
    println!("a third: {}, {}", refused.status(), left(refused.headers()));
    model.add_permits(240);
    println!("  they used {} and {}", used(second).await?, used(third).await?);

    // When a client hangs up, the usage of its stream is not known: all that it has reserved is charged.
    let fourth = send(&url, 1_997, "never mind it").await?;
    println!("a stream that is not read to its end: {}", left(fourth.headers()));
    drop(fourth);
    let fifth = send(&url, 100, "").await?;
    println!("a request that the model refuses: {}", fifth.status());
    let sixth = send(&url, 97, "a short one").await?;
    println!("the last stream: {}", left(sixth.headers()));
    Ok(())
}

/// Reads the most tokens that a request can use from its body, for the limit.
async fn read_max_tokens(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let body =
        to_bytes(body, MAX_REQUEST_BYTES).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let request: Completion = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let most = prompt_tokens(&request).saturating_add(request.max_tokens);
    head.extensions.insert(MostTokens(most));
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Returns the `usage` of the last event that has one. Events are lines `data: {…}`, and the last is `data: [DONE]`.
fn total_tokens(tail: &[u8]) -> Option<u64> {
    let events = tail.rsplit(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    let mut usages = events.filter_map(|event| {
        serde_json::from_slice::<Value>(event).ok()?["usage"]["total_tokens"].as_u64()
    });
    usages.next()
}

/// Stands for the model: it writes 1,200 tokens, or `max_tokens` if that is less, 10 of them for each permit.
async fn complete(
    State(model): State<Arc<Semaphore>>,
    Json(request): Json<Completion>,
) -> Response {
    if request.prompt.is_empty() {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    let (prompt, completion) = (prompt_tokens(&request), request.max_tokens.min(1_200));
    let chunks = stream::iter((0..completion).step_by(10)).then(move |_| {
        let model = Arc::clone(&model);
        async move {
            if let Ok(permit) = model.acquire().await {
                permit.forget();
            }
            json!({ "choices": [{ "delta": { "content": "ten words ".repeat(5) } }] }).to_string()
        }
    });
    let usage = json!({
        "choices": [],
        "usage": { "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion },
    });
    let end = stream::iter([usage.to_string(), "[DONE]".to_owned()]);
    let events = chunks.chain(end).map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    Sse::new(events).into_response()
}

fn prompt_tokens(request: &Completion) -> u64 {
    request.prompt.split_whitespace().count() as u64
}

/// Sends a request. Returns the response, whose body has not been read.
async fn send(
    url: &str,
    max_tokens: u64,
    prompt: &str,
) -> Result<Response<hyper::body::Incoming>, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Completion { prompt: prompt.to_owned(), max_tokens };
    let request = Request::post(url)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_string(&request)?))?;
    Ok(client.request(request).await?)
}

/// Reads a stream to its end. Returns the tokens that it says it has used.
async fn used(response: Response<hyper::body::Incoming>) -> Result<u64, Box<dyn Error>> {
    let stream = response.into_body().collect().await?.to_bytes();
    total_tokens(&stream).ok_or_else(|| "a stream without usage".into())
}

fn left(headers: &HeaderMap) -> String {
    let left = headers.get("x-ratelimit-remaining").and_then(|value| value.to_str().ok());
    format!("{} tokens left", left.unwrap_or("?"))
}
