//! gRPC calls: the trailers end the body.

use ::tonic::Code;
use http::HeaderMap;
use tollgate::tower::{ActualCost, BodyMeter};

use super::*;
use crate::tonic::{HELLO, call, serve, to};

/// Charges a unit for each byte of the messages, if the call ended well.
#[derive(Default)]
struct MessageMeter {
    bytes: u64,
    is_ok: bool,
}

impl BodyMeter for MessageMeter {
    fn data(&mut self, chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.is_ok = trailers.get("grpc-status").is_some_and(|status| status == "0");
    }

    fn units(&mut self) -> Option<u64> {
        self.is_ok.then_some(self.bytes)
    }
}

#[tokio::test]
async fn call_is_settled_by_its_trailers() {
    let scope = in_memory();
    let layer = hundred(&scope).settle(|_| ActualCost::metered(MessageMeter::default()));
    let channel = to(serve(layer).await).await;
    let left = async || scope.peek("ip=127.0.0.1").await.unwrap().remaining();

    let response = call(&channel, HELLO).await.unwrap();
    let shown = response.metadata().get("x-ratelimit-remaining").unwrap();
    assert_eq!(shown.to_str().unwrap(), "900");
    // A prefix of five bytes, and `hello ada`.
    assert_eq!(left().await, 1_000 - 5 - 9);

    // A call that fails has its status in the headers, and no body.
    let status = call(&channel, "/test.None/Hello").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(left().await, 986 - 100);
}

#[tokio::test]
async fn refused_reservation_is_resource_exhausted() {
    let scope = in_memory();
    let layer = RateLimitLayer::new(scope.clone()).reserve(|_| 1_001);
    let channel = to(serve(layer).await).await;
    assert_eq!(call(&channel, HELLO).await.unwrap_err().code(), Code::ResourceExhausted);
}
