//! The rate limit services that are measured.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The rules of our server.
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/rls/limits.yaml");

/// A rate limit service that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RlsContender {
    /// A service that decides nothing: the cost of HTTP/2 and tonic.
    Null,
    Ours,
}

impl RlsContender {
    pub(crate) const ALL: [RlsContender; 2] = [RlsContender::Null, RlsContender::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            RlsContender::Null => "null service",
            RlsContender::Ours => "tollgate",
        }
    }

    /// Returns the command that serves on this port with one thread.
    pub(crate) fn command(self, port: u16) -> Result<Command> {
        let this = env::current_exe().context("cannot find this executable")?;
        let mut command = match self {
            RlsContender::Null => {
                let mut command = Command::new(this);
                command.args(["null", &port.to_string()]);
                command
            }
            RlsContender::Ours => {
                let path = this.with_file_name("tollgate");
                let remedy = "run `cargo build --release -p tollgate-server`";
                ensure!(path.is_file(), "no file {}; {remedy}", path.display());
                let mut command = Command::new(path);
                command.args(["serve", "--config", LIMITS, "--listen", "127.0.0.1:0"]);
                command.args(["--drain-delay", "0s"]);
                command.args(["--grpc-listen", &format!("127.0.0.1:{port}")]);
                command
            }
        };
        command.env("TOKIO_WORKER_THREADS", "1");
        Ok(command)
    }
}
