//! Waits for other processes.

use std::thread;
use std::time::{Duration, Instant};

/// A wait that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `look` until it returns a value, and returns that value.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "timed out waiting for: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
