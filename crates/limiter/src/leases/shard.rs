//! The leases of a part of the keys.

use ahash::RandomState;
use tollgate_lease::{LeaseCounters, Leases, TableSize};

use super::key::LeaseKey;
use super::waiting::WaitingChecks;

/// How many shards there are. Checks of keys in different shards do not wait for each other.
pub(super) const SHARDS: usize = 16;

/// The most keys with leases, and the keys whose checks are counted to find the hot ones, in each shard.
const SIZE: TableSize = TableSize { leases: 1_024, counted_keys: 512 };

/// The leases of a part of the keys, and the checks that wait for an answer about one of them.
#[derive(Debug)]
pub(super) struct LeaseShard {
    pub(super) leases: Leases<LeaseKey, RandomState>,
    pub(super) waiting: WaitingChecks,
}

impl LeaseShard {
    pub(super) fn new(hasher: &RandomState, number: u64) -> LeaseShard {
        // The ids of leases come from this seed. The hasher was made from the system's random numbers.
        let seed = hasher.hash_one(number);
        LeaseShard {
            leases: Leases::with_hasher(SIZE, seed, hasher.clone()),
            waiting: WaitingChecks::default(),
        }
    }

    pub(super) fn counters(&self) -> LeaseCounters {
        self.leases.counters()
    }
}
