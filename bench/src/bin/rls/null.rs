//! A rate limit service made with tonic that decides nothing.

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

/// The service.
struct NullService;

#[tonic::async_trait]
impl RateLimitService for NullService {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let statuses = vec![DescriptorStatus::default()];
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..Default::default() }))
    }
}

/// Serves on this port: reads each message, and always sends the same answer.
pub(crate) fn serve(port: u16) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let server = Server::builder().add_service(RateLimitServiceServer::new(NullService));
    Ok(runtime.block_on(server.serve((Ipv4Addr::LOCALHOST, port).into()))?)
}
