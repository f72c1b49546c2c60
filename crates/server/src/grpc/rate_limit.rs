//! Envoy's rate limit service: the rules decide what a proxy asks.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::rules::{Attributes, Descriptor, Ruling};
use tonic::{Request, Response, Status};

use crate::served::Served;

/// Envoy's rate limit service.
pub(super) struct RateLimit {
    served: Arc<Served>,
}

impl RateLimit {
    pub(super) fn new(served: Arc<Served>) -> RateLimit {
        RateLimit { served }
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let RateLimitRequest { domain, descriptors, .. } = request.into_inner();
        let asked: Vec<_> = descriptors.iter().map(asked).collect();
        let ruling = self.served.rules.check_each(&domain, &asked).await;
        let ruling = ruling.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let statuses = (0..descriptors.len()).map(|at| status(&ruling, at)).collect();
        let overall_code = code(ruling.is_allowed()).into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses, ..Default::default() }))
    }
}

fn asked(descriptor: &RateLimitDescriptor) -> Descriptor<'_> {
    let entries = descriptor.entries.iter();
    let attributes: Attributes<'_> =
        entries.map(|entry| (entry.key.as_str(), entry.value.as_str())).collect();
    Descriptor::new(attributes)
}

fn status(ruling: &Ruling, at: usize) -> DescriptorStatus {
    let mut own = ruling.rules().filter(|part| part.request() == at && !part.is_shadow());
    DescriptorStatus { code: code(own.all(|part| part.is_allowed())).into(), ..Default::default() }
}

fn code(is_allowed: bool) -> Code {
    if is_allowed { Code::Ok } else { Code::OverLimit }
}
