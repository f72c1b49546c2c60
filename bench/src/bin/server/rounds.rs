//! The turns of the contenders.

use std::ffi::OsStr;
use std::io::Write;

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;
use tollgate_bench::client::Client;
use tollgate_bench::process::Process;
use tollgate_bench::turns::Length;
use tollgate_bench::{show_progress, wrk};

use crate::contenders::Contender;
use crate::instructions;
use crate::questions::{Question, ServerRequest};

const SCRIPT: &str = include_str!("post.lua");

/// The measurements of one contender with one question, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) question: Question,
    pub(crate) contender: Contender,
    pub(crate) requests_per_s: Vec<f64>,
    pub(crate) p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    /// The server's CPU time for a request.
    pub(crate) cpu_us: Vec<f64>,
    /// The server's instructions for a request, without the kernel's.
    pub(crate) instructions: f64,
}

impl Measured {
    pub(crate) fn new(question: Question, contender: Contender) -> Measured {
        let [requests_per_s, p50_us, p99_us, cpu_us] = [const { Vec::new() }; 4];
        let instructions = 0.0;
        Measured { question, contender, requests_per_s, p50_us, p99_us, cpu_us, instructions }
    }
}

/// A server with the one question that it answers.
struct Turn {
    server: Process,
    asked: ServerRequest,
    measured: Measured,
}

pub(crate) fn measure(length: Length) -> Result<Vec<Measured>> {
    let mut script = NamedTempFile::new().context("cannot make a temporary file")?;
    script.write_all(SCRIPT.as_bytes())?;
    let mut line_up = line_up()?;
    let rounds = length.rounds;
    for round in 0..=rounds {
        for turn in &mut line_up {
            let (question, name) = (turn.measured.question.name(), turn.measured.contender.name());
            show_progress(&format!("round {round} of {rounds}: {question}, {name}"));
            let took = turn.take(script.path().as_os_str(), length.turn_s);
            let (counted, cpu_us) = took.with_context(|| format!("{name}, {question}"))?;
            if round > 0 {
                turn.measured.requests_per_s.push(counted.requests_per_s);
                turn.measured.p50_us.push(counted.p50_us);
                turn.measured.p99_us.push(counted.p99_us);
                turn.measured.cpu_us.push(cpu_us);
            }
        }
    }
    Ok(line_up.into_iter().map(|turn| turn.measured).collect())
}

/// Starts a server for each question and contender, so that no keys are shared.
fn line_up() -> Result<Vec<Turn>> {
    let mut line_up = Vec::new();
    for question in Question::ALL {
        let answer = answer_of_ours(question)?;
        for contender in Contender::ALL {
            let Some(asked) = question.to(contender) else { continue };
            let (asks, name) = (question.name(), contender.name());
            show_progress(&format!("instructions: {asks}, {name}"));
            let command = |port| {
                let mut command = contender.command(port, &answer)?;
                command.env("TOKIO_WORKER_THREADS", question.threads());
                Ok(command)
            };
            let counted = instructions::per_request(command, asked);
            let instructions = counted.with_context(|| format!("{name}, {asks}"))?;
            let measured = Measured { instructions, ..Measured::new(question, contender) };
            line_up.push(Turn { server: Process::start(command)?, asked, measured });
        }
    }
    Ok(line_up)
}

/// Returns the answer that the null server gives.
fn answer_of_ours(question: Question) -> Result<String> {
    let asked = question.to(Contender::Ours).context("ours answers everything")?;
    let server = Process::start(|port| Contender::Ours.command(port, ""))?;
    let mut client = Client::connect(server.address())?;
    let mut post = || client.post(asked.path, &asked.body_for(0)).context(question.name());
    // The first two requests are allowed, whatever the limit.
    post()?;
    post()?;
    post()
}

impl Turn {
    /// Takes the turn. Returns wrk's result, and the CPU time of a request.
    fn take(&self, script: &OsStr, seconds: u32) -> Result<(wrk::Counted, f64)> {
        let ServerRequest { path, body, keys } = self.asked;
        let (address, keys) = (self.server.address(), keys.to_string());
        let args = ["-s".as_ref(), script, "--".as_ref(), body.as_ref(), keys.as_ref()];
        let before_us = self.server.cpu_us()?;
        let counted = wrk::ask_by(&format!("http://{address}{path}"), seconds, &args)?;
        let cpu_us = (self.server.cpu_us()? - before_us) / counted.requests;
        let want = self.measured.question.answer();
        let last = Client::connect(address)?.post(path, &self.asked.body_for(0))?;
        ensure!(last.contains(want), "it says {last}, not {want}");
        Ok((counted, cpu_us))
    }
}
