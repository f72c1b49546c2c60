//! `tollgate healthy`: whether a server answers.

use std::process::ExitCode;
use std::time::Duration;

use reqwest::StatusCode;

use crate::cli::HealthyArgs;
use crate::client::{ResponseTimeout, ServerClient};
use crate::print_error;

/// Less than the image's HEALTHCHECK allows, so that it is said why.
const TIMEOUT: ResponseTimeout = ResponseTimeout {
    total: Duration::from_secs(4),
    remedy: "see how the server does, or restart it",
};

/// 1 is what a container engine takes for unhealthy, whatever the reason; 2 it keeps for itself.
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
