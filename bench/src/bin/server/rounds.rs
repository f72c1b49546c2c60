//! Runs the contenders in turn.

use std::ffi::OsStr;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;
use tollgate_bench::http_connection::HttpConnection;
use tollgate_bench::process::Process;
use tollgate_bench::turns::TurnLength;
use tollgate_bench::{show_progress, wrk};

use crate::contenders::ServerContender;
use crate::instructions;
use crate::request_kinds::{RequestKind, ServerRequest};

const SCRIPT: &str = include_str!("post.lua");

/// The measurements of one contender with one kind of request, round by round.
#[derive(Clone, Debug)]
pub(crate) struct ServerMeasurements {
    pub(crate) kind: RequestKind,
    pub(crate) contender: ServerContender,
    pub(crate) requests_per_s: Vec<f64>,
    pub(crate) p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    /// The server's CPU time for a request.
    pub(crate) cpu_us: Vec<f64>,
    /// The server's instructions for a request, without the kernel's.
    pub(crate) instructions: f64,
}

impl ServerMeasurements {
    pub(crate) fn new(kind: RequestKind, contender: ServerContender) -> ServerMeasurements {
        let [requests_per_s, p50_us, p99_us, cpu_us] = [const { Vec::new() }; 4];
        let instructions = 0.0;
        ServerMeasurements { kind, contender, requests_per_s, p50_us, p99_us, cpu_us, instructions }
    }
}

/// A server, and the requests that it gets.
struct MeasuredServer {
    server: Process,
    request: ServerRequest,
    measured: ServerMeasurements,
}

/// Measures all contenders with all kinds of requests.
pub(crate) fn measure(length: TurnLength) -> Result<Vec<ServerMeasurements>> {
    let mut script = NamedTempFile::new().context("cannot make a temporary file")?;
    script.write_all(SCRIPT.as_bytes())?;
    let mut line_up = line_up()?;
    let rounds = length.rounds;
    for round in 0..=rounds {
        for server in &mut line_up {
            let (kind, name) = (server.measured.kind.name(), server.measured.contender.name());
            show_progress(&format!("round {round} of {rounds}: {kind}, {name}"));
            let took = server.take_turn(script.path().as_os_str(), length.turn_s);
            let (result, cpu_us) = took.with_context(|| format!("{name}, {kind}"))?;
            if round > 0 {
                server.measured.requests_per_s.push(result.requests_per_s);
                server.measured.p50_us.push(result.p50_us);
                server.measured.p99_us.push(result.p99_us);
                server.measured.cpu_us.push(cpu_us);
            }
        }
    }
    Ok(line_up.into_iter().map(|server| server.measured).collect())
}

/// Starts a server for each kind and contender, so that no two kinds share keys.
fn line_up() -> Result<Vec<MeasuredServer>> {
    let mut line_up = Vec::new();
    for kind in RequestKind::ALL {
        let answer = answer_of_ours(kind)?;
        for contender in ServerContender::ALL {
            let Some(request) = kind.to(contender) else { continue };
            let (kind_name, name) = (kind.name(), contender.name());
            show_progress(&format!("instructions: {kind_name}, {name}"));
            let command = |port| {
                let mut command = contender.command(port, &answer)?;
                command.env("TOKIO_WORKER_THREADS", kind.threads());
                Ok(command)
            };
            let counted = instructions::per_request(command, request);
            let instructions = counted.with_context(|| format!("{name}, {kind_name}"))?;
            let measured =
                ServerMeasurements { instructions, ..ServerMeasurements::new(kind, contender) };
            line_up.push(MeasuredServer { server: Process::start(command)?, request, measured });
        }
    }
    Ok(line_up)
}

/// Returns the answer of our server, which the null server then sends.
fn answer_of_ours(kind: RequestKind) -> Result<String> {
    let request = kind.to(ServerContender::Ours).context("ours supports every kind")?;
    let server = Process::start(|port| ServerContender::Ours.command(port, ""))?;
    let mut connection = HttpConnection::connect(server.address())?;
    let mut post = || connection.post(request.path, &request.body_for(0)).context(kind.name());
    // Every limit allows the first two requests, so the third answer is the typical one.
    post()?;
    post()?;
    post()
}

impl MeasuredServer {
    /// Takes a turn. Returns wrk's result, and the server's CPU time for a request.
    fn take_turn(&self, script: &OsStr, seconds: u32) -> Result<(wrk::WrkResult, f64)> {
        let ServerRequest { path, body, keys } = self.request;
        let (address, keys) = (self.server.address(), keys.to_string());
        let args = ["-s".as_ref(), script, "--".as_ref(), body.as_ref(), keys.as_ref()];
        let before_us = self.server.cpu_us()?;
        let result = wrk::run_with(&format!("http://{address}{path}"), seconds, &args)?;
        let cpu_us = (self.server.cpu_us()? - before_us) / result.requests;
        let want = self.measured.kind.answer();
        let last = HttpConnection::connect(address)?.post(path, &self.request.body_for(0))?;
        ensure!(last.contains(want), "the answer {last} does not contain {want}");
        Ok((result, cpu_us))
    }
}
