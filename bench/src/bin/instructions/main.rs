//! Instructions per decision, counted by callgrind.
//!
//! Without arguments it is the driver: it runs itself under valgrind, once per cell and request
//! count, and prints the table. `instructions run <subject> <scenario> <count>` is what it runs;
//! put `valgrind --tool=callgrind` before that to see where a cell's instructions go.
//!
//! The layout: [`rows`] is what is measured, [`work`] and [`peer`] are the loops, ours and
//! governor's.

mod peer;
mod rows;
mod work;

use std::env;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use rows::{ROWS, Row, Scenario};
use tollgate_bench::callgrind::instructions_per_request;
use tollgate_bench::{show_progress, table};

const NOTES: &str = "\
Instructions per request, loop included; a division counts as one, however long it takes.
Wide: allowed, under a limit of a petabyte in 30 days, whose products pass 64 bits.
Ours decides on a state at hand, without a store; governor's rows include its atomic update and its
fake clock. Ours always says what is left, when to retry and when all is back; governor what it is asked.";

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
        lines.push(measured(row)?);
    }
    println!("{}\n{NOTES}", table::markdown(&lines));
    Ok(())
}

fn header() -> Vec<String> {
    let titles = Scenario::ALL.map(|scenario| scenario.name().to_owned());
    [vec!["algorithm".to_owned()], titles.to_vec()].concat()
}

fn measured(row: &Row) -> Result<Vec<String>> {
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
