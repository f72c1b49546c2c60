//! How often a rule decided what.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a rule decided what; kept when rules are replaced, by the rule's name.
#[derive(Debug, Default)]
pub(super) struct Tally {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    degraded: AtomicU64,
    failed: AtomicU64,
}

/// What became of a request, as far as one rule goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Allowed,
    Denied,
    ShadowDenied,
    /// Beside one of those.
    Degraded,
    Failed,
}

/// How often a rule decided what.
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
    /// The store failed, and so did the check.
    pub failed: u64,
}

impl Tally {
    pub(super) fn count(&self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Allowed => &self.allowed,
            Outcome::Denied => &self.denied,
            Outcome::ShadowDenied => &self.shadow_denied,
            Outcome::Degraded => &self.degraded,
            Outcome::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            allowed: read(&self.allowed),
            denied: read(&self.denied),
            shadow_denied: read(&self.shadow_denied),
            degraded: read(&self.degraded),
            failed: read(&self.failed),
        }
    }
}
