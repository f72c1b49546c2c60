//! The errors of launching and controlling servers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::Flavour;

/// The state of the servers when a wait timed out, as lines of text; empty for a single server.
#[derive(Clone, Default)]
pub struct Scene(pub(crate) String);

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the text unescaped, because `unwrap` prints the error with `Debug`, and escaped lines are hard to read.
impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a server did not start, or did not do what the launcher required.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No such server is installed.
    #[error("no {flavour} server found; run `make servers`, or set {variable} to its path")]
    NotFound {
        /// The kind of server.
        flavour: Flavour,
        /// The environment variable that names the program.
        variable: &'static str,
    },
    /// The program could not be run.
    #[error("{} could not be run", binary.display())]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The server ended before it answered.
    #[error("{} ended with {status} before it answered; its log:\n{log}", binary.display())]
    Exited {
        /// The program.
        binary: PathBuf,
        /// Its exit status.
        status: ExitStatus,
        /// Its log.
        log: String,
    },
    /// The server runs and does not answer.
    #[error("{} did not answer within {waited:?}; its log:\n{log}", binary.display())]
    Silent {
        /// The program.
        binary: PathBuf,
        /// How long the launcher waited.
        waited: Duration,
        /// Its log.
        log: String,
    },
    /// The directory, configuration or port of a server could not be made.
    #[error("could not prepare a server's directory or port")]
    Prepare(#[from] io::Error),
    /// The server did not answer a command, or refused it.
    #[error("`{command}` failed at {addr}")]
    CommandFailed {
        /// The server's address.
        addr: SocketAddr,
        /// The command, without its arguments.
        command: String,
        /// The cause.
        source: redis::RedisError,
    },
    /// An expected condition did not become true.
    #[error("timed out after {waited:?} waiting until {what}{scene}")]
    TimedOut {
        /// The condition.
        what: String,
        /// How long the launcher waited.
        waited: Duration,
        /// The state of the servers when the wait timed out.
        scene: Scene,
        /// The last error while the condition was checked, if there was one.
        #[source]
        last: Option<Box<LaunchError>>,
    },
    /// Redis as Debian builds it hangs in libfaketime.
    #[error(
        "a {flavour} server cannot have its own clock, because it hangs in libfaketime; use valkey"
    )]
    ClockUnsupported {
        /// The kind of server.
        flavour: Flavour,
    },
    /// libfaketime is not installed.
    #[error("libfaketime not found; a server needs it to have its own clock; run `make servers`")]
    ClockNotFound,
    /// The server uses the machine's clock.
    #[error("the server at {addr} does not have its own clock; start it with `clock_offset`")]
    ClockNotOwn {
        /// The server's address.
        addr: SocketAddr,
    },
    /// No node of the cluster serves a slot.
    #[error("no live node knows an owner of slot {slot}")]
    SlotUnowned {
        /// The slot.
        slot: u16,
    },
    /// No sentinel was started, or all of them are down or frozen.
    #[error("no live sentinel")]
    NoSentinels,
    /// A certificate could not be made.
    // Certificates need the feature `tls`.
    #[cfg(feature = "tls")]
    #[error("could not make a certificate")]
    Certificate(#[from] rcgen::Error),
}
