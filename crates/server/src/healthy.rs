//! `tollgate healthy`: whether a server answers.

use std::process::ExitCode;

use reqwest::StatusCode;

use crate::ask::Asked;
use crate::cli::HealthyArgs;
use crate::print_error;

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
    let server = Asked::at(url)?;
    let answer = server.ask(server.get("/healthz"))?;
    match answer.status {
        StatusCode::OK => Ok(()),
        _ => Err(server.refused(&answer)),
    }
}
