//! The flags of `tollgate import`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file to write, instead of standard output; an existing file is not overwritten
    #[arg(long, env = "TOLLGATE_OUTPUT", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Overwrite the output file if it exists
    #[arg(long, env = "TOLLGATE_FORCE", value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,

    /// Fail, and write nothing, if part of the configuration has no equivalent
    #[arg(long, env = "TOLLGATE_STRICT", value_parser = BoolishValueParser::new())]
    pub(crate) strict: bool,

    /// The rate limiter that the files configure
    #[arg(value_enum)]
    pub(crate) from: ImportFormat,

    /// All configuration files of one server; `-` is standard input
    #[arg(required = true, value_name = "CONFIG")]
    pub(crate) files: Vec<PathBuf>,
}

/// The format of configuration files that can be imported.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ImportFormat {
    /// envoyproxy/ratelimit, with its files of descriptors
    EnvoyRatelimit,
}

pub(super) const IMPORT_EXAMPLE: &str = r#"Example:    tollgate import envoy-ratelimit config/*.yaml > limits.yaml
Output:     a file of limits and rules; on standard error, what differs or has no equivalent
Exit code:  0 imported, perhaps with warnings; 1 a file is not valid, or --strict and it has
            warnings; 2 a bad flag, or the output cannot be written"#;
