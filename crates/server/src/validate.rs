//! `tollgate validate`: what is wrong with files of limits and rules.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tollgate::rules::{Config, Problem, Problems};

use crate::cli::{Format, ValidateArgs};
use crate::print;

const STDIN: &str = "standard input";

pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let mut files = Vec::with_capacity(args.files.len());
    for path in &args.files {
        files.push((path, read(path)?));
    }
    match args.format {
        Format::Human => print_for_people(&files)?,
        Format::Json => print_json(&files)?,
    }
    let is_valid = files.iter().all(|(_, outcome)| outcome.is_ok());
    Ok(if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Outcome = Result<Config, Problems>;

fn read(path: &Path) -> anyhow::Result<Outcome> {
    if !is_stdin(path) {
        return Ok(Config::load(path));
    }
    let mut text = Vec::new();
    // One byte more tells an input that is too large.
    let mut input = io::stdin().lock().take(Config::MAX_BYTES as u64 + 1);
    input.read_to_end(&mut text).context(STDIN)?;
    Ok(Config::parse_with(STDIN, &text, |keys| std::fs::read(keys)))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn print_for_people(files: &[(&PathBuf, Outcome)]) -> anyhow::Result<()> {
    for (path, outcome) in files {
        match outcome {
            Ok(config) => {
                if !config.warnings().is_empty() {
                    eprintln!("{}", config.warnings());
                }
                let name = if is_stdin(path) { STDIN.into() } else { path.display().to_string() };
                let (limits, rules) = config.len();
                let limits = counted(limits, "limit");
                print(&format!("{name}: {limits}, {}\n", counted(rules, "rule")))?;
            }
            Err(problems) => eprintln!("{problems}"),
        }
    }
    Ok(())
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// A problem as it is printed.
#[derive(Serialize)]
struct Line<'p> {
    file: &'p str,
    line: Option<u32>,
    column: Option<u32>,
    severity: String,
    message: &'p str,
    remedy: &'p str,
}

impl<'p> Line<'p> {
    fn of(problem: &'p Problem) -> Line<'p> {
        Line {
            file: problem.file(),
            line: problem.line(),
            column: problem.column(),
            severity: problem.severity().to_string(),
            message: problem.message(),
            remedy: problem.remedy(),
        }
    }
}

fn print_json(files: &[(&PathBuf, Outcome)]) -> anyhow::Result<()> {
    let problems = files.iter().flat_map(|(_, outcome)| match outcome {
        Ok(config) => config.warnings().iter(),
        Err(problems) => problems.iter(),
    });
    let lines: Vec<Line<'_>> = problems.map(Line::of).collect();
    print(&(serde_json::to_string_pretty(&lines)? + "\n"))
}
