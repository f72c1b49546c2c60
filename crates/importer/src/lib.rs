//! Reads the configuration of other rate limiters and writes Tollgate's limits and rules.
//!
//! [`import`] takes the files of one server and returns one YAML file, or what is wrong with them. It knows one format,
//! that of envoyproxy/ratelimit.
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

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tollgate::rules::reading::{Position, Report};
use tollgate::rules::{Config, Problems};

use domain::Domain;

const STDIN: &str = "standard input";

/// A file by its name, and what is in it.
#[derive(Debug)]
pub struct Source {
    name: String,
    bytes: io::Result<Vec<u8>>,
}

impl Source {
    /// Reads a file; `-` is standard input.
    pub fn read(path: &Path) -> Source {
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
#[derive(Debug)]
pub struct Imported {
    /// The limits and rules as YAML; `None` if there is an error.
    pub yaml: Option<String>,
    /// The errors and warnings of each file, in the order of the files.
    pub problems: Vec<Problems>,
}

/// Makes limits and rules from all the files of one server.
pub fn import(sources: &[Source]) -> Imported {
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
