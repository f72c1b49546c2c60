//! Progress on stderr.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two lines, if stderr is not a terminal.
const INTERVAL: Duration = Duration::from_secs(10);

/// Says what is measured next. On a terminal this replaces the last line of progress, and an empty text removes it.
/// In a log file it writes a line at most every 10 s, and none for an empty text.
pub fn show_progress(text: &str) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        return;
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if !text.is_empty() && is_due(*last, now) {
        eprintln!("{text}");
        *last = Some(now);
    }
}

/// Whether a log gets a line now, when it got the last one at `last`.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_gets_the_first_line_and_then_one_every_ten_seconds() {
        let start = Instant::now();
        assert!(is_due(None, start));
        assert!(!is_due(Some(start), start + Duration::from_millis(9_999)));
        assert!(is_due(Some(start), start + INTERVAL));
    }
}
