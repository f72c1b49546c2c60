//! The cost of a layer: an axum service with ours, beside tower_governor and no layer at all.
//!
//! Without arguments it is the driver: it prints the tables and draws `docs/pictures/middleware.svg`.
//! It runs itself: as `middleware run <variant> <count>` under valgrind, and as `middleware serve
//! <variant>` for wrk. Put `valgrind --tool=callgrind` before the first to see where a variant's
//! instructions go.
//!
//! The layout: [`variants`] has the services; [`in_process`] calls them directly, [`sockets`] calls a
//! [`server`] with wrk; [`compare`] computes what each adds, [`report`] and [`picture`] show it.

mod compare;
mod in_process;
mod picture;
mod report;
mod server;
mod sockets;
mod variants;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use tollgate_bench::{show_progress, table, wrk};

const NOTES: &str = "\
An axum service that says hello, by a token bucket for each address that refuses nobody: 1,000,000, and
one more each nanosecond. Adds: to no layer, of the same round; middle half: what it adds in half of the
rounds. x peer: what it adds, by what tower_governor adds with its headers, which are X-RateLimit-Limit
and -Remaining. All take turns, and medians count.
In process: the service is called, 1,000 times in each of 499 rounds; ns are CPU time, instructions are
callgrind's count. Over sockets: wrk with 50 connections on one CPU, a server with one thread on the
other, 1 s in each of 13 rounds; CPU us are of the server's thread, in the kernel too.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: middleware: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => print_tables(),
        ["run", variant, count] => {
            let count = count.parse().with_context(|| format!("count `{count}`"))?;
            in_process::make_requests(&mut variant.parse::<variants::Variant>()?.router()?, count)
        }
        ["serve", variant] => server::serve(variant.parse()?),
        _ => {
            bail!("unknown arguments {args:?}; use none, run <variant> <count> or serve <variant>")
        }
    }
}

fn print_tables() -> Result<()> {
    wrk::find()?;
    let in_process = in_process::measure()?;
    let over_sockets = sockets::measure()?;
    show_progress("");
    for lines in [report::in_process_lines(&in_process), report::socket_lines(&over_sockets)] {
        println!("{}", table::markdown(&lines));
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/middleware.svg");
    fs::write(&path, picture::draw(&in_process)).with_context(|| path.display().to_string())
}
