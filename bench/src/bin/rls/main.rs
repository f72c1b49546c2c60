//! Requests per second of Envoy's rate limit service, beside a service of tonic's that decides nothing.
//!
//! Without arguments it is the driver: it prints the table and draws `docs/pictures/rls.svg`; with `once` it does
//! a single short round, and draws nothing. It runs itself as `rls null <port>`.
//!
//! The layout: [`contenders`] has both services, [`null`] is the one that decides nothing; [`rounds`] runs both in turn
//! with h2load; [`report`] and [`picture`] show the results.

mod contenders;
mod null;
mod picture;
mod report;
mod rounds;

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use tollgate_bench::turns::Length;
use tollgate_bench::{h2load, show_progress, table};

const NOTES: &str = "\
ShouldRateLimit over gRPC, in memory: h2load -c 8 -m 32 -t 1, and a server with one thread beside it on 2 CPUs.
One descriptor of one entry, for which one rule decides. The null service is tonic's for the same proto: it reads
the message, and answers OK with an empty status. They take turns; numbers are medians of 5 rounds of 5 s, x is of
the same rounds. CPU us: what a request takes of the server's time, in the kernel too. limitador-server, which no
registry has, is not in the run; it gave 52,600 a second here.";

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
        [] => print_table(Length::FULL),
        ["once"] => print_table(Length::SHORT),
        ["null", port] => null::serve(port.parse().with_context(|| format!("port `{port}`"))?),
        _ => bail!("unknown arguments {args:?}; use none, once or null <port>"),
    }
}

fn print_table(length: Length) -> Result<()> {
    h2load::find()?;
    let measured = rounds::measure(length)?;
    show_progress("");
    println!("{}", table::markdown(&report::lines(&measured)));
    if length != Length::FULL {
        return Ok(());
    }
    println!("{NOTES}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/rls.svg");
    fs::write(&path, picture::draw(&measured)).with_context(|| path.display().to_string())
}
