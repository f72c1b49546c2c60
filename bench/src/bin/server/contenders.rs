//! The servers that are measured.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The limits and rules of our server.
const LIMITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin/server/limits.yaml");

/// The peer's program, which the Makefile installs.
const PEER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../.tools/throttlecrab/bin/throttlecrab-server");

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerContender {
    /// A server that decides nothing: the cost of the connections and axum.
    Null,
    Peer,
    Ours,
}

impl ServerContender {
    pub(crate) const ALL: [ServerContender; 3] =
        [ServerContender::Null, ServerContender::Peer, ServerContender::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            ServerContender::Null => "null server",
            ServerContender::Peer => "throttlecrab-server",
            ServerContender::Ours => "tollgate",
        }
    }

    /// Returns the command that serves on this port. The null server always sends `answer`.
    pub(crate) fn command(self, port: u16, answer: &str) -> Result<Command> {
        let port = port.to_string();
        let command = match self {
            ServerContender::Null => {
                let mut command = Command::new(this_executable()?);
                command.args(["null", &port, answer]);
                command
            }
            ServerContender::Peer => {
                let mut command =
                    Command::new(existing(Path::new(PEER), "`make bench` installs it")?);
                command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &port]);
                command
            }
            ServerContender::Ours => {
                let build = "run `cargo build --release -p tollgate-server`";
                let mut command =
                    Command::new(existing(&this_executable()?.with_file_name("tollgate"), build)?);
                command.args(["serve", "--config", LIMITS, "--grpc-listen", "127.0.0.1:0"]);
                command.args(["--drain-delay", "0s"]);
                command.args(["--listen", &format!("127.0.0.1:{port}")]);
                command
            }
        };
        Ok(command)
    }
}

fn this_executable() -> Result<PathBuf> {
    env::current_exe().context("cannot find this executable")
}

/// Returns the path if it is a file.
fn existing<'a>(path: &'a Path, remedy: &str) -> Result<&'a Path> {
    ensure!(path.is_file(), "no file {}; {remedy}", path.display());
    Ok(path)
}
