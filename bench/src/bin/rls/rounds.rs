//! Runs the contenders in turn.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use prost::Message;
use tempfile::NamedTempFile;
use tokio::runtime::Builder;
use tollgate_bench::process::Process;
use tollgate_bench::turns::TurnLength;
use tollgate_bench::{h2load, show_progress};

use crate::contenders::RlsContender;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The measurements of one contender, round by round.
#[derive(Clone, Debug)]
pub(crate) struct RlsMeasurements {
    pub(crate) contender: RlsContender,
    pub(crate) requests_per_s: Vec<f64>,
    pub(crate) mean_us: Vec<f64>,
    /// The server's CPU time for a request.
    pub(crate) cpu_us: Vec<f64>,
}

impl RlsMeasurements {
    pub(crate) fn new(contender: RlsContender) -> RlsMeasurements {
        let [requests_per_s, mean_us, cpu_us] = [const { Vec::new() }; 3];
        RlsMeasurements { contender, requests_per_s, mean_us, cpu_us }
    }
}

/// Measures all contenders.
pub(crate) fn measure(length: TurnLength) -> Result<Vec<RlsMeasurements>> {
    let mut body = NamedTempFile::new().context("cannot make a temporary file")?;
    body.write_all(&framed(&rate_limit_request().encode_to_vec()))?;
    let mut line_up = Vec::new();
    for contender in RlsContender::ALL {
        let server = Process::start(|port| contender.command(port))?;
        line_up.push((server, RlsMeasurements::new(contender)));
    }
    for round in 0..=length.rounds {
        for (server, measured) in &mut line_up {
            let name = measured.contender.name();
            show_progress(&format!("round {round} of {}: {name}", length.rounds));
            let took = take_turn(server, body.path(), length.turn_s);
            let (result, cpu_us) = took.with_context(|| name.to_owned())?;
            if round > 0 {
                measured.requests_per_s.push(result.requests_per_s);
                measured.mean_us.push(result.mean_us);
                measured.cpu_us.push(cpu_us);
            }
        }
    }
    Ok(line_up.into_iter().map(|(_, measured)| measured).collect())
}

/// Takes a turn. Returns h2load's result, and the server's CPU time for a request.
fn take_turn(server: &Process, body: &Path, seconds: u32) -> Result<(h2load::H2loadResult, f64)> {
    let before_us = server.cpu_us()?;
    let result = h2load::post(&format!("http://{}{PATH}", server.address()), body, seconds)?;
    let cpu_us = (server.cpu_us()? - before_us) / result.requests;
    check(server.address())?;
    Ok((result, cpu_us))
}

/// Checks the service's answer once with a gRPC client, because h2load does not read it.
fn check(address: SocketAddr) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        let mut client = RateLimitServiceClient::connect(format!("http://{address}")).await?;
        anyhow::Ok(client.should_rate_limit(rate_limit_request()).await?.into_inner())
    })?;
    ensure!(
        answer.overall_code() == Code::Ok && answer.statuses.len() == 1,
        "unexpected answer {answer:?}"
    );
    Ok(())
}

/// Returns a request with one descriptor of one entry.
fn rate_limit_request() -> RateLimitRequest {
    let entry = Entry { key: "user".to_owned(), value: "42".to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    RateLimitRequest { domain: "api".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Returns the body of a gRPC request with this message.
fn framed(message: &[u8]) -> Vec<u8> {
    // OK because the message is short.
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}
