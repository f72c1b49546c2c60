//! Requests per second to Envoy's rate limit service: our server, and a service made with tonic that decides nothing.
//!
//! Without arguments it measures, prints the table and draws `docs/pictures/rls.svg`. With `once` it makes a single short
//! round, and draws nothing. It runs itself as `rls null <port>` for the service that decides nothing.
//!
//! The layout: [`contenders`] has both services, and [`null`] is the one that decides nothing; [`rounds`] measures both in
//! turn with h2load; [`report`] and [`picture`] show the results.

mod contenders;
mod null;
mod picture;
mod report;
mod rounds;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use tollgate_bench::turns::TurnLength;
use tollgate_bench::{h2load, show_progress, table};

const NOTES: &str = "\
ShouldRateLimit over gRPC, in memory: h2load -c 8 -m 32 -t 1, and a server with one thread, on the same 2 CPUs. A request
has one descriptor of one entry, for which one rule decides. The null service is made with tonic from the same proto: it
reads the message, and answers OK with an empty status. Both take turns. Numbers are medians of 5 rounds of 5 s; \"x null\"
compares values of the same round. CPU us: the server's CPU time for a request, including the kernel's. limitador-server is
not in the run, because no package registry has it; it answered 52,600 requests per second on this machine.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: rls: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => print_table(TurnLength::FULL),
        ["once"] => print_table(TurnLength::SHORT),
        ["null", port] => null::serve(port.parse().with_context(|| format!("port `{port}`"))?),
        _ => bail!("unknown arguments {args:?}; use none, once or null <port>"),
    }
}

fn print_table(length: TurnLength) -> Result<()> {
    h2load::find()?;
    let measured = rounds::measure(length)?;
    show_progress("");
    println!("{}", table::markdown(&report::lines(&measured)));
    if length != TurnLength::FULL {
        return Ok(());
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/rls.svg");
    fs::write(&path, picture::draw(&measured)).with_context(|| path.display().to_string())
}
