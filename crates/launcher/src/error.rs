//! Why a server did not start, or did not do as it was told.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::Flavour;

/// What there was to be seen where something did not happen; nothing, or lines of text.
#[derive(Clone, Default)]
pub struct Scene(pub(crate) String);

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As it is, for those who unwrap: escaped, its lines could not be read.
impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a server did not start, or did not do as it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No such server is installed.
    #[error("no {flavour} server found; run `make servers`, or set {variable} to one")]
    NotFound {
        /// The server looked for.
        flavour: Flavour,
        /// The environment variable that names one.
        variable: &'static str,
    },
    /// The program could not be run.
    #[error("{} could not be run", binary.display())]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It ended before it answered.
    #[error("{} ended with {status} before it answered; its log:\n{log}", binary.display())]
    Exited {
        /// The program.
        binary: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        log: String,
    },
    /// It runs and does not answer.
    #[error("{} did not answer within {waited:?}; its log:\n{log}", binary.display())]
    Silent {
        /// The program.
        binary: PathBuf,
        /// How long it had.
        waited: Duration,
        /// What it said.
        log: String,
    },
    /// Its directory, configuration or port could not be made.
    #[error("could not prepare a server's directory or port")]
    Prepare(#[from] io::Error),
    /// It did not answer a command, or refused it.
    #[error("`{command}` failed at {addr}")]
    Asked {
        /// Where it listens.
        addr: SocketAddr,
        /// The command, without its arguments.
        command: String,
        /// What went wrong.
        source: redis::RedisError,
    },
    /// Something that was waited for did not happen.
    #[error("waited {waited:?} in vain until {what}{scene}")]
    InVain {
        /// What was waited for.
        what: String,
        /// For how long.
        waited: Duration,
        /// What there was to be seen instead.
        scene: Scene,
        /// What went wrong the last time it was looked for, if anything did.
        #[source]
        last: Option<Box<LaunchError>>,
    },
    /// Redis as Debian builds it hangs in libfaketime.
    #[error("a {flavour} server cannot have a clock of its own: it hangs; use valkey")]
    ClockUnsupported {
        /// The server it was asked for.
        flavour: Flavour,
    },
    /// There is no libfaketime.
    #[error("libfaketime not found, which a clock of its own needs; run `make servers`")]
    ClockNotFound,
    /// Its clock is the machine's.
    #[error("the server at {addr} has no clock of its own; start it with `clock_offset`")]
    ClockNotOwn {
        /// Where it listens.
        addr: SocketAddr,
    },
    /// No node of the cluster serves a slot.
    #[error("no live node knows an owner of slot {slot}")]
    SlotUnowned {
        /// The slot.
        slot: u16,
    },
    /// Every sentinel is down or frozen, or there never was one.
    #[error("there is no live sentinel to ask")]
    NoSentinels,
    /// A certificate could not be made.
    // Certificates need the feature `tls`.
    #[cfg(feature = "tls")]
    #[error("could not make a certificate")]
    Certificate(#[from] rcgen::Error),
}
