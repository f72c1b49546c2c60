//! Keys that are fetched: the results of fetches.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::{Freshness, Jwks, KeyRefresh, PublishedKeys, SharedKeys};
use crate::jwt::key_set::KeySet;

/// The failures in a row that count as a problem although there are keys: half a minute after the first failure.
const TOLERATED_FAILURES: u32 = 4;

impl Jwks {
    /// Returns a set without keys, until [`start`](Self::start) has fetched some.
    pub(crate) fn fetched_by(refresh: impl KeyRefresh + 'static) -> Jwks {
        let jwks = Jwks::new(Freshness::NotLoaded, Some(Box::new(refresh)));
        jwks.shared.status.lock().problem = Some("the keys were not fetched yet".into());
        jwks
    }

    pub(crate) fn downgrade(&self) -> Weak<SharedKeys> {
        Arc::downgrade(&self.shared)
    }

    pub(crate) fn of(shared: Arc<SharedKeys>) -> Jwks {
        Jwks { shared }
    }

    /// Verifies tokens with the keys of a set that was just fetched. Returns whether the keys have changed.
    pub(crate) fn fetched(&self, set: KeySet) -> bool {
        let before = self.current().generation;
        self.publish(set, Freshness::FetchedAt(Instant::now()));
        self.current().generation != before
    }

    /// Notes a failed fetch. The keys do not change. `in_a_row` is how many fetches failed since the last success.
    pub(crate) fn not_fetched(&self, problem: String, in_a_row: u32) {
        let mut status = self.shared.status.lock();
        status.failures += 1;
        if status.keys == 0 || in_a_row >= TOLERATED_FAILURES {
            status.problem = Some(problem);
        }
    }

    /// Drops the keys, because they are too old to be trusted.
    pub(crate) fn drop_keys(&self) {
        let mut status = self.shared.status.lock();
        (status.keys, status.skipped, status.loaded) = (0, 0, None);
        let generation = self.current().generation.wrapping_add(1);
        let (set, freshness) = (KeySet::default(), Freshness::NotLoaded);
        self.shared.current.store(Arc::new(PublishedKeys { generation, set, freshness }));
    }
}
