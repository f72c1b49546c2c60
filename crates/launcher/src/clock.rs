//! A clock of a server's own, with libfaketime.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Flavour, LaunchError, Server, wait};

const LIBRARY: &str = "faketime/libfaketime.so.1";
const OFFSET: &str = "clock";

/// How old the time that a server reports may be.
const MAX_AGE_US: i64 = 200_000;

impl Server {
    /// Sets the server's clock to this many seconds ahead of the machine's, or behind it, while it runs, and
    /// waits until the server uses the new time.
    pub fn set_clock_offset(&self, seconds: i64) -> Result<(), LaunchError> {
        if !self.has_clock() {
            return Err(LaunchError::ClockNotOwn { addr: self.addr() });
        }
        set(self.directory.path(), seconds)?;
        if !self.is_live() {
            return Ok(());
        }
        // The server reads its clock from time to time, and uses the last value until then.
        wait::until("a server had looked at its clock", || {
            let from_us = machine_us();
            let (whole, micros): (i64, i64) = self.ask(&redis::cmd("TIME"))?;
            let shown_us = (whole - seconds) * 1_000_000 + micros;
            Ok((from_us - MAX_AGE_US..=machine_us()).contains(&shown_us))
        })
    }
}

/// Returns the time since the Unix epoch.
fn machine_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // OK because it fits for another 290,000 years.
    now.as_micros() as i64
}

/// Returns the environment that makes a server read the file of [`set`] whenever it needs the time.
pub(crate) fn environment(
    flavour: Flavour,
    directory: &Path,
) -> Result<Vec<(&'static str, OsString)>, LaunchError> {
    if flavour == Flavour::Redis {
        return Err(LaunchError::ClockUnsupported { flavour });
    }
    let library = library().ok_or(LaunchError::ClockNotFound)?;
    Ok(vec![
        ("LD_PRELOAD", library.into()),
        ("FAKETIME_TIMESTAMP_FILE", directory.join(OFFSET).into()),
        ("FAKETIME_NO_CACHE", "1".into()),
        // Timeouts use the monotonic clock, which must not change with the time of day.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ])
}

/// Writes the offset. The file is renamed into place, because the server reads it at any time and must not
/// find half of it.
pub(crate) fn set(directory: &Path, seconds: i64) -> io::Result<()> {
    let next = directory.join("clock.next");
    fs::write(&next, format!("{seconds:+}\n"))?;
    fs::rename(next, directory.join(OFFSET))
}

/// Removes the shared memory that libfaketime leaves behind when its process is killed.
pub(crate) fn clean_up(environment: &[(&'static str, OsString)], pid: u32) {
    if !environment.is_empty() {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
        }
    }
}

/// Finds the library. Debian keeps it in a directory for each architecture.
fn library() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib").ok()?;
    entries.flatten().map(|entry| entry.path().join(LIBRARY)).find(|path| path.is_file())
}
