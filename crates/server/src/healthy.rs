//! `tollgate healthy`: says whether a server answers.

use std::process::ExitCode;
use std::time::Duration;

use reqwest::StatusCode;

use crate::cli::HealthyArgs;
use crate::client::{ResponseTimeout, ServerClient};
use crate::print_error;

/// Less than the 5 s that the image's HEALTHCHECK allows, so that the reason is printed before the engine gives up.
const TIMEOUT: ResponseTimeout = ResponseTimeout {
    total: Duration::from_secs(4),
    remedy: "look at the server's log, or restart it",
};

/// Requests `/healthz`. Every failure exits with 1, which container engines take for unhealthy; they reserve 2.
pub(crate) fn run(args: &HealthyArgs) -> ExitCode {
    match answers(&args.server.url) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn answers(url: &str) -> anyhow::Result<()> {
    let server = ServerClient::new(url, TIMEOUT)?;
    let answer = server.send(server.get("/healthz"))?;
    match answer.status {
        StatusCode::OK => Ok(()),
        _ => Err(server.problem(&answer)),
    }
}
