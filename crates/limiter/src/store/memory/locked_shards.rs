//! The locks of all shards that one request needs.

use super::lock::LockGuard;
use super::shard::Shard;
use super::{KeyPlace, MemoryStore};

/// The locked shards of a request, in the order in which every caller locks them.
pub(super) struct LockedShards<'m>(Vec<(usize, LockGuard<'m, Shard>)>);

impl MemoryStore {
    /// Locks the shard of every place, each once and in order, so that no two callers can wait for each other.
    pub(super) fn lock_shards(&self, places: impl Iterator<Item = KeyPlace>) -> LockedShards<'_> {
        let mut shards: Vec<usize> = places.map(|place| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let lock = |shard: usize| (shard, self.shards[shard].0.lock());
        LockedShards(shards.into_iter().map(lock).collect())
    }
}

impl LockedShards<'_> {
    /// Returns the shard of a place that was locked.
    pub(super) fn shard(&mut self, place: KeyPlace) -> &mut Shard {
        let at = self.0.partition_point(|(shard, _)| *shard < place.shard);
        // OK because the shard of every place was locked.
        &mut self.0[at].1
    }
}
