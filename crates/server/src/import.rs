//! `tollgate import`: converts the configuration of another rate limiter into limits and rules.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tollgate::rules::Problems;
use tollgate_importer::{ImportResult, ImportSource, import};

use crate::cli::{ImportArgs, ImportFormat};
use crate::{print, print_error};

const STDIN: &str = "standard input";

/// A difference between imported rules and the original configuration. It applies to all rules, so it is printed after
/// each import.
const DIFFERENCE_NOTE: &str = "note: a request that one descriptor refuses is charged to none of them; \
                       envoyproxy/ratelimit charges the others";

/// The problems that are reported for YAML anchors and merge keys, which rules files cannot have. Aliases need no
/// entry, because the anchor of an alias is in the same file.
const YAML_REUSE: [&str; 2] = ["anchors are not supported", "merge keys are not supported"];

const YAML_REUSE_REMEDY: &str = "note: `yq 'explode(.)' config.yaml` (yq 4, the one in Go) replaces anchors, aliases \
                                 and merge keys with their values";

pub(crate) fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    let ImportFormat::EnvoyRatelimit = args.from;
    let sources: Vec<ImportSource> = args.files.iter().map(|path| source(path)).collect();
    let ImportResult { yaml, problems } = import(&sources);
    for problems in problems.iter().filter(|problems| !problems.is_empty()) {
        print_error(&problems.to_string());
    }
    if problems.iter().flat_map(Problems::errors).any(|it| YAML_REUSE.contains(&it.message())) {
        print_error(YAML_REUSE_REMEDY);
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
                true => format!("{}: --force overwrites it", path.display()),
                false => path.display().to_string(),
            };
            written.with_context(remedy)?;
        }
    }
    print_error(DIFFERENCE_NOTE);
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

/// Writes a new file. Fails if the file exists, even if another process creates it at the same moment.
fn create(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}
