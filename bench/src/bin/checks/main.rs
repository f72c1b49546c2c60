//! Nanoseconds and bytes: our limiter beside the published peers, in one run.
//!
//! Without arguments it measures everything, prints the table and draws `docs/pictures/checks.svg`.
//! It runs itself for what needs a fresh process: `checks grow <competitor>`, `checks fill-logs`.
//! To see where a competitor's time goes:
//!
//! ```text
//! perf record target/release/checks repeat token-bucket uniform 1 20
//! ```
//!
//! The layout: [`competitors`] has the limiters, each as a [`subject`]; [`traffic`] has the requests;
//! [`timing`] and [`growth`] measure; [`report`] and [`picture`] show the results.

mod competitors;
mod growth;
mod picture;
mod report;
mod subject;
mod timing;
mod traffic;

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use competitors::COMPETITORS;
use report::Row;
use tollgate_bench::{show_progress, table};
use traffic::Traffic;

const NOTES: &str = "\
In brackets: how many times as long governor takes. Every check is allowed, except where the column
says denied. Zipf has s = 1.0; Zipf and uniform are over 1,000,000 keys, all known before the clock
starts, with 13-byte ids ready as strings in the order of their use. With 2 threads: wall time, times
2, by all checks, each thread on a CPU of its own. Each time is the best of 7 passes of 500,000 checks (one key: 1,000,000) for each
thread, the competitors taking turns (two threads on one key: the median, as locks are lucky at times); passes whose threads waited for a CPU more than 2% of the time
do not count, and \"busy\" is where none was left.
Bytes per key: growth of the resident set from an empty limiter to 1,000,000 keys, the limiter's own
copies of the ids included; 99.99% and worst are the slowest calls meanwhile, the clock's 20 ns
included. A process of its own each time, the least of 5.
All are told of the 1,000,000 keys before they come, in time that is not counted: ours by Builder::room_for, but for
the row that says untold, the others by their maps' with_capacity. Ours then has huge pages if the system has them for
those who ask; the others have them where an allocator asks for all, or the system gives them to all.
Ours has its system clock and answers with what is left, when to retry and when all is back; governor
(RateLimiter::new, its default clock, check_key with a &String) answers yes or no. \"ahash\" is the
same with that hasher, \"HashMap\" its other store. throttlecrab is PeriodicStore in a std Mutex, as its
documentation says, with SystemTime::now().";

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
    let times = timing::measure(&Traffic::new())?;
    show_progress("");
    let row = |((competitor, ns_per_check), growth)| Row { competitor, ns_per_check, growth };
    let rows: Vec<Row> = COMPETITORS.iter().zip(times).zip(growths).map(row).collect();
    println!("{}\n{NOTES}", table::markdown(&report::lines(&rows)));
    println!(
        "Of as many calls that only look at the clock for 0.5 us: 99.99% in {:.1} us, worst {:.0} us.\n\
         sliding-window-log, 10,000 keys of 100 entries: {bytes_per_log_entry:.1} bytes an entry.",
        nothing.p9999_us, nothing.worst_us
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures/checks.svg");
    fs::write(&path, picture::draw(&rows)).with_context(|| path.display().to_string())
}
