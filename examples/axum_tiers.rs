//! Limits anonymous clients by their address, customers by their token and plan, and logins separately:
//! `cargo run -p tollgate --features axum,jwt --example axum_tiers`, and `… -- --serve` to try it with curl

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use axum::routing::{Router, get, post};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tokio::net::TcpListener;
use tollgate::Limiter;
use tollgate::http::{Identity, Jwt, JwtKey};
use tollgate::rules::{Config, Rules};
use tollgate::tower::RateLimitLayer;

const RULES: &str = "
caller_attributes: [jwt.sub, jwt.plan] # this program verifies tokens itself
limits:
  anonymous: sliding-window-log limit=3 window=1m
  free: sliding-window-log limit=5 window=1m
  pro: sliding-window-log limit=100 window=1m
  login: sliding-window-log limit=2 window=15m
rules:
  - name: per-client
    domain: api
    when: { path: /api/** }
    key: [{ first_of: [jwt.sub, ip] }]
    limit: { by: jwt.plan, tiers: { free: free, pro: pro }, default: anonymous }
  - name: logins
    domain: api
    when: { method: POST, path: /login }
    key: [ip]
    limit: login
";

/// This secret is enough to make tokens, so keep your secret in a file, not in the program.
const SECRET: &[u8] = b"a secret for this example, and no other";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rules = Rules::new(&Limiter::memory(), &Config::parse("axum_tiers.yaml", RULES)?)?;
    let identity = Identity::new().jwt(Jwt::new([JwtKey::hs256(SECRET)?])?);
    let app = Router::new()
        .route("/api/report", get(|| async { "a report\n" }))
        .route("/login", post(|| async { "welcome\n" }))
        .layer(RateLimitLayer::rules(&rules, "api").identity(identity));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    // With connect info, so that the layer knows the addresses of clients.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, service).await });

    let (free, pro) = (token(SECRET, "ada", "free")?, token(SECRET, "grace", "pro")?);
    if std::env::args().any(|argument| argument == "--serve") {
        println!("curl -i http://{address}/api/report");
        println!("curl -i http://{address}/api/report -H 'Authorization: Bearer {free}'");
        println!("curl -i http://{address}/api/report -H 'Authorization: Bearer {pro}'");
        println!("curl -i -X POST http://{address}/login");
        return Ok(server.await??);
    }

    let forged = token(b"what a forger has instead of it, alas", "mallory", "pro")?;
    println!("{:<10} {:<16} status  remaining  retry-after", "who", "request");
    try_out(address, "anonymous", None, "GET /api/report", 4).await?;
    // The same quota as without a token, including the units that the address has already spent.
    try_out(address, "forger", Some(&forged), "GET /api/report", 1).await?;
    try_out(address, "ada, free", Some(&free), "GET /api/report", 6).await?;
    try_out(address, "grace, pro", Some(&pro), "GET /api/report", 6).await?;
    try_out(address, "anonymous", None, "POST /login", 3).await
}

/// Returns a token with the name of its owner and the plan that they pay for.
fn token(secret: &[u8], sub: &str, plan: &str) -> Result<String, Box<dyn Error>> {
    let expires = SystemTime::now() + Duration::from_secs(3_600);
    let claims =
        json!({ "sub": sub, "plan": plan, "exp": expires.duration_since(UNIX_EPOCH)?.as_secs() });
    Ok(encode(&Header::default(), &claims, &EncodingKey::from_secret(secret))?)
}

/// Sends a request `times` times, and prints the responses.
async fn try_out(
    address: SocketAddr,
    who: &str,
    token: Option<&str>,
    request: &str,
    times: usize,
) -> Result<(), Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let (method, path) = request.split_once(' ').unwrap_or(("GET", request));
    for _ in 0..times {
        let mut one = Request::builder().method(method).uri(format!("http://{address}{path}"));
        if let Some(token) = token {
            one = one.header("authorization", format!("Bearer {token}"));
        }
        let response = client.request(one.body(Body::empty())?).await?;
        let status = response.status().as_u16();
        let remaining = header(response.headers(), "x-ratelimit-remaining");
        let wait = header(response.headers(), "retry-after");
        println!("{who:<10} {request:<16} {status:<6}  {remaining:<9}  {wait}");
    }
    Ok(())
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-")
}
