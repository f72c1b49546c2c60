//! Nanoseconds per check and bytes per key of our limiter and of published ones, measured in one run.
//!
//! Without arguments it measures everything, prints the table and draws `docs/pictures/checks.svg`.
//! It runs itself for each measurement that needs a new process: `checks grow <competitor>`, `checks fill-logs`.
//! To see where a competitor's time goes:
//!
//! ```text
//! perf record target/release/checks repeat token-bucket uniform 1 20
//! ```
//!
//! The layout: [`competitors`] has the limiters, each as a [`measured_limiter`]; [`traffic`] has the requests;
//! [`timing`] and [`growth`] measure; [`report`] and [`picture`] show the results.

mod competitors;
mod growth;
mod measured_limiter;
mod picture;
mod report;
mod timing;
mod traffic;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use competitors::COMPETITORS;
use report::CompetitorRow;
use tollgate_bench::{show_progress, table};
use traffic::CheckSequences;

const NOTES: &str = "\
In brackets: governor's time divided by this time; above 1, ours or the peer is faster than governor. Every check is
allowed, except in the column \"one key, denied\". Zipf (s = 1.0) and uniform choose among 1,000,000 keys. All keys are
known before the clock starts; their ids are strings of 13 bytes, in memory in the order of their use. With 2 threads:
2 times the wall time, divided by all checks; each thread has its own CPU. Each time is the best of 7 passes of 500,000
checks (one key: 1,000,000) for each thread; the competitors take turns. For two threads on one key it is the median,
because a lock can be lucky for a whole pass. A pass does not count if its threads waited for a CPU for more than 2% of
its time; \"busy\" means that no pass was left.
Bytes per key: the growth of the resident set from an empty limiter to 1,000,000 keys, including the limiter's own copies
of the ids; 99.99% and worst: the slowest calls during that growth, including 20 ns to read the clock. Each of these runs
is in its own process, and the smallest of 5 values counts.
Before the clock starts, each limiter reserves memory for the 1,000,000 keys: ours with Builder::room_for, except in the
row \"unreserved\", and the others with with_capacity of their maps. Ours then uses huge pages if the system gives them to
programs that request them; the others use huge pages if an allocator requests them for all memory, or if the system
gives them to every program.
Ours reads its system clock, and returns what is left, when to retry and when the whole quota is back; governor
(RateLimiter::new, its default clock, check_key with a &String) returns yes or no. \"ahash\" is governor with that hasher,
\"HashMap\" governor with its other store. throttlecrab is PeriodicStore in a std Mutex, as its documentation says, with
SystemTime::now().";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: checks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure_all(),
        ["grow", name] => growth::grow(name),
        ["fill-logs"] => growth::fill_logs(),
        ["repeat", name, workload, threads, passes] => {
            let threads = threads.parse().with_context(|| format!("threads `{threads}`"))?;
            let passes = passes.parse().with_context(|| format!("passes `{passes}`"))?;
            timing::repeat(name, workload, threads, passes)
        }
        _ => bail!(
            "unknown arguments {args:?}; use none, or repeat <competitor> <workload> <threads> <passes>"
        ),
    }
}

fn measure_all() -> Result<()> {
    let mut growths = Vec::new();
    for competitor in COMPETITORS {
        show_progress(&format!("{}: growing to 1,000,000 keys", competitor.name));
        growths.push(growth::measure(competitor)?);
    }
    let nothing = growth::measure_nothing()?;
    let bytes_per_log_entry = growth::bytes_per_log_entry()?;
    let times = timing::measure(&CheckSequences::new())?;
    show_progress("");
    let row =
        |((competitor, ns_per_check), growth)| CompetitorRow { competitor, ns_per_check, growth };
    let rows: Vec<CompetitorRow> = COMPETITORS.iter().zip(times).zip(growths).map(row).collect();
    println!("{}\n{NOTES}", table::markdown(&report::lines(&rows)));
    println!(
        "1,000,000 calls that only read the clock for 0.5 us: 99.99% within {:.1} us, worst {:.0} us.\n\
         sliding-window-log, 10,000 keys of 100 entries: {bytes_per_log_entry:.1} bytes per entry.",
        nothing.p9999_us, nothing.worst_us
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/checks.svg");
    fs::write(&path, picture::draw(&rows)).with_context(|| path.display().to_string())
}
