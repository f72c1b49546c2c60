//! Measures holds beside checks, in memory and on a real Redis: a reservation with its settlement beside two checks, and
//! a check of a key with a hold beside a check of a key without. The program starts the Redis and prints a table.
//!
//! The layout: [`operations`] has the measured operations, [`in_memory`] and [`on_redis`] measure it in turns.

mod in_memory;
mod on_redis;
mod operations;

use std::process::ExitCode;

use anyhow::Result;
use tokio::runtime::Builder;
use tollgate_bench::statistics::median_ratio;
use tollgate_bench::{show_progress, table};

use on_redis::RedisTurns;
use operations::HoldOperation;

const NOTES: &str = "\
A token bucket that admits everything. The operations take turns; of a time the best turn counts, and of the CPU time of
Redis (INFO cpu, divided by the number of operations) the median. In brackets: the median of the ratios to two checks in
the same round. The callers wait for each answer before they send their next request, and each has a key of its own.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: holds: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let in_memory_ns = in_memory::measure()?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (version, [alone, together]) = runtime.block_on(on_redis::measure())?;
    show_progress("");
    println!(
        "Redis {version}\n\n{}\n{NOTES}",
        table::markdown(&lines(&in_memory_ns, &alone, &together))
    );
    Ok(())
}

/// Returns the header and a row for each operation.
fn lines(in_memory_ns: &[Vec<f64>], alone: &RedisTurns, together: &RedisTurns) -> Vec<Vec<String>> {
    let header = [
        "",
        "in memory, ns",
        "Redis, 1 caller, us",
        "Redis CPU, us",
        "Redis, 64 callers, us",
        "Redis CPU, us",
    ];
    let columns = [
        (in_memory_ns, ShownTurn::Best),
        (&alone.wall_us, ShownTurn::Best),
        (&alone.cpu_us, ShownTurn::Median),
        (&together.wall_us, ShownTurn::Best),
        (&together.cpu_us, ShownTurn::Median),
    ];
    let line = |(nth, operation): (usize, &HoldOperation)| {
        let cells = columns.iter().map(|(turns, summary)| cell(turns, nth, *summary));
        [operation.name().to_owned()].into_iter().chain(cells).collect()
    };
    let rows = HoldOperation::ALL.iter().enumerate().map(line);
    [header.map(str::to_owned).to_vec()].into_iter().chain(rows).collect()
}

/// The number that the table shows for several turns.
#[derive(Clone, Copy)]
enum ShownTurn {
    /// The shortest time, which other programs disturbed least.
    Best,
    Median,
}

/// Returns the text of a time, with the ratio to two checks in brackets.
fn cell(turns: &[Vec<f64>], nth: usize, summary: ShownTurn) -> String {
    let own = &turns[nth];
    let shown = match summary {
        ShownTurn::Best => own.iter().copied().fold(f64::INFINITY, f64::min),
        ShownTurn::Median => tollgate_bench::statistics::median(own.iter().copied()),
    };
    let ratio = median_ratio(own, &turns[HoldOperation::BASE]);
    let digits = if shown < 100.0 { 1 } else { 0 };
    format!("{shown:.digits$} ({ratio:.2}x)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_has_the_best_time_and_the_median_ratio_to_two_checks() {
        let mut turns = vec![vec![50.0; 3]; HoldOperation::ALL.len()];
        turns[HoldOperation::BASE] = vec![100.0, 200.0, 100.0];
        turns[2] = vec![300.0, 800.0, 500.0];
        assert_eq!(cell(&turns, 2, ShownTurn::Best), "300 (4.00x)");
        assert_eq!(cell(&turns, 2, ShownTurn::Median), "500 (4.00x)");
        assert_eq!(cell(&turns, 0, ShownTurn::Best), "50.0 (0.50x)");
    }
}
