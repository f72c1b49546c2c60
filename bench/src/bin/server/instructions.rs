//! The instructions of a server for a request, as callgrind counts them: without the kernel's.

use std::process::Command;

use anyhow::{Context, Result};
use tollgate_bench::callgrind;
use tollgate_bench::client::Client;
use tollgate_bench::process::Process;

use crate::questions::ServerRequest;

const FEW: u32 = 1_000;
const MANY: u32 = 6_000;

/// Returns the instructions of one more request, of requests that are sent one after the other on one connection.
pub(crate) fn per_request(
    command: impl Fn(u16) -> Result<Command>,
    asked: ServerRequest,
) -> Result<f64> {
    let few = count(&command, asked, FEW)?;
    let many = count(&command, asked, MANY)?;
    let extra = many.checked_sub(few).context("more requests took fewer instructions")?;
    Ok(extra as f64 / f64::from(MANY - FEW))
}

fn count(
    command: impl Fn(u16) -> Result<Command>,
    asked: ServerRequest,
    requests: u32,
) -> Result<u64> {
    let server = Process::start(|port| Ok(callgrind::under_valgrind(&command(port)?, &[])))?;
    let mut client = Client::connect(server.address())?;
    for nth in 0..requests {
        client.post(asked.path, &asked.body_for(nth))?;
    }
    drop(client);
    let log = server.terminate()?;
    callgrind::collected(&log).with_context(|| format!("valgrind counted nothing\n{log}"))
}
