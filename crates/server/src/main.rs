//! The `tollgate` command.
//!
//! - `cli`: the flags and their help
//! - `replay`: decides the requests of a trace at the trace's own times

mod cli;
mod replay;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};

/// Could not do what was asked: a bad flag, a bad file. Denied requests are not failures.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Some(Command::Replay(args)) => replay::run(&args),
        None => Cli::command().print_help().map_err(anyhow::Error::from),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILURE)
        }
    }
}
