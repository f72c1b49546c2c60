//! The `tollgate` command and its server.
//!
//! - `cli`: the flags and their help
//! - `serve`: runs a server until it is told to stop; `parts`: puts it together
//!   - `http`, `grpc`: the front ends, which decode requests and encode answers; `observe`: what is counted of a request
//!   - `pipeline`: decides every request, and accounts for it
//!   - `trust`: which attributes of a request are believed; `body`: reads bodies; `budget`: what they may take in memory
//!   - `metrics`, `refused`, `traces`, `receipt`: where decisions are accounted for; `held`: requests that wait
//!   - `ruleset`: the rules that decide; `store`: what they decide on; `readiness`: whether to send requests here
//!   - `logs`, `watch`: what operators read; `operators`: who they are; `secret`: what is not shown
//!   - `endpoint`: what a request asks for, in words of ours; `stop`: from being told to stop to the end
//!
//! They depend in one direction: `serve` and `parts`, then the front ends, `pipeline`, what it accounts to, and at last
//! `ruleset` and `store`.
//!
//! - `check`, `healthy`: send one request to a running server; `client`: the HTTP client for that
//! - `replay`: decides the requests of a trace at the trace's own times
//! - `explain`: which rules apply to a request, and why
//! - `validate`: what is wrong with files of limits and rules
//! - `import`: limits and rules from the configuration of others
//! - `complete`: what shells complete, and the manual
//!
//! Connections are accepted and bounded by `tollgate_listener`, the playground decides in `tollgate_playground`, and
//! `tollgate_importer` reads the configuration of others: they know nothing of this crate.

mod body;
mod budget;
mod check;
mod cli;
mod client;
mod complete;
mod endpoint;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod healthy;
mod held;
mod http;
mod import;
mod logs;
#[doc(hidden)]
pub mod measured;
mod metrics;
mod observe;
mod operators;
mod parts;
mod pipeline;
mod readiness;
mod receipt;
mod refused;
mod replay;
mod ruleset;
mod secret;
mod serve;
mod stop;
mod store;
mod traces;
mod trust;
mod validate;
mod watch;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use tollgate::rules::{Config, LoadError};
use tollgate_listener::{self as listener, lifecycle};

use cli::{Cli, Command};

/// Could not do what was asked: a bad flag, a bad file. Denied requests are not failures.
const FAILURE: u8 = 2;

/// Does what the command line says; without a command, serves.
pub fn run() -> ExitCode {
    let outcome = match Cli::read().command {
        Some(Command::Serve(args)) => serve::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Replay(args)) => replay::run(&args).map(|()| ExitCode::SUCCESS),
        Some(Command::Validate(args)) => validate::run(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Import(args)) => import::run(&args),
        Some(Command::Schema) => print(Config::schema()).map(|()| ExitCode::SUCCESS),
        Some(Command::Healthy(args)) => Ok(healthy::run(&args)),
        Some(Command::Completions(args)) => {
            complete::completions(&args).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Man(args)) => complete::man(&args).map(|()| ExitCode::SUCCESS),
        None => Ok(ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            match error.downcast_ref() {
                // Each of them begins with `error:`.
                Some(LoadError::Config(problems)) => print_error(&problems.to_string()),
                _ => print_error(&format!("error: {error:#}")),
            }
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
