//! Reads the configuration of other rate limiters and writes Tollgate's limits and rules.
//!
//! [`import`] takes the files of one server and returns one YAML file, or the errors in them. It knows one
//! format, the one of envoyproxy/ratelimit.
//!
//! ```
//! # use tollgate_importer::{ImportSource, import};
//! let config = "domain: api\ndescriptors: [{key: user, rate_limit: {unit: second, requests_per_unit: 5}}]";
//! let imported = import(&[ImportSource::read("config.yaml", config.as_bytes())]);
//! assert!(imported.yaml.is_some_and(|yaml| yaml.contains("limit: 5, window: 1s")));
//! ```
//!
//! - `source`: the files, and positions in them
//! - `read`: reads a file of envoyproxy/ratelimit as a tree of descriptors, and reports every error in it;
//!   `unit`: its units of time
//! - `domain`: merges the trees of one domain
//! - `siblings`: the values of an attribute that a descriptor leaves to its siblings
//! - `rules`: makes a rule of each limit in the tree; `names`: names the rules; `replacing`: finds the rules
//!   that replace others
//! - `write`: writes limits and rules as YAML

mod domain;
mod names;
mod read;
mod replacing;
mod rules;
mod siblings;
mod source;
#[cfg(test)]
mod tests;
mod unit;
mod write;

use tollgate::rules::reading::{Position, Report};
use tollgate::rules::{Config, Problems};

use domain::ImportedDomain;
pub use source::ImportSource;

/// The result of an import.
#[derive(Debug)]
pub struct ImportResult {
    /// The limits and rules as YAML; `None` if there is an error.
    pub yaml: Option<String>,
    /// The errors and warnings of each file, in the order of the files.
    pub problems: Vec<Problems>,
}

/// Makes limits and rules from all the files of one server.
pub fn import(sources: &[ImportSource]) -> ImportResult {
    let mut reports: Vec<Report> = sources.iter().map(|source| Report::new(&source.name)).collect();
    let mut domains: Vec<ImportedDomain> = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        if let Some(root) = read::file(file, source, &mut reports) {
            domain::add(&mut domains, root, sources, &mut reports);
        }
    }
    let rules = rules::make(&domains, &mut reports);
    // A file is written only if there are no errors.
    let is_whole = reports.iter().all(|report| report.errors() == 0);
    let yaml = is_whole.then(|| write::yaml(&domains, &rules, sources));
    let yaml = yaml.and_then(|yaml| checked(yaml, &mut reports));
    ImportResult { yaml, problems: reports.into_iter().map(|report| report.with(None)).collect() }
}

/// Returns the rules if `tollgate validate` accepts them: they may be too many or too large.
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
