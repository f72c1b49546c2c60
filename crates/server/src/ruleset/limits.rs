//! The limits for checks by name, and the decisions of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::AHashMap;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate::rules::{Counts, Rules};
use tollgate::{Decision, Error, Scope};

use super::holds::HoldTally;

/// The limits of the rules by their names. They are collected again when the rules have been replaced.
#[derive(Debug, Default)]
pub(super) struct NamedLimits {
    current: ArcSwap<LimitsGeneration>,
    /// Locked while the limits are collected.
    collecting: Mutex<()>,
}

/// The limits of the rules of one generation.
#[derive(Debug, Default)]
struct LimitsGeneration {
    number: u64,
    named: AHashMap<Box<str>, Arc<NamedLimit>>,
}

/// A limit for checks by name.
#[derive(Debug)]
pub(crate) struct NamedLimit {
    pub(crate) scope: Scope,
    /// The same tally as before a reload, if the earlier rules had a limit of the same name.
    pub(crate) tally: Arc<LimitTally>,
    /// Likewise.
    pub(crate) holds: Arc<HoldTally>,
}

impl NamedLimit {
    /// Counts an error, if the store failed. A request that is not valid is not counted.
    pub(crate) fn count_failure(&self, error: &Error) {
        if let Error::Store(_) = error {
            self.tally.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The numbers of decisions of a limit in checks by name.
#[derive(Debug, Default)]
pub(crate) struct LimitTally {
    allowed: AtomicU64,
    denied: AtomicU64,
    /// Decided by this process with a lease; not counted in `allowed` and `denied`.
    leased_allowed: AtomicU64,
    leased_denied: AtomicU64,
    /// Decided without the store, which failed; not counted in `allowed` and `denied`.
    degraded_allowed: AtomicU64,
    degraded_denied: AtomicU64,
    /// Checks and reservations that ended with an error because the store failed.
    failed: AtomicU64,
}

impl LimitTally {
    pub(crate) fn count(&self, decision: &Decision) {
        let is_degraded = decision.is_degraded();
        let outcome = match (decision.is_allowed(), decision.is_leased()) {
            (true, _) if is_degraded => &self.degraded_allowed,
            (false, _) if is_degraded => &self.degraded_denied,
            (true, true) => &self.leased_allowed,
            (false, true) => &self.leased_denied,
            (true, false) => &self.allowed,
            (false, false) => &self.denied,
        };
        outcome.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts in the form that rules have: leased and degraded decisions count as allowed or denied, too.
    pub(crate) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counts = Counts::default();
        counts.degraded_allowed = read(&self.degraded_allowed);
        counts.degraded_denied = read(&self.degraded_denied);
        counts.degraded = counts.degraded_allowed + counts.degraded_denied;
        counts.leased_allowed = read(&self.leased_allowed);
        counts.leased_denied = read(&self.leased_denied);
        counts.allowed = read(&self.allowed) + counts.leased_allowed + counts.degraded_allowed;
        counts.denied = read(&self.denied) + counts.leased_denied + counts.degraded_denied;
        counts.failed = read(&self.failed);
        counts
    }
}

impl NamedLimits {
    /// Returns a limit of the rules by its name.
    pub(super) fn get(&self, rules: &Rules, name: &str) -> Option<Arc<NamedLimit>> {
        let current = self.current.load();
        if current.number == rules.generation() {
            return current.named.get(name).cloned();
        }
        drop(current);
        self.renewed(rules).named.get(name).cloned()
    }

    /// Returns every limit of the rules, in alphabetical order.
    pub(super) fn all(&self, rules: &Rules) -> Vec<(Box<str>, Arc<NamedLimit>)> {
        let current = self.renewed(rules);
        let each = current.named.iter().map(|(name, limit)| (name.clone(), Arc::clone(limit)));
        let mut limits: Vec<_> = each.collect();
        limits.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        limits
    }

    /// Returns the limits of the rules as they are now.
    fn renewed(&self, rules: &Rules) -> Arc<LimitsGeneration> {
        // One caller at a time, because two callers would each make a tally for a new limit.
        let _collecting = self.collecting.lock();
        let before = self.current.load_full();
        // Read before the limits: if the rules are replaced in between, the next call collects them again.
        let number = rules.generation();
        if before.number == number {
            return before;
        }
        let named = rules.limits().into_iter().filter_map(|(name, _)| {
            let scope = rules.limit(&name)?;
            let before = before.named.get(name.as_str());
            let tally = before.map(|limit| Arc::clone(&limit.tally)).unwrap_or_default();
            let holds = before.map(|limit| Arc::clone(&limit.holds)).unwrap_or_default();
            Some((name.into_boxed_str(), Arc::new(NamedLimit { scope, tally, holds })))
        });
        let generation = Arc::new(LimitsGeneration { number, named: named.collect() });
        self.current.store(Arc::clone(&generation));
        generation
    }
}
