//! The committed table: reading, comparing and writing it.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tollgate_bench::table;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.md");

const HEAD: &str = "\
# Instructions per operation

Counted by callgrind, of a release build on x86-64. `make gate` fails when an operation takes more than 3% more than this table
says; a commit that makes one slower on purpose changes the table with `make gate-write`, and says why.

";

/// The most that an operation may grow without a change of the table.
const MOST_GROWTH: f64 = 1.03;

/// An operation and its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) instructions: u64,
}

/// Writes the table.
pub(crate) fn write(rows: &[Row]) -> Result<()> {
    fs::write(PATH, format!("{HEAD}{}", table::markdown(&lines(rows)))).context(PATH)
}

fn lines(rows: &[Row]) -> Vec<Vec<String>> {
    let head = vec!["operation".to_owned(), "instructions".to_owned()];
    let line = |row: &Row| vec![row.name.clone(), row.instructions.to_string()];
    [vec![head], rows.iter().map(line).collect()].concat()
}

/// Prints what was measured beside the table, and fails if an operation has grown.
pub(crate) fn compare(measured: &[Row]) -> Result<ExitCode> {
    let text = fs::read_to_string(PATH).context(PATH)?;
    let committed = read(&text);
    let titles = ["operation", "committed", "now", "ratio"].map(str::to_owned).to_vec();
    let (mut lines, mut grown) = (vec![titles], Vec::new());
    for Row { name, instructions } in measured {
        let Some(&before) = committed.get(name.as_str()) else {
            grown.push(format!("{name}: not in the table"));
            continue;
        };
        let ratio = *instructions as f64 / before as f64;
        if ratio > MOST_GROWTH {
            grown.push(format!("{name}: {before} before, {instructions} now"));
        }
        let cells = [name.clone(), before.to_string(), instructions.to_string()];
        lines.push([cells.to_vec(), vec![format!("{ratio:.3}")]].concat());
    }
    println!("{}", table::markdown(&lines));
    if grown.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "error: more instructions than {PATH} says:\n  {}\n  make it faster, or commit what `make gate-write` writes \
         and say why",
        grown.join("\n  ")
    );
    Ok(ExitCode::FAILURE)
}

/// The instructions of each operation in a table.
fn read(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (name, instructions) = line.strip_prefix('|')?.split_once('|')?;
            Some((name.trim(), instructions.trim_matches(['|', ' ']).parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_as_it_was_written() {
        let rows = [("check, token bucket", 120), ("b", 3_456)];
        let rows = rows.map(|(name, instructions)| Row { name: name.to_owned(), instructions });
        let text = format!("{HEAD}{}", table::markdown(&lines(&rows)));
        let read = read(&text);
        assert_eq!(read.len(), 2);
        assert!(rows.iter().all(|row| read[row.name.as_str()] == row.instructions));
    }

    #[test]
    fn an_operation_that_grew_or_is_new_fails() {
        let committed = read(include_str!("../../../instructions.md"));
        let rows = |factor: f64| {
            let row = |(name, before): (&&str, &u64)| Row {
                name: (*name).to_owned(),
                instructions: (*before as f64 * factor) as u64,
            };
            committed.iter().map(row).collect::<Vec<Row>>()
        };
        let code = |rows: &[Row]| format!("{:?}", compare(rows).unwrap());
        let success = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(code(&rows(1.0)), success);
        assert_eq!(code(&rows(0.5)), success);
        assert_ne!(code(&rows(1.1)), success);
        let new = Row { name: "something new".to_owned(), instructions: 1 };
        assert_ne!(code(&[new]), success);
    }
}
