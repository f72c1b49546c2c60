//! Requests per second of a server: ours, beside a published peer and one that decides nothing.
//!
//! Without arguments it is the driver: it prints the tables and draws `docs/pictures/server.svg`; with
//! `once` it does a single short round, and draws nothing. It runs itself as `server null <port> <answer>`.
//!
//! The layout: [`questions`] has the requests, [`contenders`] the servers, of which [`null`] decides
//! nothing; each server runs in a process of its own. [`rounds`] measures all of them with wrk, [`instructions`] under
//! valgrind, one after the other; [`report`] and [`picture`] show the results.

mod contenders;
mod instructions;
mod null;
mod picture;
mod questions;
mod report;
mod rounds;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use tollgate_bench::turns::Length;
use tollgate_bench::{show_progress, table, wrk};

const NOTES: &str = "\
POST /v1/check over HTTP, in memory: one thread of wrk with 50 connections, and a server with one thread
beside it on 2 CPUs; last, one with 2, as it comes, which share the CPUs with wrk.
The null server is a route of axum on hyper's connections, without a timer: it reads the body and answers
with what tollgate once said. throttlecrab-server is asked on its /throttle, for the same token bucket.
All take turns; numbers are medians of 5 rounds of 5 s, x is of the same rounds. CPU us: what a request
takes of the server's time, in the kernel too; instructions are callgrind's count, without the kernel's.
One key: user:42. 10,000 keys: in turn. Denied: the same key, when nothing is left. By rules: 2 of 3
apply, one of which only tells; the peer has none.";

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
        [] => print_tables(Length::FULL),
        ["once"] => print_tables(Length::SHORT),
        ["null", port, answer] => {
            let port = port.parse().with_context(|| format!("port `{port}`"))?;
            null::serve(port, answer.to_owned())
        }
        _ => bail!("unknown arguments {args:?}; use none, once or null <port> <answer>"),
    }
}

fn print_tables(length: Length) -> Result<()> {
    wrk::find()?;
    let measured = rounds::measure(length)?;
    show_progress("");
    for lines in report::tables(&measured) {
        println!("{}", table::markdown(&lines));
    }
    if length != Length::FULL {
        return Ok(());
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/server.svg");
    fs::write(&path, picture::draw(&measured)).with_context(|| path.display().to_string())
}
