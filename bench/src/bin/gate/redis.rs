//! The scripts on a real Redis: the instructions that the server runs for one more operation.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tollgate::{Limit, OnFailure, Redis, Scope};
use tollgate_bench::callgrind::{collected, under_valgrind};
use tollgate_bench::process::Process;

const LIMIT: &str = "token-bucket capacity=1000000 refill=1000000/s";

const FEW: u32 = 500;
const MANY: u32 = 3_500;

/// An operation on a real Redis that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerOperation {
    /// A check, which the plain script decides.
    Check,
    /// A reservation and its settlement: two calls of the script with the twin of holds.
    ReserveAndSettle,
}

impl ServerOperation {
    pub(crate) const ALL: [ServerOperation; 2] =
        [ServerOperation::Check, ServerOperation::ReserveAndSettle];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            ServerOperation::Check => "check on Redis, token bucket: the server's share",
            ServerOperation::ReserveAndSettle => {
                "reservation and settlement on Redis, token bucket: the server's share"
            }
        }
    }

    /// Returns the instructions of one more operation. The instructions of start-up cancel out.
    pub(crate) fn instructions(self) -> Result<u64> {
        let (few, many) = (count(self, FEW)?, count(self, MANY)?);
        let extra = many.checked_sub(few).context("more operations took fewer instructions")?;
        Ok(extra / u64::from(MANY - FEW))
    }

    /// Runs the operation once. It must be admitted.
    async fn run(self, scope: &Scope) -> Result<()> {
        match self {
            ServerOperation::Check => {
                ensure!(scope.check("user:42").await?.is_allowed(), "a check was refused");
            }
            ServerOperation::ReserveAndSettle => {
                let reserved = scope.reserve("user:42").cost(10).await?;
                let hold = reserved.into_hold().context("a reservation was refused")?;
                ensure!(hold.settle(1).await?.charged_units() == 1, "a settlement had no effect");
            }
        }
        Ok(())
    }
}

/// Returns the instructions of a server that runs this number of operations.
fn count(operation: ServerOperation, times: u32) -> Result<u64> {
    let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
    let server = Process::start(|port| Ok(under_valgrind(&command(&directory, port), &[])))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let limiter = Redis::at(&format!("redis://{}", server.address()))?
            .on_failure(OnFailure::Closed)
            .deadline(std::time::Duration::from_secs(30))
            .build()?;
        let scope = limiter.scope("gate", LIMIT.parse::<Limit>()?)?;
        for _ in 0..times {
            operation.run(&scope).await?;
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
