//! The bound on requests that are delayed at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the requests that are delayed, and bounds their number.
#[derive(Clone)]
pub(super) struct WaitingSlots {
    waiting: Arc<AtomicUsize>,
    pub(super) most: usize,
}

impl Default for WaitingSlots {
    fn default() -> WaitingSlots {
        WaitingSlots { waiting: Arc::default(), most: 10_000 }
    }
}

impl WaitingSlots {
    /// Takes a waiting slot, before it is known whether the request is delayed. `None` if all slots are taken.
    pub(super) fn join(&self) -> Option<WaitingSlot> {
        let room = |waiting: usize| (waiting < self.most).then_some(waiting + 1);
        let joined = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        joined.ok().map(|_| WaitingSlot { waiting: Arc::clone(&self.waiting) })
    }
}

/// The slot of one request that is or may be delayed. Dropping it frees the slot.
pub(super) struct WaitingSlot {
    waiting: Arc<AtomicUsize>,
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
