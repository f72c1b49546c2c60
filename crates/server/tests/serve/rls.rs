//! Envoy's rate limit service, called by a test client.
//!
//! - `answers`: the responses; `attributes`: how rules see descriptors
//! - `hostile`: malformed and oversized requests; `outage`: decisions without the store
//! - `port`: reflection, metrics, traces, closing; `raw`: a client that can send anything

mod answers;
mod attributes;
mod hostile;
mod outage;
mod port;
mod raw;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value};
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::Channel;

use crate::grpc::run;
use crate::server::ServerProcess;

/// A server with the rules of a test.
pub(crate) struct RlsServer {
    pub(crate) server: ServerProcess,
    _file: TempDir,
}

impl RlsServer {
    pub(crate) fn start(rules: &str) -> RlsServer {
        RlsServer::start_with(rules, &[])
    }

    pub(crate) fn start_with(rules: &str, flags: &[&str]) -> RlsServer {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.yaml");
        fs::write(&path, rules).unwrap();
        let flags = [&["--config", path.to_str().unwrap()], flags].concat();
        RlsServer { server: ServerProcess::start(&flags), _file: directory }
    }

    /// Sends a request as Envoy would.
    pub(crate) fn ask(&self, request: RateLimitRequest) -> RateLimitResponse {
        self.try_ask(request).unwrap()
    }

    pub(crate) fn try_ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        run(async { client(&self.server).await.should_rate_limit(request).await })
            .map(|answer| answer.into_inner())
    }

    /// Sends descriptors of the domain `api`.
    pub(crate) fn ask_all(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.ask(request(descriptors))
    }
}

pub(crate) async fn client(server: &ServerProcess) -> RateLimitServiceClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    let endpoint = endpoint.timeout(Duration::from_secs(30));
    RateLimitServiceClient::new(endpoint.connect().await.unwrap())
}

/// Returns a request in the domain `api`.
pub(crate) fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "api".to_owned(), descriptors, hits_addend: 0 }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry =
        |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

pub(crate) fn costing(units: u64, entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: units }), ..descriptor(entries) }
}

pub(crate) fn limited(
    requests_per_unit: u32,
    unit: RateLimitUnit,
    entries: &[(&str, &str)],
) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
    RateLimitDescriptor { limit, ..descriptor(entries) }
}

/// Returns the code of each descriptor.
pub(crate) fn codes(answer: &RateLimitResponse) -> Vec<Code> {
    answer.statuses.iter().map(DescriptorStatus::code).collect()
}

/// Returns the remaining quota of each descriptor.
pub(crate) fn remaining(answer: &RateLimitResponse) -> Vec<u32> {
    answer.statuses.iter().map(|status| status.limit_remaining).collect()
}

pub(crate) fn headers(answer: &RateLimitResponse) -> BTreeMap<&str, &str> {
    let headers = answer.response_headers_to_add.iter();
    headers.map(|header| (&*header.key, &*header.value)).collect()
}

/// Returns the metadata as JSON.
pub(crate) fn metadata(answer: &RateLimitResponse) -> serde_json::Value {
    answer.dynamic_metadata.as_ref().map_or(serde_json::Value::Null, object)
}

fn object(of: &Struct) -> serde_json::Value {
    let fields = of.fields.iter().map(|(name, value)| (name.clone(), json(value)));
    serde_json::Value::Object(fields.collect())
}

fn json(value: &Value) -> serde_json::Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::NumberValue(number) => (*number).into(),
        Kind::StringValue(text) => text.as_str().into(),
        Kind::BoolValue(flag) => (*flag).into(),
        Kind::StructValue(own) => object(own),
        Kind::ListValue(list) => list.values.iter().map(json).collect(),
    }
}
