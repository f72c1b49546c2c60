//! The services that are measured.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The rules that ours has.
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/rls/limits.yaml");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Decides nothing: what HTTP/2 and tonic take.
    Null,
    Ours,
}

impl Contender {
    pub(crate) const ALL: [Contender; 2] = [Contender::Null, Contender::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Contender::Null => "null service",
            Contender::Ours => "tollgate",
        }
    }

    /// Listens on that port, with one thread.
    pub(crate) fn command(self, port: u16) -> Result<Command> {
        let this = env::current_exe().context("cannot find this executable")?;
        let mut command = match self {
            Contender::Null => {
                let mut command = Command::new(this);
                command.args(["null", &port.to_string()]);
                command
            }
            Contender::Ours => {
                let path = this.with_file_name("tollgate");
                let remedy = "cargo build --release -p tollgate-server makes it";
                ensure!(path.is_file(), "there is no {}; {remedy}", path.display());
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
