//! Counts of a rule's decisions.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a rule's decisions. Rules that replace others keep the counts of the rule of the same name.
#[derive(Debug, Default)]
pub(super) struct RuleTally {
    by_store: OutcomeCounts,
    leased: OutcomeCounts,
    degraded: OutcomeCounts,
    failed: AtomicU64,
}

impl RuleTally {
    /// Reads a count, to bring the counts into the CPU cache.
    pub(super) fn fetch(&self) -> usize {
        usize::from(self.failed.load(Ordering::Relaxed) > 0)
    }
}

/// Counts by outcome. Each decision is in exactly one count, so sums are right at any time.
#[derive(Debug, Default)]
struct OutcomeCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
}

/// A rule's decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleOutcome {
    Allowed,
    Denied,
    ShadowDenied,
}

/// How a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecidedBy {
    /// By the store, or without needing it.
    Store,
    /// By this process, with units that the store had set aside.
    Lease,
    /// By this process under the failure policy, because the store failed.
    Policy,
}

/// Counts of a rule's decisions. A [peek](super::Descriptor::peek) that the rule allows is not counted, because
/// nothing was spent; a peek that it refused, or would have refused in shadow mode, is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests that the rule allowed.
    pub allowed: u64,
    /// Requests that the rule refused.
    pub denied: u64,
    /// Requests that the rule would have refused if it were not in shadow mode.
    pub shadow_denied: u64,
    /// Requests counted above that were decided without the store, because it failed.
    pub degraded: u64,
    /// Allowed requests that were decided without the store.
    pub degraded_allowed: u64,
    /// Refused requests that were decided without the store.
    pub degraded_denied: u64,
    /// Requests that the rule would have refused, decided without the store.
    pub degraded_shadow_denied: u64,
    /// Allowed requests that this process decided with leased units.
    pub leased_allowed: u64,
    /// Refused requests that this process decided because its lease was empty.
    pub leased_denied: u64,
    /// Requests that the rule would have refused, decided because the lease was empty.
    pub leased_shadow_denied: u64,
    /// Checks that failed because the store failed.
    pub failed: u64,
}

impl RuleTally {
    pub(super) fn count(&self, outcome: RuleOutcome, by: DecidedBy) {
        let decided = match by {
            DecidedBy::Store => &self.by_store,
            DecidedBy::Lease => &self.leased,
            DecidedBy::Policy => &self.degraded,
        };
        let counter = match outcome {
            RuleOutcome::Allowed => &decided.allowed,
            RuleOutcome::Denied => &decided.denied,
            RuleOutcome::ShadowDenied => &decided.shadow_denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [store, leased, degraded] = [&self.by_store, &self.leased, &self.degraded]
            .map(|decided| [&decided.allowed, &decided.denied, &decided.shadow_denied].map(read));
        let [degraded_allowed, degraded_denied, degraded_shadow_denied] = degraded;
        let [leased_allowed, leased_denied, leased_shadow_denied] = leased;
        let [allowed, denied, shadow_denied] = store;
        Counts {
            allowed: allowed + leased_allowed + degraded_allowed,
            denied: denied + leased_denied + degraded_denied,
            shadow_denied: shadow_denied + leased_shadow_denied + degraded_shadow_denied,
            degraded: degraded.iter().sum(),
            degraded_allowed,
            degraded_denied,
            degraded_shadow_denied,
            leased_allowed,
            leased_denied,
            leased_shadow_denied,
            failed: read(&self.failed),
        }
    }
}
