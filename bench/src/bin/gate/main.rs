//! The gate that fails when an operation gets slower: it compares the instructions per operation with the committed table.
//!
//! `gate` measures every row, and fails if one takes over 3% more instructions than in `bench/instructions.md`.
//! `gate write` measures every row, and writes that table. Under callgrind, both run `gate run <operation>`; put
//! `valgrind --tool=callgrind --toggle-collect='*measured_loop*'` before it to see where the instructions are spent.
//!
//! The layout: [`local`] has the operations inside one process, and [`servers`] starts the server for some of them;
//! [`redis`] measures the scripts; [`committed`] reads, compares and writes the table.

mod committed;
mod local;
mod redis;
mod servers;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};
use tollgate_bench::show_progress;

use committed::OperationRow;
use local::Operation;
use redis::ServerOperation;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            show_progress("");
            eprintln!("error: gate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => committed::compare(&measure_all()?),
        ["write"] => committed::write(&measure_all()?).map(|()| ExitCode::SUCCESS),
        ["run", operation] => local::run(operation).map(|()| ExitCode::SUCCESS),
        _ => bail!("unknown arguments {args:?}; use none, `write`, or `run <operation>`"),
    }
}

/// Measures every operation.
fn measure_all() -> Result<Vec<OperationRow>> {
    let mut rows = Vec::new();
    let mut measure = |name: &'static str, count: &dyn Fn() -> Result<u64>| -> Result<()> {
        show_progress(name);
        rows.push(OperationRow { name: name.to_owned(), instructions: count()? });
        Ok(())
    };
    for operation in Operation::ALL {
        measure(operation.name(), &|| operation.instructions())?;
    }
    for operation in ServerOperation::ALL {
        measure(operation.name(), &|| operation.instructions())?;
    }
    show_progress("");
    Ok(rows)
}
