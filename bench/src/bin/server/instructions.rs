//! Counts the instructions of a server for a request with callgrind. The kernel's instructions are not included.

use std::process::Command;

use anyhow::{Context, Result};
use tollgate_bench::callgrind;
use tollgate_bench::http_connection::HttpConnection;
use tollgate_bench::process::Process;

use crate::request_kinds::ServerRequest;

const FEW: u32 = 1_000;
const MANY: u32 = 6_000;

/// Returns the instructions of one more request. Requests are sent one after the other on one connection.
pub(crate) fn per_request(
    command: impl Fn(u16) -> Result<Command>,
    request: ServerRequest,
) -> Result<f64> {
    let few = count(&command, request, FEW)?;
    let many = count(&command, request, MANY)?;
    let extra = many.checked_sub(few).context("more requests took fewer instructions")?;
    Ok(extra as f64 / f64::from(MANY - FEW))
}

fn count(
    command: impl Fn(u16) -> Result<Command>,
    request: ServerRequest,
    requests: u32,
) -> Result<u64> {
    let server = Process::start(|port| Ok(callgrind::under_valgrind(&command(port)?, &[])))?;
    let mut connection = HttpConnection::connect(server.address())?;
    for nth in 0..requests {
        connection.post(request.path, &request.body_for(nth))?;
    }
    drop(connection);
    let log = server.terminate()?;
    callgrind::collected(&log).with_context(|| format!("valgrind counted nothing\n{log}"))
}
