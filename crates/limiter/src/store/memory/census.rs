//! The parts of the store that a shard needs.

use parking_lot::RwLock;

use super::budget::Budget;
use super::identity::Identify;
use super::scopes::Scopes;

/// The parts of the store that a shard needs to find dead keys, and to know how much memory it may take.
#[derive(Clone, Copy)]
pub(super) struct Census<'a> {
    pub(super) identify: &'a Identify,
    pub(super) scopes: &'a RwLock<Scopes>,
    pub(super) budget: &'a Budget,
    pub(super) now_us: u64,
}
