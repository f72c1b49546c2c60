//! Waits for a condition in another process.

use std::thread;
use std::time::{Duration, Instant};

/// The longest time of a wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `check` until it returns a value, and returns that value.
pub(crate) fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = check() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "timed out waiting for: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
