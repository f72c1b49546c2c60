//! The cost of a layer: an axum service with our layer, with tower_governor, and without a layer.
//!
//! Without arguments it measures all variants, prints the tables and draws `docs/pictures/middleware.svg`.
//! For that it runs itself: as `middleware run <variant> <count>` under valgrind, and as `middleware serve
//! <variant>` for wrk. Put `valgrind --tool=callgrind` before the first command to see where a variant's
//! instructions are spent.
//!
//! The layout: [`variants`] has the services; [`in_process`] calls them directly, and [`sockets`] calls a
//! [`server`] with wrk; [`compare`] computes what each layer adds, and [`report`] and [`picture`] show it.

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
An axum service that says hello, with a token bucket for each address that refuses no request: capacity 1,000,000,
one token more each nanosecond. \"Adds\" is the difference to no layer in the same round, \"middle half\" its range in the
middle half of all rounds. \"x peer\" is what a layer adds, divided by what tower_governor adds with its headers, which are
X-RateLimit-Limit and X-RateLimit-Remaining. All variants take turns; numbers are medians.
In process: the service is called 1,000 times in each of 499 rounds; ns are CPU time, instructions are callgrind's
count. Over sockets: wrk with 50 connections on one CPU, and a server with one thread on the other, 1 s in each of 13
rounds; CPU us are the CPU time of the server's thread, including the kernel's.";

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
