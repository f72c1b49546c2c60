//! The `tollgate` command.
//!
//! - `cli`: the flags and their help
//! - `replay`: decides the requests of a trace at the trace's own times
//! - `explain`: which rules apply to a request, and why
//! - `validate`: what is wrong with files of limits and rules

mod cli;
mod explain;
mod replay;
mod validate;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tollgate::rules::Config;

use cli::{Cli, Command};

/// Could not do what was asked: a bad flag, a bad file. Denied requests are not failures.
const FAILURE: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Some(Command::Replay(args)) => replay::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Validate(args)) => validate::run(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Schema) => print(Config::schema()).map(|()| ExitCode::SUCCESS),
        None => match Cli::command().print_help() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error.into()),
        },
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            print_error(&format!("error: {error:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

/// Prints to standard output, unless whoever reads it has seen enough.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("standard output"))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error. If that is closed or full, there is nobody to tell.
fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
