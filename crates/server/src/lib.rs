//! The `tollgate` command and its server.
//!
//! - `cli`: the flags and their help
//! - `serve`: runs a server until a signal stops it; `parts`: creates the server's parts; `stop`: the shutdown
//!   - `http`, `grpc`: the front ends, which decode requests and encode answers
//!   - `pipeline`: decides every request, counts the decision and makes the receipt
//!   - `observe`: counts, traces and logs each request; `endpoint`: the name of a request's endpoint
//!   - `trust`: which attributes of a request are believed; `body`: reads bodies; `budget`: the memory they may take
//!   - `metrics`, `refusals`, `traces`, `receipt`: record decisions; `delays`: requests that wait for a shaping limit
//!   - `ruleset`: the rules in force; `store`: whether the store answers; `readiness`: whether to send requests here
//!   - `logs`: the log; `watch`: logs changes of state; `operators`: the operator token; `secret`: texts never printed
//!
//! They depend in one direction: `serve` and `parts` use the front ends, the front ends use `pipeline`, `pipeline` uses
//! the modules that record decisions, and all of them use `ruleset` and `store`.
//!
//! - `check`, `healthy`: send one request to a server from the command line, through `client`
//! - `replay`: decides the requests of a trace at the trace's own times
//! - `explain`: says which rules apply to a request, and why
//! - `validate`: reports problems in files of limits and rules
//! - `import`: converts the configuration of other rate limiters
//! - `complete`: prints shell completions and the manual
//!
//! Three crates below do not know this crate: `tollgate_listener` accepts and bounds connections, `tollgate_playground`
//! decides for the playground, and `tollgate_importer` reads the configuration of other rate limiters.

#[doc(hidden)]
pub mod bench;
mod body;
mod budget;
mod check;
mod cli;
mod client;
mod complete;
mod delays;
mod endpoint;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod healthy;
mod http;
mod import;
mod lease_bounds;
mod logs;
mod metrics;
mod observe;
mod operators;
mod parts;
mod pipeline;
mod readiness;
mod receipt;
mod refusals;
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

/// The exit code when a command cannot run, such as for a bad flag or a bad file. A denied request exits with 1.
const FAILURE: u8 = 2;

/// Runs the command of the command line, by default `serve`.
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
                // Each problem begins with `error:`.
                Some(LoadError::Config(problems)) => print_error(&problems.to_string()),
                _ => print_error(&format!("error: {error:#}")),
            }
            ExitCode::from(FAILURE)
        }
    }
}

/// Prints to standard output. A pipe that its reader has closed is not an error: the reader needs no more output.
fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("standard output"))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error. A failed write is ignored: there is no other place to report it.
fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
