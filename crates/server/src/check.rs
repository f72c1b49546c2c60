//! `tollgate check`: sends one check or peek to a server, and prints the decision.
//!
//! - `display`: a decision as a line of text

mod display;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde::Deserialize;
use serde_json::json;

use crate::cli::{CheckArgs, Format};
use crate::client::{ResponseTimeout, ServerClient, ServerResponse, segment};
use crate::secret::Secret;
use crate::{print, print_error};

const TIMEOUT: ResponseTimeout = ResponseTimeout {
    total: Duration::from_secs(10),
    remedy: "the request may or may not have been charged; look at the server's log",
};

/// A decision of the server: the fields of its JSON that are printed as text.
#[derive(Debug, Deserialize)]
struct ServerDecision {
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
    #[serde(default)]
    leased: bool,
    #[serde(default)]
    degraded: bool,
}

/// The answer to a check or a peek: one decision, or one for each limit that a rule may spend for the key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PeekAnswer {
    Limit(ServerDecision),
    Rule { limits: Vec<UnderLimit> },
}

/// The decision under one of the limits that a rule may spend.
#[derive(Debug, Deserialize)]
struct UnderLimit {
    limit_name: String,
    /// `None` for `allow` and `block`.
    decision: Option<ServerDecision>,
}

impl PeekAnswer {
    /// Returns whether every limit that the request may spend allows it.
    fn is_allowed(&self) -> bool {
        match self {
            PeekAnswer::Limit(decision) => decision.allowed,
            PeekAnswer::Rule { limits } => limits.iter().all(|own| match &own.decision {
                Some(decision) => decision.allowed,
                None => own.limit_name != "block",
            }),
        }
    }
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let server = ServerClient::new(&args.server.url, TIMEOUT)?;
    let answer = if args.peek { peek(&server, args)? } else { check(&server, args)? };
    if answer.status != StatusCode::OK {
        return Err(answer_error(&server, args, &answer));
    }
    let decisions: PeekAnswer =
        serde_json::from_str(&answer.body).map_err(|_| server.not_tollgate(answer.status))?;
    match args.format {
        Format::Human if args.peek => print(&format!("would be {decisions}\n"))?,
        Format::Human => print(&format!("{decisions}\n"))?,
        // OK because a JSON string cannot contain a raw line end: all of them are between values.
        Format::Json => print(&format!("{}\n", answer.body.trim().replace(['\n', '\r'], " ")))?,
    }
    Ok(if decisions.is_allowed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(server: &ServerClient, args: &CheckArgs) -> anyhow::Result<ServerResponse> {
    let body = json!({ "limit": args.limit, "key": args.key, "cost": args.cost });
    let request = server.post("/v1/check").header("content-type", "application/json");
    server.send(request.body(body.to_string()))
}

fn peek(server: &ServerClient, args: &CheckArgs) -> anyhow::Result<ServerResponse> {
    for part in [&args.limit, &args.key] {
        // HTTP clients and servers resolve `.` and `..` as steps in the path, even if they are percent-encoded.
        anyhow::ensure!(
            part != "." && part != "..",
            "`{part}` cannot be part of a URL, so --peek cannot look at it; check it without --peek"
        );
    }
    let (limit, key) = (segment(&args.limit), segment(&args.key));
    let request = server.get(&format!("/v1/limits/{limit}/keys/{key}?cost={}", args.cost));
    let Some(token) = &args.operator_token else {
        return server.send(request);
    };
    if server.is_unencrypted() {
        print_error("warning: the operators' token is sent unencrypted; use https");
    }
    server.send(request.header(AUTHORIZATION, bearer(token)?))
}

fn bearer(token: &Secret) -> anyhow::Result<HeaderValue> {
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat()).context(
        "--operator-token: not allowed in an HTTP header; use letters, digits and dashes",
    )?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// Returns the error for an answer with another status than 200.
fn answer_error(server: &ServerClient, args: &CheckArgs, answer: &ServerResponse) -> anyhow::Error {
    let error = server.problem(answer);
    let is_for_operators =
        matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    match args.peek && is_for_operators {
        true => anyhow::anyhow!(
            "{error:#}\n  --peek is for operators: give their token in TOLLGATE_OPERATOR_TOKEN, \
             or run it on the machine of a server that has no token"
        ),
        false => error,
    }
}
