//! The errors of checking a workspace.

use std::io;
use std::path::PathBuf;

/// Why a workspace could not be checked. A workspace that breaks a rule is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// A source file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A source file is not valid Rust.
    #[error("{}:{line}: not valid Rust", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line at which parsing stopped, from 1.
        line: usize,
        /// The reason.
        source: syn::Error,
    },
    /// A module is declared and has no file.
    #[error("{}: no file found for `mod {name};`", path.display())]
    NoFile {
        /// The file with the declaration.
        path: PathBuf,
        /// The name of the module.
        name: String,
    },
    /// No crate has this name.
    #[error("`{0}` is neither a directory with a Cargo.toml nor a crate of this workspace")]
    NoCrate(String),
    /// `cargo metadata` could not be started.
    #[error("cannot run `cargo metadata`")]
    Cargo(#[source] io::Error),
    /// `cargo metadata` failed.
    #[error("`cargo metadata` failed: {0}")]
    Metadata(String),
    /// The output of `cargo metadata` has an unexpected format.
    #[error("unexpected output of `cargo metadata`: no `{0}`")]
    Format(&'static str),
    /// The output of `cargo metadata` is not JSON.
    #[error("`cargo metadata` did not print JSON")]
    Json(#[source] serde_json::Error),
}
