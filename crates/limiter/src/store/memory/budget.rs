//! The bytes that all shards share.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::SHARD_BYTES;

/// A ceiling in bytes, and how many bytes are taken. Accessed only when something grows or is freed.
#[derive(Debug)]
pub(crate) struct StoreBudget {
    /// `None` means no ceiling.
    max_bytes: Option<usize>,
    /// The planned size of one shard; 0 without a ceiling.
    shard_bytes: usize,
    used: AtomicUsize,
    /// How often entries of a log were merged, because the ceiling left no memory for one more.
    coarsened: AtomicU64,
}

impl StoreBudget {
    pub(super) fn new(max_bytes: Option<usize>, shard_bytes: usize, used: usize) -> StoreBudget {
        let (used, coarsened) = (AtomicUsize::new(used), AtomicU64::new(0));
        StoreBudget { max_bytes, shard_bytes, used, coarsened }
    }

    pub(super) fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }

    /// Returns the most bytes that the free logs of one shard may keep.
    pub(super) fn spare_log_bytes(&self) -> usize {
        if self.shard_bytes > 0 { self.shard_bytes / 4 } else { SHARD_BYTES / 4 }
    }

    pub(super) fn has_ceiling(&self) -> bool {
        self.max_bytes.is_some()
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn count_coarsened(&self) {
        self.coarsened.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn coarsened(&self) -> u64 {
        self.coarsened.load(Ordering::Relaxed)
    }

    /// Returns how many bytes are left.
    pub(super) fn left(&self) -> usize {
        self.max_bytes.map_or(usize::MAX, |max_bytes| max_bytes.saturating_sub(self.used()))
    }

    /// Takes `bytes`, if they are left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let taken = |used: usize| {
            let used = used.saturating_add(bytes);
            self.max_bytes.is_none_or(|max_bytes| used <= max_bytes).then_some(used)
        };
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Replaces `taken` bytes by `used` bytes, without a test of the ceiling: the bytes used may be slightly more.
    pub(super) fn replace(&self, taken: usize, used: usize) {
        if used > taken {
            self.used.fetch_add(used - taken, Ordering::Relaxed);
        } else {
            self.give_back(taken - used);
        }
    }

    pub(super) fn give_back(&self, bytes: usize) {
        let given_back = |used: usize| {
            debug_assert!(bytes <= used, "{bytes} bytes given back of {used}");
            // Saturates: if it wrapped around, the store would be full for ever.
            Some(used.saturating_sub(bytes))
        };
        let _ = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, given_back);
    }
}
