//! `tollgate check`: asks a server.
//!
//! - `words`: what it decided, for people

mod words;

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
    remedy: "the request may be charged or not; see how the server does",
};

/// What the server decided; of its answer, what people are told.
#[derive(Debug, Deserialize)]
struct Decision {
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
    #[serde(default)]
    degraded: bool,
}

/// The answer to a check or a peek: one decision, or one for each limit that a rule may spend for the key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PeekAnswer {
    Limit(Decision),
    Rule { limits: Vec<UnderLimit> },
}

/// The decision under one of the limits that a rule may spend.
#[derive(Debug, Deserialize)]
struct UnderLimit {
    limit_name: String,
    /// `None` for `allow` and `block`.
    decision: Option<Decision>,
}

impl PeekAnswer {
    /// Whether the request is allowed, whichever of the limits it spends.
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
        return Err(refused(&server, args, &answer));
    }
    let answered: PeekAnswer =
        serde_json::from_str(&answer.body).map_err(|_| server.not_tollgate(answer.status))?;
    match args.format {
        Format::Human if args.peek => print(&format!("would be {answered}\n"))?,
        Format::Human => print(&format!("{answered}\n"))?,
        // In JSON a line ends between values alone.
        Format::Json => print(&format!("{}\n", answer.body.trim().replace(['\n', '\r'], " ")))?,
    }
    Ok(if answered.is_allowed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(server: &ServerClient, args: &CheckArgs) -> anyhow::Result<ServerResponse> {
    let body = json!({ "limit": args.limit, "key": args.key, "cost": args.cost });
    let request = server.post("/v1/check").header("content-type", "application/json");
    server.send(request.body(body.to_string()))
}

fn peek(server: &ServerClient, args: &CheckArgs) -> anyhow::Result<ServerResponse> {
    for part in [&args.limit, &args.key] {
        // They would be taken for steps up the path, encoded or not.
        anyhow::ensure!(
            part != "." && part != "..",
            "`{part}` cannot be looked at: no URL can name it; check it without --peek"
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
    let mut bearer = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())
        .context("--operator-token: a header cannot carry it; use letters, digits and dashes")?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

fn refused(server: &ServerClient, args: &CheckArgs, answer: &ServerResponse) -> anyhow::Error {
    let error = server.problem(answer);
    let is_for_operators =
        matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    match args.peek && is_for_operators {
        true => anyhow::anyhow!(
            "{error:#}\n  to look is for operators: give their token in TOLLGATE_OPERATOR_TOKEN, \
             or ask a server that has none from its own machine"
        ),
        false => error,
    }
}
