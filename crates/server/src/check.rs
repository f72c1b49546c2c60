//! `tollgate check`: asks a server.

use std::process::ExitCode;

use crate::cli::CheckArgs;

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{args:?}")
}
