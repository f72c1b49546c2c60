//! The plain script on a real Redis: the instructions that the server runs for one more check.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tollgate::{Limit, OnFailure, Redis};
use tollgate_bench::callgrind::{collected, under_valgrind};
use tollgate_bench::process::Process;

pub(crate) const NAME: &str = "check on Redis, token bucket: the server's share";

const LIMIT: &str = "token-bucket capacity=1000000 refill=1000000/s";

const FEW: u32 = 500;
const MANY: u32 = 3_500;

/// Returns the instructions of one more check. The instructions of start-up cancel out.
pub(crate) fn instructions() -> Result<u64> {
    let (few, many) = (count(FEW)?, count(MANY)?);
    let extra = many.checked_sub(few).context("more checks took fewer instructions")?;
    Ok(extra / u64::from(MANY - FEW))
}

/// Returns the instructions of a server that runs this number of checks.
fn count(checks: u32) -> Result<u64> {
    let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
    let server = Process::start(|port| Ok(under_valgrind(&command(&directory, port), &[])))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let limiter = Redis::at(&format!("redis://{}", server.address()))?
            .on_failure(OnFailure::Closed)
            .deadline(std::time::Duration::from_secs(30))
            .build()?;
        let scope = limiter.scope("gate", LIMIT.parse::<Limit>()?)?;
        for _ in 0..checks {
            ensure!(scope.check("user:42").await?.is_allowed(), "a check was refused");
        }
        anyhow::Ok(())
    })?;
    let log = server.terminate()?;
    collected(&log).with_context(|| format!("valgrind counted nothing\n{log}"))
}

/// Returns the command for a Redis with as few background tasks as possible.
fn command(directory: &TempDir, port: u16) -> Command {
    let mut command = Command::new("redis-server");
    let (port, directory) = (port.to_string(), directory.path().to_string_lossy().into_owned());
    command.args(["--port", &port, "--dir", &directory, "--save", "", "--hz", "1"]);
    command
}
