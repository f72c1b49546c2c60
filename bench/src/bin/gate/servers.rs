//! The operations of the server. The server runs in this process, on the same thread as its client, so that both run in
//! the same order in every run and take the same number of instructions. The number includes the client's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Result, bail, ensure};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tonic::transport::Channel;

const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/server/limits.yaml");

pub(crate) const BY_LIMIT: &str = r#"{"limit":"free","key":"user:42"}"#;
pub(crate) const BY_RULES: &str =
    r#"{"domain":"api","attributes":{"method":"GET","path":"/reports","api_key":"k_123"}}"#;

/// A server in this process, and the runtime that it shares with its client.
pub(crate) struct InProcessServer {
    runtime: Runtime,
    http: SocketAddr,
    grpc: SocketAddr,
}

impl InProcessServer {
    pub(crate) fn start() -> Result<InProcessServer> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (http, grpc) = (free_address()?, free_address()?);
        let (listen, grpc_listen) = (http.to_string(), grpc.to_string());
        let serving = runtime.spawn(async move {
            let flags = ["--config", LIMITS, "--listen", &listen, "--grpc-listen", &grpc_listen];
            tollgate_server::measured::serve(&flags).await
        });
        runtime.block_on(async {
            while TcpStream::connect(http).await.is_err() {
                if serving.is_finished() {
                    bail!("the server did not start: {:?}", serving.await);
                }
                yield_now().await;
            }
            Ok(())
        })?;
        Ok(InProcessServer { runtime, http, grpc })
    }

    /// Returns a function that posts `body` to `/v1/check` on each call, and returns whether the answer is as expected.
    pub(crate) fn check(&self, body: &str) -> Result<impl FnMut() -> Result<bool>> {
        let (http, length) = (self.http, body.len());
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: {http}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let mut stream = self.runtime.block_on(TcpStream::connect(http))?;
        stream.set_nodelay(true)?;
        let mut answer = [0; 4_096];
        Ok(move || {
            // The server writes an answer in one piece, so one call reads all of it.
            let read = self.runtime.block_on(async {
                stream.write_all(request.as_bytes()).await?;
                stream.read(&mut answer).await
            })?;
            let answer = answer.get(..read).unwrap_or_default();
            Ok(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"}"))
        })
    }

    /// Returns a function that calls `ShouldRateLimit`, as Envoy does, and returns whether the request is allowed.
    pub(crate) fn should_rate_limit(&self) -> Result<impl FnMut() -> Result<bool>> {
        let channel = Channel::from_shared(format!("http://{}", self.grpc))?;
        let channel = self.runtime.block_on(channel.connect())?;
        let mut client = RateLimitServiceClient::new(channel);
        let entry = Entry { key: "api_key".to_owned(), value: "k_123".to_owned() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let domain = "api".to_owned();
        let request = RateLimitRequest { domain, descriptors: vec![descriptor], hits_addend: 0 };
        Ok(move || {
            let answer = self.runtime.block_on(client.should_rate_limit(request.clone()))?;
            let answer = answer.into_inner();
            ensure!(answer.statuses.len() == 1, "unexpected answer {answer:?}");
            Ok(answer.overall_code() == Code::Ok)
        })
    }
}

/// Returns an address on which nothing listens at the moment.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
