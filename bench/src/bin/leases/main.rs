//! Leased checks beside strict ones and the memory store: the time of a check, and how much of a limit several processes
//! use.
//!
//! Without arguments it measures everything, prints the tables and draws `docs/pictures/leases.svg`. `leases quick` measures
//! the times alone. It runs itself for each process that shares a limit: `leases process …`.
//!
//! The layout: [`hits`] measures the time of a check; [`processes`] has the processes that share a limit; [`usage`] measures
//! what they use of it; [`picture`] shows a run with faults.

mod hits;
mod picture;
mod processes;
mod usage;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use tollgate_bench::{show_progress, table};

const NOTES: &str = "\
One key of a token bucket that is never empty. One caller: each check is awaited before the next; the best of 5 passes, of
200,000 checks (strict: 20,000) each. 99.9%: with the time of reading the clock twice. 64 callers: on 2 threads, which they
share with Redis, for 2 s. Calls: requests to Redis for each second of that run.
Used: 8 processes, which ask for twice the limit together, share one key; what they are admitted divided by what the limit
admits, without the first seconds, in which a bucket that was full is spent. Jumping: the whole demand moves to the next
process every second. Over: the largest excess over the limit's bound, over any interval of whole milliseconds.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: leases: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure_all(),
        ["quick"] => measure_hits(),
        ["picture"] => draw(),
        ["process", url, limit, demand, record] => {
            processes::run(url, limit, demand.parse()?, record)
        }
        _ => bail!("unknown arguments {args:?}; use none, quick or picture"),
    }
}

fn measure_hits() -> Result<()> {
    let times = hits::measure()?;
    show_progress("");
    println!("{}", table::markdown(&hits::lines(&times)));
    Ok(())
}

fn measure_all() -> Result<()> {
    measure_hits()?;
    let used = usage::measure()?;
    show_progress("");
    println!("{}\n{NOTES}", table::markdown(&usage::lines(&used)));
    draw()
}

fn draw() -> Result<()> {
    let run = picture::measure()?;
    show_progress("");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/leases.svg");
    fs::write(&path, picture::draw(&run)).with_context(|| path.display().to_string())
}
