//! `tollgate import`: limits and rules from the configuration of others.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tollgate::rules::Problems;
use tollgate_importer::{ImportResult, ImportSource, import};

use crate::cli::{ImportArgs, Origin};
use crate::{print, print_error};

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
    let sources: Vec<ImportSource> = args.files.iter().map(|path| source(path)).collect();
    let ImportResult { yaml, problems } = import(&sources);
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

/// Reads a file; `-` is standard input.
fn source(path: &Path) -> ImportSource {
    if path == Path::new("-") {
        return ImportSource::read(STDIN, io::stdin().lock());
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => ImportSource::read(name, file),
        Err(error) => ImportSource::unreadable(name, error),
    }
}

/// Unlike a look whether it is there first, this cannot write over a file that somebody else makes now.
fn create(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}
