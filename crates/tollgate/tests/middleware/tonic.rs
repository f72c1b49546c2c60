//! gRPC calls from tonic's client to its server.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tonic::body::Body;
use ::tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use ::tonic::metadata::MetadataMap;
use ::tonic::server::NamedService;
use ::tonic::transport::server::{Router, TcpIncoming};
use ::tonic::transport::{Channel, Endpoint, Server};
use ::tonic::{Code, Request, Response, Status};
use bytes::{Buf, BufMut};
use tollgate::http::{Identity, Jwt, JwtKey};
use tollgate::tower::RateLimitLayer;
use tollgate::{OnFailure, Redis};
use tonic_types::StatusExt;
use tower::{Layer, Service, service_fn};

use crate::servers::listener;
use crate::support::{SECRET, at_midnight, ms, rules, scope, signed, token};

const HELLO: &str = "/test.Greeter/Hello";
const OTHER: &str = "/test.Other/Hello";

/// A codec whose messages are plain text.
#[derive(Clone, Copy, Default)]
struct Texts;

impl Codec for Texts {
    type Encode = String;
    type Decode = String;
    type Encoder = Texts;
    type Decoder = Texts;

    fn encoder(&mut self) -> Texts {
        Texts
    }

    fn decoder(&mut self) -> Texts {
        Texts
    }
}

impl Encoder for Texts {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Texts {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(String::from_utf8(bytes.into()).unwrap()))
    }
}

/// A service that answers every call with a greeting.
#[derive(Clone)]
struct Greeter;

/// The same service under another name.
#[derive(Clone)]
struct Other;

impl NamedService for Greeter {
    const NAME: &'static str = "test.Greeter";
}

impl NamedService for Other {
    const NAME: &'static str = "test.Other";
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let hello = service_fn(|name: Request<String>| async move {
            Ok::<_, Status>(Response::new(format!("hello {}", name.into_inner())))
        });
        Box::pin(async move { Ok(::tonic::server::Grpc::new(Texts).unary(hello, request).await) })
    }
}

impl Service<http::Request<Body>> for Other {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        Greeter.call(request)
    }
}

/// Starts a server with a limit on all calls.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let (listener, address) = listener().await;
    let server = Server::builder().layer(layer).add_service(Greeter).add_service(Other);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

async fn serve_routes(server: Router) -> SocketAddr {
    let (listener, address) = listener().await;
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

async fn connect(server: SocketAddr, own: [u8; 4]) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    endpoint.local_address(Some(IpAddr::from(own))).connect().await.unwrap()
}

async fn to(server: SocketAddr) -> Channel {
    connect(server, [127, 0, 0, 1]).await
}

async fn call(channel: &Channel, method: &'static str) -> Result<Response<String>, Status> {
    send(channel, method, Request::new("ada".to_owned())).await
}

async fn send(
    channel: &Channel,
    method: &'static str,
    request: Request<String>,
) -> Result<Response<String>, Status> {
    let mut client = ::tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    client.unary(request, http::uri::PathAndQuery::from_static(method), Texts).await
}

fn value_of<'m>(metadata: &'m MetadataMap, name: &str) -> Option<&'m str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

/// The limits that a refusal names, and its retry delay.
fn refusal(status: &Status) -> (Vec<String>, Option<Duration>) {
    let details = status.get_error_details();
    let violations = details.quota_failure().map(|it| it.violations.clone()).unwrap_or_default();
    let retry = details.retry_info().and_then(|info| info.retry_delay);
    (violations.into_iter().map(|violation| violation.subject).collect(), retry)
}

#[tokio::test]
async fn allowed_call_has_rate_limit_metadata() {
    let (_, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "token-bucket capacity=2 refill=1/7s");
    let channel = to(serve(RateLimitLayer::new(limit)).await).await;
    for (left, after) in [("1", "7"), ("0", "7")] {
        let response = call(&channel, HELLO).await.unwrap();
        let metadata = response.metadata();
        assert_eq!(value_of(metadata, "ratelimit-policy"), Some("\"free\";q=2;w=14"));
        assert_eq!(value_of(metadata, "ratelimit"), Some(&*format!("\"free\";r={left};t={after}")));
        assert_eq!(value_of(metadata, "x-ratelimit-remaining"), Some(left));
        assert_eq!(value_of(metadata, "retry-after"), None);
        assert_eq!(response.into_inner(), "hello ada");
    }
}

#[tokio::test]
async fn refused_call_names_the_limit_and_the_exact_wait() {
    let (clock, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "token-bucket capacity=2 refill=1/7s");
    let channel = to(serve(RateLimitLayer::new(limit)).await).await;
    for _ in 0..2 {
        call(&channel, HELLO).await.unwrap();
    }
    let mut left_us = 7_000_000;
    for (step_us, seconds) in [(0, "7"), (1_234_567, "6"), (5_765_432, "1")] {
        clock.advance(Duration::from_micros(step_us));
        left_us -= step_us;
        let status = call(&channel, HELLO).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), format!("`free` is spent; come back in {seconds} s"));
        let exactly = Some(Duration::from_micros(left_us));
        assert_eq!(refusal(&status), (vec!["free".to_owned()], exactly));
        assert_eq!(value_of(status.metadata(), "retry-after"), Some(seconds));
        assert_eq!(value_of(status.metadata(), "x-ratelimit-remaining"), Some("0"));
    }
    clock.advance(Duration::from_micros(left_us));
    call(&channel, HELLO).await.unwrap();
}

#[tokio::test]
async fn call_that_can_never_be_allowed_has_no_retry_delay() {
    let (_, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "token-bucket capacity=2 refill=1/s");
    let channel = to(serve(RateLimitLayer::new(limit).cost(|_| 3)).await).await;
    let status = call(&channel, HELLO).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(refusal(&status), (vec!["free".to_owned()], None));
    assert_eq!(value_of(status.metadata(), "retry-after"), None);
}

#[tokio::test]
async fn blocked_call_is_permission_denied_without_a_wait() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { free: fixed-window limit=3 window=1h }
rules:
  - { name: closed, domain: api, when: { path: /test.Greeter/* }, key: [ip], limit: block }
  - { name: every-call, domain: api, key: [ip], limit: free }
";
    let channel = to(serve(RateLimitLayer::rules(&rules(&limiter, yaml), "api")).await).await;
    let status = call(&channel, HELLO).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "`closed` blocks such requests");
    assert_eq!(refusal(&status), (vec![], None));
    for name in ["retry-after", "ratelimit", "x-ratelimit-remaining"] {
        assert_eq!(value_of(status.metadata(), name), None, "{name}");
    }
    call(&channel, OTHER).await.unwrap();
}

#[tokio::test]
async fn refused_call_names_all_refusing_rules_and_the_longest_wait() {
    let (_, limiter) = at_midnight();
    let yaml = "
limits: { slow: token-bucket capacity=1 refill=1/9s, quick: token-bucket capacity=1 refill=1/2s }
rules:
  - { name: every-call, domain: api, key: [ip], limit: quick }
  - { name: greetings, domain: api, when: { path: /test.Greeter/* }, key: [ip], limit: slow }
  - { name: candidate, domain: api, key: [ip], limit: slow, shadow: true }
";
    let layer = RateLimitLayer::rules(&rules(&limiter, yaml), "api");
    let channel = to(serve(layer).await).await;
    call(&channel, HELLO).await.unwrap();
    let status = call(&channel, HELLO).await.unwrap_err();
    let both = vec!["every-call".to_owned(), "greetings".to_owned()];
    assert_eq!(refusal(&status), (both, Some(ms(9_000))));
    let status = call(&channel, OTHER).await.unwrap_err();
    assert_eq!(refusal(&status), (vec!["every-call".to_owned()], Some(ms(2_000))));
}

#[tokio::test]
async fn single_service_can_have_its_own_limit() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=2 window=366d").unwrap();
    let limited = Server::builder().add_service(layer.layer(Greeter)).add_service(Other);
    let channel = to(serve_routes(limited).await).await;
    for _ in 0..2 {
        call(&channel, HELLO).await.unwrap();
    }
    assert_eq!(call(&channel, HELLO).await.unwrap_err().code(), Code::ResourceExhausted);
    let free = call(&channel, OTHER).await.unwrap();
    assert_eq!(value_of(free.metadata(), "ratelimit"), None);
}

#[tokio::test]
async fn client_is_identified_by_tonics_connection_address() {
    let layer = RateLimitLayer::per_ip("fixed-window limit=3 window=366d").unwrap();
    let server = serve(layer).await;
    for own in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let mut admitted = 0;
        for _ in 0..5 {
            // A new connection for each call.
            let channel = connect(server, own).await;
            admitted += usize::from(call(&channel, HELLO).await.is_ok());
        }
        assert_eq!(admitted, 3, "{own:?}");
    }
}

#[tokio::test]
async fn call_is_unavailable_when_the_store_fails_and_the_policy_is_closed() {
    // A store that accepts connections and never answers.
    let (_silent, store) = listener().await;
    let limiter = Redis::at(&format!("redis://{store}")).unwrap();
    let limiter = limiter.deadline(ms(20)).on_failure(OnFailure::Closed).build().unwrap();
    let limit = scope(&limiter, "free", "fixed-window limit=3 window=366d");
    let channel = to(serve(RateLimitLayer::new(limit.clone())).await).await;
    let status = call(&channel, HELLO).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unavailable, "the store failed, and this request is not decided without it")
    );
    assert_eq!(refusal(&status), (Vec::new(), Some(ms(1_000))));
    assert_eq!(value_of(status.metadata(), "retry-after"), Some("1"));
    assert_eq!(value_of(status.metadata(), "ratelimit"), None);
    let open = RateLimitLayer::new(limit.on_failure(OnFailure::Open));
    let channel = to(serve(open).await).await;
    let response = call(&channel, HELLO).await.unwrap();
    assert_eq!(value_of(response.metadata(), "ratelimit"), None);
}

#[tokio::test]
async fn call_with_a_bad_token_is_unauthenticated_when_bad_tokens_are_refused() {
    let (_, limiter) = at_midnight();
    let limit = scope(&limiter, "free", "fixed-window limit=1 window=366d");
    let jwt = Jwt::new([JwtKey::hs256(SECRET).unwrap()]).unwrap();
    let identity = Identity::new().jwt(jwt).refuse_invalid_tokens();
    let layer = RateLimitLayer::new(limit).identity(identity);
    let layer = layer.key(|request| request.claim("sub").map(|sub| sub.into_owned()));
    let channel = to(serve(layer).await).await;
    let bearing = |token: &str| {
        let mut request = Request::new("ada".to_owned());
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
        send(&channel, HELLO, request)
    };
    let claims = r#"{"sub":"ada","exp":4102444800}"#;
    let forged = signed(b"another secret, also 34 bytes long", claims);
    for _ in 0..3 {
        let status = bearing(&forged).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
        assert_eq!(refusal(&status), (Vec::new(), None));
        assert!(value_of(status.metadata(), "www-authenticate").is_some());
    }
    // The refused calls were charged neither to the user nor to the address.
    bearing(&token(r#""sub":"ada""#)).await.unwrap();
    call(&channel, HELLO).await.unwrap();
    assert_eq!(call(&channel, HELLO).await.unwrap_err().code(), Code::ResourceExhausted);
}
