//! `tollgate validate`: what is wrong with files of limits and rules.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tollgate::rules::{Config, Problem, Problems};

use crate::cli::{Format, ValidateArgs};
use crate::{print, print_error};

const STDIN: &str = "standard input";

pub(crate) fn run(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let read = |path: &PathBuf| read(path).and_then(|config| with_domains(path, config, args));
    let files: Vec<_> = args.files.iter().map(|path| (path, read(path))).collect();
    match args.format {
        Format::Human => print_for_people(&files)?,
        Format::Json => print_json(&files)?,
    }
    let passes = |outcome: &Outcome| match outcome {
        Ok(config) => !args.strict || config.warnings().is_empty(),
        Err(_) => false,
    };
    let pass = files.iter().all(|(_, outcome)| passes(outcome));
    Ok(if pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type Outcome = Result<Config, Problems>;

fn read(path: &Path) -> Outcome {
    match is_stdin(path) {
        true => Config::read(STDIN, io::stdin().lock(), Path::new("")),
        false => load(path),
    }
}

/// Refuses a configuration without rules for a required domain.
fn with_domains(path: &Path, config: Config, args: &ValidateArgs) -> Outcome {
    let there = config.domains();
    let missing = args.required_domains.iter().filter(|name| !there.contains(&name.as_str()));
    let missing: Vec<_> = missing.collect();
    if missing.is_empty() {
        return Ok(config);
    }
    let problems = missing.into_iter().fold(config.warnings().clone(), |problems, domain| {
        let message = format!("no rules for domain `{domain}`, which --require-domain names");
        problems.with_error(&name_of(path), message, "add rules for it, or leave the flag out")
    });
    Err(problems)
}

/// What a file says, which may be the end of a pipe, as in `tollgate validate <(generate)`.
pub(crate) fn load(path: &Path) -> Outcome {
    let is_stream = fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir());
    match is_stream.then(|| File::open(path)) {
        Some(Ok(input)) => {
            let directory = path.parent().unwrap_or(Path::new(""));
            Config::read(&path.display().to_string(), input, directory)
        }
        _ => Config::load(path),
    }
}

/// Returns the name that messages use for a file.
fn name_of(path: &Path) -> String {
    if is_stdin(path) { STDIN.to_owned() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn print_for_people(files: &[(&PathBuf, Outcome)]) -> anyhow::Result<()> {
    for (path, outcome) in files {
        match outcome {
            Ok(config) => {
                if !config.warnings().is_empty() {
                    print_error(&config.warnings().to_string());
                }
                print(&format!("{}: {}\n", name_of(path), contents(config)))?;
            }
            Err(problems) => print_error(&problems.to_string()),
        }
    }
    Ok(())
}

/// `6 limits, 3 rules, 4 tests passed`.
fn contents(config: &Config) -> String {
    let (limits, rules) = (counted(config.limits(), "limit"), counted(config.rules(), "rule"));
    match config.tests() {
        0 => format!("{limits}, {rules}"),
        tests => format!("{limits}, {rules}, {} passed", counted(tests, "test")),
    }
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
