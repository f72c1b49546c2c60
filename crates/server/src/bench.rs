//! Runs a server in the process of a benchmark; not part of the API.

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::logs::ServerLog;
use crate::serve;

/// Does what `tollgate serve` does with these flags, on the current runtime and without a log.
pub async fn serve(flags: &[&str]) -> anyhow::Result<()> {
    let arguments = ["tollgate", "serve"].iter().chain(flags);
    match Cli::try_parse_from(arguments)?.command {
        Some(Command::Serve(args)) => serve::serve(&args, &ServerLog::silent()?, None).await,
        command => anyhow::bail!("expected the command `serve`, got {command:?}"),
    }
}
