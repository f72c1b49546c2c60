//! Instructions per decision, counted by callgrind.
//!
//! Without arguments it runs `instructions run <subject> <scenario> <count>` under valgrind, for each
//! cell with two request counts, and prints the table. Put `valgrind --tool=callgrind` before that
//! command to see where the instructions of a cell are spent.
//!
//! The layout: [`rows`] and [`scenario`] have the rows and columns; [`work`] has our loops, and
//! [`peer`] governor's.

mod peer;
mod rows;
mod scenario;
mod work;

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use rows::{DeciderRow, ROWS};
use scenario::Scenario;
use tollgate_bench::callgrind::instructions_per_request;
use tollgate_bench::{show_progress, table};

const NOTES: &str = "\
Instructions per request, including the loop. A division counts as one instruction, however long it takes.
Wide: allowed, under a limit of a petabyte in 30 days, whose products exceed 64 bits.
Ours decides on a given state, without a store; governor's rows include its atomic update and its fake clock. Ours always
returns what is left, when to retry and when the whole quota is back; governor returns only what its row says.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show_progress("");
            eprintln!("error: instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => print_table(),
        ["run", subject, scenario, count] => {
            let count = count.parse().with_context(|| format!("count `{count}`"))?;
            work::run(subject, scenario.parse()?, count, |_| ())
        }
        _ => bail!("unknown arguments {args:?}; use none, or run <subject> <scenario> <count>"),
    }
}

fn print_table() -> Result<()> {
    let mut lines = vec![header()];
    for row in ROWS {
        lines.push(measure(row)?);
    }
    println!("{}\n{NOTES}", table::markdown(&lines));
    Ok(())
}

fn header() -> Vec<String> {
    let titles = Scenario::ALL.map(|scenario| scenario.name().to_owned());
    [vec!["algorithm".to_owned()], titles.to_vec()].concat()
}

/// Measures the cells of a row.
fn measure(row: &DeciderRow) -> Result<Vec<String>> {
    let mut cells = vec![row.name.to_owned()];
    for scenario in Scenario::ALL {
        cells.push(match row.subject(scenario) {
            Some(subject) => {
                show_progress(&format!("{}: {}", row.name, scenario.name()));
                instructions_per_request(&["run", subject, scenario.name()])?.to_string()
            }
            None => "-".to_owned(),
        });
    }
    show_progress("");
    Ok(cells)
}
