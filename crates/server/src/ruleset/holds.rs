//! The numbers of operations on the holds of a limit or a rule.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate::rules::{RuleName, Rules};
use tollgate::{EndedHold, Error, HoldExtension, HoldSettlement};

use super::expiries::{CountedExpiry, FlowByExpiry, HoldCount, HoldExpiries};

/// An operation on holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedOperation {
    Reserve,
    Settle,
    Extend,
}

/// The result of an operation on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationOutcome {
    /// The units were set aside, or charged and the hold ended, or the hold was extended.
    Done,
    /// Units were charged, and the rest stays held.
    Kept,
    /// The units did not fit.
    Denied,
    /// The reservation was admitted without the store, which failed.
    Degraded,
    /// The hold had expired.
    Expired,
    /// The hold had been settled, or forgotten.
    Unknown,
    /// The store failed.
    Failed,
}

/// Units, by what became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldUnits {
    /// Set aside by a reservation or an extension.
    Held,
    /// Charged by a settlement.
    Settled,
    /// Charged by a settlement beyond its hold.
    Excess,
    /// Used beyond a hold and not charged.
    Cut,
}

/// The numbers of operations on the holds of a limit or a rule.
#[derive(Debug, Default)]
pub(crate) struct HoldTally {
    operations: [[AtomicU64; OperationOutcome::ALL.len()]; CountedOperation::ALL.len()],
    units: [AtomicU64; HoldUnits::ALL.len()],
    expiries: HoldExpiries,
}

impl CountedOperation {
    const ALL: [CountedOperation; 3] =
        [CountedOperation::Reserve, CountedOperation::Settle, CountedOperation::Extend];

    /// Returns the name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CountedOperation::Reserve => "reserve",
            CountedOperation::Settle => "settle",
            CountedOperation::Extend => "extend",
        }
    }

    /// Returns the outcomes that the operation can have.
    fn outcomes(self) -> &'static [OperationOutcome] {
        use OperationOutcome::{Degraded, Denied, Done, Expired, Failed, Kept, Unknown};
        match self {
            CountedOperation::Reserve => &[Done, Denied, Degraded, Failed],
            CountedOperation::Settle => &[Done, Kept, Expired, Unknown, Failed],
            CountedOperation::Extend => &[Done, Denied, Expired, Unknown, Failed],
        }
    }
}

impl OperationOutcome {
    const ALL: [OperationOutcome; 7] = [
        OperationOutcome::Done,
        OperationOutcome::Kept,
        OperationOutcome::Denied,
        OperationOutcome::Degraded,
        OperationOutcome::Expired,
        OperationOutcome::Unknown,
        OperationOutcome::Failed,
    ];

    /// Returns the name in metrics, as the outcome of this operation.
    pub(crate) fn name(self, of: CountedOperation) -> &'static str {
        match self {
            OperationOutcome::Done if of == CountedOperation::Settle => "settled",
            OperationOutcome::Done => "allowed",
            OperationOutcome::Kept => "kept",
            OperationOutcome::Denied => "denied",
            OperationOutcome::Degraded => "degraded",
            OperationOutcome::Expired => "expired",
            OperationOutcome::Unknown => "unknown",
            OperationOutcome::Failed => "failed",
        }
    }

    fn from_ended(ended: EndedHold) -> OperationOutcome {
        match ended {
            EndedHold::Expired => OperationOutcome::Expired,
            EndedHold::Unknown => OperationOutcome::Unknown,
        }
    }
}

impl HoldUnits {
    const ALL: [HoldUnits; 4] =
        [HoldUnits::Held, HoldUnits::Settled, HoldUnits::Excess, HoldUnits::Cut];

    /// Returns the name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HoldUnits::Held => "held",
            HoldUnits::Settled => "settled",
            HoldUnits::Excess => "excess",
            HoldUnits::Cut => "cut",
        }
    }
}

impl HoldTally {
    /// Counts a reservation that the store admitted, or the failure policy.
    pub(crate) fn count_admitted(&self, is_degraded: bool) {
        let outcome = if is_degraded { OperationOutcome::Degraded } else { OperationOutcome::Done };
        self.count(CountedOperation::Reserve, outcome);
    }

    /// Counts the units that a reservation has set aside: on the store, or on this process's share of the limit.
    pub(crate) fn count_held(&self, units: u64, expiry: CountedExpiry) {
        self.add(HoldUnits::Held, units);
        self.expiries.reserved(expiry, HoldCount::one(units));
    }

    /// Counts a reservation that was refused.
    pub(crate) fn count_denied(&self) {
        self.count(CountedOperation::Reserve, OperationOutcome::Denied);
    }

    /// Counts a settlement, after which the hold stays open or not. `expiry` is the expiry in the token of the hold.
    pub(crate) fn count_settlement(
        &self,
        settled: &HoldSettlement,
        keeps_rest: bool,
        expiry: CountedExpiry,
    ) {
        let outcome = match settled.ended() {
            Some(ended) => OperationOutcome::from_ended(ended),
            None if keeps_rest => OperationOutcome::Kept,
            None => OperationOutcome::Done,
        };
        self.count(CountedOperation::Settle, outcome);
        self.add(HoldUnits::Settled, settled.charged_units());
        self.add(HoldUnits::Excess, settled.excess_units());
        self.add(HoldUnits::Cut, settled.cut_units());
        let freed = settled.freed_units();
        match outcome {
            OperationOutcome::Done => self.expiries.ended(expiry, HoldCount::one(freed)),
            OperationOutcome::Kept => self.expiries.ended(expiry, HoldCount::of_units(freed)),
            _ => {}
        }
    }

    /// Counts an extension by `more` units. `before` is the expiry in the token of the hold, `after` the new one.
    pub(crate) fn count_extension(
        &self,
        extended: &HoldExtension,
        more: u64,
        [before, after]: [CountedExpiry; 2],
    ) {
        let outcome = match extended.ended() {
            Some(ended) => OperationOutcome::from_ended(ended),
            None if extended.is_granted() => OperationOutcome::Done,
            None => OperationOutcome::Denied,
        };
        self.count(CountedOperation::Extend, outcome);
        if outcome == OperationOutcome::Done {
            self.add(HoldUnits::Held, more);
            let held = extended.held_units();
            self.expiries.ended(before, HoldCount::one(held.saturating_sub(more)));
            self.expiries.reserved(after, HoldCount::one(held));
        }
    }

    /// Counts an operation that the store failed to decide. A request that is not valid is not counted.
    pub(crate) fn count_error(&self, operation: CountedOperation, error: &Error) {
        if let Error::Store(_) = error {
            self.count(operation, OperationOutcome::Failed);
        }
    }

    /// Returns the number of operations with each outcome.
    pub(crate) fn operations(
        &self,
    ) -> impl Iterator<Item = (CountedOperation, OperationOutcome, u64)> {
        let count = |operation: CountedOperation, outcome: OperationOutcome| {
            self.operations[operation as usize][outcome as usize].load(Ordering::Relaxed)
        };
        CountedOperation::ALL.into_iter().flat_map(move |operation| {
            let outcomes = operation.outcomes().iter();
            outcomes.map(move |&outcome| (operation, outcome, count(operation, outcome)))
        })
    }

    /// Returns the numbers of units.
    pub(crate) fn units(&self) -> impl Iterator<Item = (HoldUnits, u64)> {
        HoldUnits::ALL.into_iter().map(|of| (of, self.units[of as usize].load(Ordering::Relaxed)))
    }

    /// Returns the counts of holds by their expiry.
    pub(crate) fn flow(&self) -> FlowByExpiry {
        self.expiries.flow()
    }

    /// Whether nothing was counted.
    pub(crate) fn is_unused(&self) -> bool {
        self.operations().all(|(_, _, count)| count == 0)
    }

    fn count(&self, operation: CountedOperation, outcome: OperationOutcome) {
        self.operations[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, of: HoldUnits, units: u64) {
        self.units[of as usize].fetch_add(units, Ordering::Relaxed);
    }
}

/// The tallies of the rules whose units were held.
#[derive(Debug, Default)]
pub(super) struct RuleHoldTallies {
    by_rule: Mutex<BTreeMap<RuleName, Arc<HoldTally>>>,
}

impl RuleHoldTallies {
    /// Returns the tally of a rule by its domain and name; `None` if there is no such rule.
    pub(super) fn get(&self, rules: &Rules, name: &str) -> Option<Arc<HoldTally>> {
        let rule = rules.rule(name)?;
        let mut by_rule = self.by_rule.lock();
        if let Some(tally) = by_rule.get(rule.name()) {
            return Some(Arc::clone(tally));
        }
        // Only when a rule is new, so that there are at most as many tallies as rules.
        by_rule.retain(|name, _| rules.rule(&name.to_string()).is_some());
        Some(Arc::clone(by_rule.entry(rule.name().clone()).or_default()))
    }

    /// Returns the tally of each present rule whose units were held.
    pub(super) fn all(&self, rules: &Rules) -> Vec<(RuleName, Arc<HoldTally>)> {
        let mut by_rule = self.by_rule.lock();
        by_rule.retain(|name, _| rules.rule(&name.to_string()).is_some());
        by_rule.iter().map(|(name, tally)| (name.clone(), Arc::clone(tally))).collect()
    }
}
