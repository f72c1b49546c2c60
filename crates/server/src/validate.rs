//! `tollgate validate`: reports the problems of files of limits and rules.

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
        Format::Human => print_text(&files)?,
        Format::Json => print_json(&files)?,
    }
    let passes = |outcome: &ConfigResult| match outcome {
        Ok(config) => !args.strict || config.warnings().is_empty(),
        Err(_) => false,
    };
    let pass = files.iter().all(|(_, outcome)| passes(outcome));
    Ok(if pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

type ConfigResult = Result<Config, Problems>;

fn read(path: &Path) -> ConfigResult {
    match is_stdin(path) {
        true => Config::read(STDIN, io::stdin().lock(), Path::new("")),
        false => load(path),
    }
}

/// Refuses a configuration without rules for a required domain.
fn with_domains(path: &Path, config: Config, args: &ValidateArgs) -> ConfigResult {
    let domains = config.domains();
    let missing = args.required_domains.iter().filter(|name| !domains.contains(&name.as_str()));
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

/// Reads a file. It may also be the end of a pipe, as in `tollgate validate <(generate)`.
pub(crate) fn load(path: &Path) -> ConfigResult {
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

fn print_text(files: &[(&PathBuf, ConfigResult)]) -> anyhow::Result<()> {
    for (path, outcome) in files {
        match outcome {
            Ok(config) => {
                if !config.warnings().is_empty() {
                    print_error(&config.warnings().to_string());
                }
                config.notes().for_each(|note| print_error(&note.to_string()));
                print(&format!("{}: {}\n", name_of(path), summary(config)))?;
            }
            Err(problems) => print_error(&problems.to_string()),
        }
    }
    Ok(())
}

/// Summarizes a valid file: `6 limits, 3 rules, 4 tests passed`.
fn summary(config: &Config) -> String {
    let (limits, rules) =
        (count_text(config.limits(), "limit"), count_text(config.rules(), "rule"));
    match config.tests() {
        0 => format!("{limits}, {rules}"),
        tests => format!("{limits}, {rules}, {} passed", count_text(tests, "test")),
    }
}

fn count_text(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// A problem, as printed with `--format json`.
#[derive(Serialize)]
struct PrintedProblem<'p> {
    file: &'p str,
    line: Option<u32>,
    column: Option<u32>,
    severity: String,
    message: &'p str,
    remedy: &'p str,
}

impl<'p> PrintedProblem<'p> {
    fn of(problem: &'p Problem) -> PrintedProblem<'p> {
        PrintedProblem {
            file: problem.file(),
            line: problem.line(),
            column: problem.column(),
            severity: problem.severity().to_string(),
            message: problem.message(),
            remedy: problem.remedy(),
        }
    }
}

fn print_json(files: &[(&PathBuf, ConfigResult)]) -> anyhow::Result<()> {
    let problems = files.iter().flat_map(|(_, outcome)| match outcome {
        Ok(config) => config.warnings().iter().chain(config.warnings().notes()),
        Err(problems) => problems.iter().chain(problems.notes()),
    });
    let problems: Vec<_> = problems.map(PrintedProblem::of).collect();
    print(&(serde_json::to_string_pretty(&problems)? + "\n"))
}
