//! A bound on how often a problem is logged.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a problem is logged, in microseconds.
const INTERVAL_US: u64 = 10_000_000;

/// Lets a problem be logged at most once in ten seconds.
#[derive(Debug, Default)]
pub(crate) struct LogInterval {
    /// When the problem was last logged; 0 if never.
    last_us: AtomicU64,
}

impl LogInterval {
    /// Returns whether the problem should be logged now: ten seconds have passed since this last returned true.
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        let before_us = self.last_us.load(Ordering::Relaxed);
        let is_due = before_us == 0 || now_us.saturating_sub(before_us) > INTERVAL_US;
        let swap = || {
            self.last_us.compare_exchange(before_us, now_us, Ordering::Relaxed, Ordering::Relaxed)
        };
        is_due && swap().is_ok()
    }
}
