//! The flags of `tollgate import`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Where the rules go, instead of standard output; a file that is there stays as it is
    #[arg(long, env = "TOLLGATE_OUTPUT", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Writes over a file that is there
    #[arg(long, env = "TOLLGATE_FORCE", value_parser = BoolishValueParser::new())]
    pub(crate) force: bool,

    /// What has no equivalent is an error: nothing is written then
    #[arg(long, env = "TOLLGATE_STRICT", value_parser = BoolishValueParser::new())]
    pub(crate) strict: bool,

    /// What the files are written for
    #[arg(value_enum)]
    pub(crate) from: Origin,

    /// The files, all those of one server; `-` is standard input
    #[arg(required = true, value_name = "CONFIG")]
    pub(crate) files: Vec<PathBuf>,
}

/// What rules are made from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Origin {
    /// The descriptors of envoyproxy/ratelimit
    EnvoyRatelimit,
}

pub(super) const IMPORT_EXAMPLE: &str = r#"Example:    tollgate import envoy-ratelimit config/*.yaml > limits.yaml
Output:     a file of limits and rules; what differs or has no equivalent on standard error
Exit code:  0 imported, warnings or not; 1 a file is wrong, or has warnings and --strict is given;
            2 a bad flag, or the output cannot be written"#;
