//! How far a replay has come, on standard error when that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{elapsed:>4} [{bar:40}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
const SPINNER: &str = "{elapsed:>4} {spinner} {bytes}, {bytes_per_sec}";

pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar over `total_bytes`, or a count if the length is not known.
    pub(super) fn new(total_bytes: Option<u64>) -> Progress {
        let (bar, template) = match total_bytes {
            Some(total_bytes) => (ProgressBar::new(total_bytes), BAR),
            None => (ProgressBar::new_spinner(), SPINNER),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar }
    }

    pub(super) fn at(&self, read_bytes: u64) {
        self.bar.set_position(read_bytes);
    }

    /// Runs `print` with the bar out of the way: both may be on one terminal.
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
