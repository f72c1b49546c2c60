//! A service that decides nothing, as tonic makes one.

use std::net::Ipv4Addr;

use anyhow::Result;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::Builder;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

struct Null;

#[tonic::async_trait]
impl RateLimitService for Null {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let statuses = vec![DescriptorStatus::default()];
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..Default::default() }))
    }
}

/// Reads each message, and answers with the same.
pub(crate) fn serve(port: u16) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let server = Server::builder().add_service(RateLimitServiceServer::new(Null));
    Ok(runtime.block_on(server.serve((Ipv4Addr::LOCALHOST, port).into()))?)
}
