//! Counters of the leases of a table.

use core::ops::AddAssign;

/// Counts of the leases of a [table](crate::Leases) since it was made. They only grow, except
/// [`held`](Self::held).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounters {
    /// The leases that are open now.
    pub held: u64,
    /// The units that the store set aside for leases.
    pub leased_units: u64,
    /// The units that were used, also if they were refunded later.
    pub used_units: u64,
    /// The used units that were refunded, and went back into their lease.
    pub refunded_units: u64,
    /// The unused units that were given back.
    pub returned_units: u64,
    /// The unused units of leases that ended by their time or were forgotten by the store. An expired lease is charged
    /// in full.
    pub expired_units: u64,
    /// Checks that a lease admitted without the store.
    pub hits: u64,
    /// Checks that were refused without the store, because it had answered less than a pace before.
    pub refusals: u64,
    /// Requests to the store that decided a check.
    pub asks: u64,
    /// Requests to the store in the background, which decided no check: renewals and ends.
    pub background_calls: u64,
    /// Requests to the store that failed.
    pub failures: u64,
}

impl LeaseCounters {
    /// Returns how many calls to the store the leases have saved: without them, each check would have been one.
    pub const fn calls_saved(&self) -> u64 {
        (self.hits.saturating_add(self.refusals)).saturating_sub(self.background_calls)
    }
}

impl AddAssign for LeaseCounters {
    fn add_assign(&mut self, other: LeaseCounters) {
        self.held += other.held;
        self.leased_units += other.leased_units;
        self.used_units += other.used_units;
        self.refunded_units += other.refunded_units;
        self.returned_units += other.returned_units;
        self.expired_units += other.expired_units;
        self.hits += other.hits;
        self.refusals += other.refusals;
        self.asks += other.asks;
        self.background_calls += other.background_calls;
        self.failures += other.failures;
    }
}
