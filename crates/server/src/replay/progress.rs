//! The progress bar of a replay, on standard error if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{elapsed:>4} [{bar:40}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
const SPINNER: &str = "{elapsed:>4} {spinner} {bytes}, {bytes_per_sec}";

/// The progress bar of a replay.
pub(super) struct ReplayProgress {
    bar: ProgressBar,
}

impl ReplayProgress {
    /// Shows a bar up to `total_bytes`, or only the bytes read so far if the length is not known.
    pub(super) fn new(total_bytes: Option<u64>) -> ReplayProgress {
        let (bar, template) = match total_bytes {
            Some(total_bytes) => (ProgressBar::new(total_bytes), BAR),
            None => (ProgressBar::new_spinner(), SPINNER),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        ReplayProgress { bar }
    }

    pub(super) fn at(&self, read_bytes: u64) {
        self.bar.set_position(read_bytes);
    }

    /// Hides the bar while `print` runs: both may write to the same terminal.
    pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.bar.elapsed()
    }
}
