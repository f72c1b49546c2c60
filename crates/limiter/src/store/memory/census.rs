//! What a shard has to know of the whole store.

use parking_lot::RwLock;

use super::budget::Budget;
use super::identity::Identify;
use super::scopes::Scopes;

/// What a shard has to know of the store to tell dead keys from live ones, and how much memory it may take.
#[derive(Clone, Copy)]
pub(super) struct Census<'a> {
    pub(super) identify: &'a Identify,
    pub(super) scopes: &'a RwLock<Scopes>,
    pub(super) budget: &'a Budget,
    pub(super) now_us: u64,
}
