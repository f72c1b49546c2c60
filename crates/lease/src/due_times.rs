//! The times at which leases need attention.

use std::collections::BTreeSet;

/// When each lease of a table needs attention: at most one time for each.
#[derive(Debug, Default)]
pub(crate) struct DueTimes {
    by_time: BTreeSet<(u64, u32)>,
}

impl DueTimes {
    pub(crate) fn insert(&mut self, due_us: u64, slot: u32) {
        self.by_time.insert((due_us, slot));
    }

    pub(crate) fn remove(&mut self, due_us: u64, slot: u32) {
        self.by_time.remove(&(due_us, slot));
    }

    /// Returns the earliest time, if there is one.
    pub(crate) fn first_us(&self) -> Option<u64> {
        self.by_time.first().map(|&(due_us, _)| due_us)
    }

    /// Removes and returns the earliest lease that is due at `now_us`.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<u32> {
        if self.first_us()? > now_us {
            return None;
        }
        self.by_time.pop_first().map(|(_, slot)| slot)
    }
}
