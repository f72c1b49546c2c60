//! Why a server did not start.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::Flavour;

/// Why a server did not start.
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
    /// A certificate could not be made.
    #[cfg(feature = "tls")]
    #[error("could not make a certificate")]
    Certificate(#[from] rcgen::Error),
}
