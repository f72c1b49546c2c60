//! Those that are delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many are delayed at a time, and how many may be.
#[derive(Clone)]
pub(super) struct Line {
    waiting: Arc<AtomicUsize>,
    pub(super) most: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { waiting: Arc::default(), most: 10_000 }
    }
}

impl Line {
    /// A place among those that wait, taken before it is known whether one has to; `None` if there is no room.
    pub(super) fn join(&self) -> Option<Place> {
        let room = |waiting: usize| (waiting < self.most).then_some(waiting + 1);
        let joined = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        joined.ok().map(|_| Place { waiting: Arc::clone(&self.waiting) })
    }
}

/// One of those that are delayed; dropped, it is none any more.
pub(super) struct Place {
    waiting: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
