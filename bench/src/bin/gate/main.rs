//! The gate that keeps the speed: instructions per operation, beside the committed table.
//!
//! `gate` measures every row, and fails if one takes more than 3% more instructions than `bench/instructions.md` says.
//! `gate write` measures every row, and writes that table. `gate run <operation>` is what it runs under callgrind; put
//! `valgrind --tool=callgrind --toggle-collect='*measured_loop*'` before that to see where the instructions go.
//!
//! The layout: [`local`] has the operations inside one process, for which [`servers`] starts the server; [`redis`] has
//! the script; [`committed`] reads, compares and writes the table.

mod committed;
mod local;
mod redis;
mod servers;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};
use tollgate_bench::show_progress;

use committed::Row;
use local::Operation;

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
        [] => committed::compare(&measured()?),
        ["write"] => committed::write(&measured()?).map(|()| ExitCode::SUCCESS),
        ["run", operation] => local::run(operation).map(|()| ExitCode::SUCCESS),
        _ => bail!("unknown arguments {args:?}; use none, `write`, or `run <operation>`"),
    }
}

/// Measures every operation.
fn measured() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut measure = |name: &'static str, take: &dyn Fn() -> Result<u64>| -> Result<()> {
        show_progress(name);
        rows.push(Row { name: name.to_owned(), instructions: take()? });
        Ok(())
    };
    for operation in Operation::ALL {
        measure(operation.name(), &|| operation.instructions())?;
    }
    measure(redis::NAME, &redis::instructions)?;
    show_progress("");
    Ok(rows)
}
