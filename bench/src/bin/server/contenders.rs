//! The servers that are measured.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The limits and rules that ours has.
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/server/limits.yaml");

/// Where the Makefile puts the peer.
const PEER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../.tools/throttlecrab/bin/throttlecrab-server");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Decides nothing: what the connections and axum take.
    Null,
    Peer,
    Ours,
}

impl Contender {
    pub(crate) const ALL: [Contender; 3] = [Contender::Null, Contender::Peer, Contender::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Contender::Null => "null server",
            Contender::Peer => "throttlecrab-server",
            Contender::Ours => "tollgate",
        }
    }

    /// Listens on that port. The answer is what the null server says.
    pub(crate) fn command(self, port: u16, answer: &str) -> Result<Command> {
        let port = port.to_string();
        let command = match self {
            Contender::Null => {
                let mut command = Command::new(this()?);
                command.args(["null", &port, answer]);
                command
            }
            Contender::Peer => {
                let mut command = Command::new(found(Path::new(PEER), "make bench installs it")?);
                command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &port]);
                command
            }
            Contender::Ours => {
                let build = "cargo build --release -p tollgate-server makes it";
                let mut command = Command::new(found(&this()?.with_file_name("tollgate"), build)?);
                command.args(["serve", "--config", LIMITS, "--grpc-listen", "127.0.0.1:0"]);
                command.args(["--drain-delay", "0s"]);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command
            }
        };
        Ok(command)
    }
}

fn this() -> Result<PathBuf> {
    env::current_exe().context("cannot find this executable")
}

fn found<'a>(path: &'a Path, remedy: &str) -> Result<&'a Path> {
    ensure!(path.is_file(), "there is no {}; {remedy}", path.display());
    Ok(path)
}
