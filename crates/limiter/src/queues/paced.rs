//! How often first waiters ask the store again about keys with holds. Another process may settle a hold at any time, and
//! this process is not notified.

use std::sync::atomic::{AtomicU64, Ordering};

/// How long a first waiter pauses between two checks of a key with holds, if few such waiters are in the limiter.
const PACE_US: u64 = 10_000;

/// The least time between the checks of all these waiters together, on average: 5,000 checks a second. From 51 waiters
/// on, each pauses longer for that. A check of a key with holds takes a server up to 80 us, so the waiters of one limiter
/// take less than half of its time, however many keys they wait for.
const BETWEEN_CHECKS_US: u64 = 200;

/// The first waiters of a limiter that ask the store again at a pace.
#[derive(Debug, Default)]
pub(crate) struct PacedWaiters {
    count: AtomicU64,
}

impl PacedWaiters {
    /// Adds a waiter, until the result is dropped.
    pub(super) fn join(&self) -> PacedWaiter<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        PacedWaiter { all: self }
    }
}

/// A first waiter that asks the store again at a pace.
#[derive(Debug)]
pub(crate) struct PacedWaiter<'a> {
    all: &'a PacedWaiters,
}

impl PacedWaiter<'_> {
    /// Returns how long the waiter pauses before its next check.
    pub(crate) fn pause_us(&self) -> u64 {
        let waiters = self.all.count.load(Ordering::Relaxed);
        waiters.saturating_mul(BETWEEN_CHECKS_US).max(PACE_US)
    }
}

impl Drop for PacedWaiter<'_> {
    fn drop(&mut self) {
        self.all.count.fetch_sub(1, Ordering::Relaxed);
    }
}
