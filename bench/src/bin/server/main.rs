//! Requests per second to our server, to a published peer and to a server that decides nothing.
//!
//! Without arguments it measures, prints the tables and draws `docs/pictures/server.svg`. With `once` it makes a single
//! short round, and draws nothing. It runs itself as `server null <port> <answer>` for the server that decides nothing.
//!
//! The layout: [`request_kinds`] has the requests and [`contenders`] the servers; [`null`] is the server that decides
//! nothing. Each server runs in its own process. [`rounds`] measures the servers in turn with wrk, and [`instructions`]
//! one after the other under valgrind; [`report`] and [`picture`] show the results.

mod contenders;
mod instructions;
mod null;
mod picture;
mod report;
mod request_kinds;
mod rounds;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use tollgate_bench::turns::TurnLength;
use tollgate_bench::{show_progress, table, wrk};

const NOTES: &str = "\
POST /v1/check over HTTP, in memory: one thread of wrk with 50 connections, and a server with one thread, on the same 2
CPUs. In the last table the servers have their default of 2 threads, which share the CPUs with wrk.
The null server is a route of axum on hyper's connections, without a timer: it reads the body, and always sends an answer
that tollgate gave before. throttlecrab-server gets its requests on /throttle, for the same token bucket. All servers take
turns. Numbers are medians of 5 rounds of 5 s; \"x\" compares values of the same round. CPU us: the server's CPU time for a
request, including the kernel's; instructions are callgrind's count, without the kernel's.
One key: user:42. 10,000 keys: used in turn. Denied: the same key, after its quota is spent. By rules: 2 of 3 rules apply,
one of them a shadow rule; the peer has no rules.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => print_tables(TurnLength::FULL),
        ["once"] => print_tables(TurnLength::SHORT),
        ["null", port, answer] => {
            let port = port.parse().with_context(|| format!("port `{port}`"))?;
            null::serve(port, answer.to_owned())
        }
        _ => bail!("unknown arguments {args:?}; use none, once or null <port> <answer>"),
    }
}

fn print_tables(length: TurnLength) -> Result<()> {
    wrk::find()?;
    let measured = rounds::measure(length)?;
    show_progress("");
    for lines in report::tables(&measured) {
        println!("{}", table::markdown(&lines));
    }
    if length != TurnLength::FULL {
        return Ok(());
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/server.svg");
    fs::write(&path, picture::draw(&measured)).with_context(|| path.display().to_string())
}
