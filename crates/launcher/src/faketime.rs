//! Starts a server under libfaketime, which shifts the time that the server reads.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Flavour, LaunchError};

const LIBRARY: &str = "faketime/libfaketime.so.1";
const OFFSET_FILE: &str = "clock";

/// Returns the environment that makes a server read the file of [`write_offset`] whenever it needs the time.
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
        ("FAKETIME_TIMESTAMP_FILE", directory.join(OFFSET_FILE).into()),
        ("FAKETIME_NO_CACHE", "1".into()),
        // Timeouts use the monotonic clock, which must not change with the time of day.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ])
}

/// Writes the offset. The file is renamed into place, because the server reads it at any time and must not
/// find half of it.
pub(crate) fn write_offset(directory: &Path, seconds: i64) -> io::Result<()> {
    let next = directory.join("clock.next");
    fs::write(&next, format!("{seconds:+}\n"))?;
    fs::rename(next, directory.join(OFFSET_FILE))
}

/// Removes the shared memory that libfaketime leaves behind when its process is killed.
pub(crate) fn remove_shared_memory(environment: &[(&'static str, OsString)], pid: u32) {
    if !environment.is_empty() {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
        }
    }
}

/// Returns the path of libfaketime. Debian installs it in a directory that depends on the architecture.
fn library() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib").ok()?;
    entries.flatten().map(|entry| entry.path().join(LIBRARY)).find(|path| path.is_file())
}
