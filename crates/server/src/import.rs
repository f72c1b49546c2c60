//! `tollgate import`: limits and rules from the configuration of others.
//!
//! - `read`: a file of envoyproxy/ratelimit as a tree of descriptors, with everything that is wrong with it;
//!   `unit`: what limits count in
//! - `domain`: the trees of a domain as one
//! - `siblings`: which values of an attribute are left for a descriptor, by those beside it
//! - `rules`: a rule for each limit of the tree; `names`: what they are called; `replacing`: which
//!   of them replace others
//! - `write`: the same as YAML

mod domain;
mod names;
mod read;
mod replacing;
mod rules;
mod siblings;
#[cfg(test)]
mod tests;
mod unit;
mod write;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tollgate::rules::reading::{Position, Report};
use tollgate::rules::{Config, Problems};

use crate::cli::{ImportArgs, Origin};
use crate::{print, print_error};
use domain::Domain;

const STDIN: &str = "standard input";

/// What holds for every rule, wherever it comes from.
const DIFFERS: &str = "note: a request that one descriptor refuses is charged to none of them; \
                       envoyproxy/ratelimit charges the others";

/// What YAML can write once for several places, and rules cannot. An alias has its anchor in the same file.
const REUSED: [&str; 2] = ["anchors are not supported", "merge keys are not supported"];

const WRITES_OUT: &str = "note: `yq 'explode(.)' config.yaml` (yq 4, the one in Go) writes out what \
                          anchors, aliases and merge keys stand for";

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let Origin::EnvoyRatelimit = args.from;
    let sources: Vec<Source> = args.files.iter().map(|path| Source::read(path)).collect();
    let Imported { yaml, problems } = import(&sources);
    for problems in problems.iter().filter(|problems| !problems.is_empty()) {
        print_error(&problems.to_string());
    }
    if problems.iter().flat_map(Problems::errors).any(|it| REUSED.contains(&it.message())) {
        print_error(WRITES_OUT);
    }
    let has_warnings = problems.iter().any(|problems| problems.warnings().next().is_some());
    let Some(yaml) = yaml.filter(|_| !(args.strict && has_warnings)) else {
        return Ok(ExitCode::FAILURE);
    };
    match &args.output {
        None => print(&yaml)?,
        Some(path) => {
            let written = if args.force { fs::write(path, yaml) } else { create(path, &yaml) };
            let remedy = || match path.exists() && !args.force {
                true => format!("{}: --force writes over it", path.display()),
                false => path.display().to_string(),
            };
            written.with_context(remedy)?;
        }
    }
    print_error(DIFFERS);
    Ok(ExitCode::SUCCESS)
}

/// Unlike a look whether it is there first, this cannot write over a file that somebody else makes now.
fn create(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

/// A file by its name, and what is in it.
struct Source {
    name: String,
    bytes: io::Result<Vec<u8>>,
}

impl Source {
    fn read(path: &Path) -> Source {
        match path == Path::new("-") {
            true => Source { name: STDIN.into(), bytes: bounded(io::stdin().lock()) },
            false => {
                let bytes = File::open(path).and_then(bounded);
                Source { name: path.display().to_string(), bytes }
            }
        }
    }
}

fn bounded(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more tells an input that is too large. OK because the limit is far below 2^64.
    input.take(Config::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The rules, if nothing is wrong with the files, and the problems of each.
struct Imported {
    yaml: Option<String>,
    problems: Vec<Problems>,
}

fn import(sources: &[Source]) -> Imported {
    let mut reports: Vec<Report> = sources.iter().map(|source| Report::new(&source.name)).collect();
    let mut domains: Vec<Domain> = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        if let Some(root) = read::file(file, source, &mut reports) {
            domain::add(&mut domains, root, sources, &mut reports);
        }
    }
    let rules = rules::make(&domains, &mut reports);
    // Only what can be used is worth a file.
    let is_whole = reports.iter().all(|report| report.errors() == 0);
    let yaml = is_whole.then(|| write::yaml(&domains, &rules, sources));
    let yaml = yaml.and_then(|yaml| checked(yaml, &mut reports));
    Imported { yaml, problems: reports.into_iter().map(|report| report.with(None)).collect() }
}

/// The rules, if they are some that `tollgate validate` takes: they may be too many, or too large.
fn checked(yaml: Option<String>, reports: &mut [Report]) -> Option<String> {
    let problem = match yaml {
        None => format!("the rules made of it are larger than {} MiB", Config::MAX_BYTES >> 20),
        Some(yaml) => match Config::parse("rules", &yaml) {
            Ok(_) => return Some(yaml),
            Err(problems) => {
                let first = problems.errors().next().map(|problem| problem.message().to_owned());
                format!("the rules made of it are not valid: {}", first.unwrap_or_default())
            }
        },
    };
    if let Some(report) = reports.first_mut() {
        report.error(Position::START, problem, "import fewer descriptors at a time");
    }
    None
}

/// A place in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: usize,
    at: Position,
}

impl Place {
    fn error(self, reports: &mut [Report], message: String, remedy: &str) {
        if let Some(report) = reports.get_mut(self.file) {
            report.error(self.at, message, remedy);
        }
    }

    fn warn(self, reports: &mut [Report], message: String, remedy: &str) {
        if let Some(report) = reports.get_mut(self.file) {
            report.warn(self.at, message, remedy);
        }
    }
}
