//! The imported files, and positions in them.

use std::io::{self, Read};

use tollgate::rules::Config;
use tollgate::rules::reading::{Position, Report};

/// A file's name and content, or why the content cannot be read.
#[derive(Debug)]
pub struct ImportSource {
    pub(crate) name: String,
    pub(crate) bytes: io::Result<Vec<u8>>,
}

impl ImportSource {
    /// Reads a file. If it is too large to be imported, only its first bytes are read.
    pub fn read(name: impl Into<String>, input: impl Read) -> ImportSource {
        let mut bytes = Vec::new();
        // One byte more shows that the input is too large. OK because the limit is far below 2^64.
        let read = input.take(Config::MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
        ImportSource { name: name.into(), bytes: read.map(|_| bytes) }
    }

    /// Returns a file that cannot be opened, which is reported as an error of that file.
    pub fn unreadable(name: impl Into<String>, error: io::Error) -> ImportSource {
        ImportSource { name: name.into(), bytes: Err(error) }
    }
}

/// A position in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourcePosition {
    pub(crate) file: usize,
    pub(crate) at: Position,
}

impl SourcePosition {
    pub(crate) fn error(self, reports: &mut [Report], message: String, remedy: &str) {
        if let Some(report) = reports.get_mut(self.file) {
            report.error(self.at, message, remedy);
        }
    }

    pub(crate) fn warn(self, reports: &mut [Report], message: String, remedy: &str) {
        if let Some(report) = reports.get_mut(self.file) {
            report.warn(self.at, message, remedy);
        }
    }
}
