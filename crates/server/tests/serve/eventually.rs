//! Waits for what other processes do in their own time.

use std::thread;
use std::time::{Duration, Instant};

/// A wait that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until there is something to be seen, and returns it.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
