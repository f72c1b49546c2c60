//! The parts of the store that a shard reads.

use parking_lot::RwLock;

use super::budget::StoreBudget;
use super::identity::KeyHasher;
use super::scopes::Scopes;

/// The parts of the store that a shard reads to find dead keys, and to know how much memory it may take.
#[derive(Clone, Copy)]
pub(super) struct StoreView<'a> {
    pub(super) identify: &'a KeyHasher,
    pub(super) scopes: &'a RwLock<Scopes>,
    pub(super) budget: &'a StoreBudget,
    pub(super) now_us: u64,
}
