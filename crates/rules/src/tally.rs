//! How often a rule decided what.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a rule decided what; kept when rules are replaced, by the rule's name.
#[derive(Debug, Default)]
pub(super) struct Tally {
    by_store: Decided,
    degraded: Decided,
    failed: AtomicU64,
}

impl Tally {
    /// Any of it.
    pub(super) fn fetch(&self) -> usize {
        usize::from(self.failed.load(Ordering::Relaxed) > 0)
    }
}

/// Each decision is in one of these alone, so that sums are right whenever they are read.
#[derive(Debug, Default)]
struct Decided {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
}

/// What a rule decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecidedBy {
    /// Or nobody had to be asked.
    Store,
    /// This process, because the store failed.
    Policy,
}

/// How often a rule decided what. A [look](super::Descriptor::look) that it had nothing against is not
/// counted: nothing was spent. One that it refused, or would have, is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// It had nothing against the request.
    pub allowed: u64,
    /// It refused.
    pub denied: u64,
    /// It would have refused, but only watches.
    pub shadow_denied: u64,
    /// Of those, how many were decided without the store, which failed.
    pub degraded: u64,
    /// Of the allowed, how many were degraded.
    pub degraded_allowed: u64,
    /// Of the denied, how many were degraded.
    pub degraded_denied: u64,
    /// Of those that it would have refused, how many were degraded.
    pub degraded_shadow_denied: u64,
    /// The store failed, and so did the check.
    pub failed: u64,
}

impl Tally {
    pub(super) fn count(&self, outcome: Outcome, by: DecidedBy) {
        let decided = match by {
            DecidedBy::Store => &self.by_store,
            DecidedBy::Policy => &self.degraded,
        };
        let counter = match outcome {
            Outcome::Allowed => &decided.allowed,
            Outcome::Denied => &decided.denied,
            Outcome::ShadowDenied => &decided.shadow_denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [store, degraded] = [&self.by_store, &self.degraded]
            .map(|decided| [&decided.allowed, &decided.denied, &decided.shadow_denied].map(read));
        let [degraded_allowed, degraded_denied, degraded_shadow_denied] = degraded;
        let [allowed, denied, shadow_denied] = store;
        Counts {
            allowed: allowed + degraded_allowed,
            denied: denied + degraded_denied,
            shadow_denied: shadow_denied + degraded_shadow_denied,
            degraded: degraded.iter().sum(),
            degraded_allowed,
            degraded_denied,
            degraded_shadow_denied,
            failed: read(&self.failed),
        }
    }
}
