//! Reads, compares and writes the committed table.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tollgate_bench::table;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.md");

const HEAD: &str = "\
# Instructions per operation

Counted by callgrind in a release build on x86-64. `make gate` fails if an operation takes over 3% more instructions than in this
table. A commit that makes an operation slower on purpose updates the table with `make gate-write`, and says why.

";

/// The largest ratio of measured to committed instructions that the gate accepts.
const MAX_RATIO: f64 = 1.03;

/// An operation and its number of instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationRow {
    pub(crate) name: String,
    pub(crate) instructions: u64,
}

/// Writes the table.
pub(crate) fn write(rows: &[OperationRow]) -> Result<()> {
    fs::write(PATH, format!("{HEAD}{}", table::markdown(&lines(rows)))).context(PATH)
}

fn lines(rows: &[OperationRow]) -> Vec<Vec<String>> {
    let head = vec!["operation".to_owned(), "instructions".to_owned()];
    let line = |row: &OperationRow| vec![row.name.clone(), row.instructions.to_string()];
    [vec![head], rows.iter().map(line).collect()].concat()
}

/// Prints the measured and the committed numbers, and fails if an operation takes too many more instructions.
pub(crate) fn compare(measured: &[OperationRow]) -> Result<ExitCode> {
    let text = fs::read_to_string(PATH).context(PATH)?;
    let committed = parse(&text);
    let titles = ["operation", "committed", "now", "ratio"].map(str::to_owned).to_vec();
    let (mut lines, mut grown) = (vec![titles], Vec::new());
    for OperationRow { name, instructions } in measured {
        let Some(&before) = committed.get(name.as_str()) else {
            grown.push(format!("{name}: not in the table"));
            continue;
        };
        let ratio = *instructions as f64 / before as f64;
        if ratio > MAX_RATIO {
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
        "error: more instructions than in {PATH}:\n  {}\n  make these operations faster, or run `make gate-write`, \
         commit the table, and say why",
        grown.join("\n  ")
    );
    Ok(ExitCode::FAILURE)
}

/// Parses the text of a table: the instructions of each operation.
fn parse(text: &str) -> BTreeMap<&str, u64> {
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
    fn table_is_parsed_as_it_was_written() {
        let rows = [("check, token bucket", 120), ("b", 3_456)];
        let rows =
            rows.map(|(name, instructions)| OperationRow { name: name.to_owned(), instructions });
        let text = format!("{HEAD}{}", table::markdown(&lines(&rows)));
        let parsed = parse(&text);
        assert_eq!(parsed.len(), 2);
        assert!(rows.iter().all(|row| parsed[row.name.as_str()] == row.instructions));
    }

    #[test]
    fn compare_fails_when_an_operation_grew_or_is_new() {
        let committed = parse(include_str!("../../../instructions.md"));
        let rows = |factor: f64| {
            let row = |(name, before): (&&str, &u64)| OperationRow {
                name: (*name).to_owned(),
                instructions: (*before as f64 * factor) as u64,
            };
            committed.iter().map(row).collect::<Vec<OperationRow>>()
        };
        let code = |rows: &[OperationRow]| format!("{:?}", compare(rows).unwrap());
        let success = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(code(&rows(1.0)), success);
        assert_eq!(code(&rows(0.5)), success);
        assert_ne!(code(&rows(1.1)), success);
        let new = OperationRow { name: "something new".to_owned(), instructions: 1 };
        assert_ne!(code(&[new]), success);
    }
}
