//! The numbers of operations on the holds of a limit.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Decision, EndedHold, Error, HoldExtension, HoldSettlement};

/// An operation on holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOperation {
    Reserve,
    Settle,
    Extend,
}

/// The result of an operation on a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldOutcome {
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

/// The numbers of operations on the holds of a limit.
#[derive(Debug, Default)]
pub(crate) struct HoldTally {
    operations: [[AtomicU64; HoldOutcome::ALL.len()]; HoldOperation::ALL.len()],
    units: [AtomicU64; HoldUnits::ALL.len()],
}

impl HoldOperation {
    const ALL: [HoldOperation; 3] =
        [HoldOperation::Reserve, HoldOperation::Settle, HoldOperation::Extend];

    /// Returns the name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HoldOperation::Reserve => "reserve",
            HoldOperation::Settle => "settle",
            HoldOperation::Extend => "extend",
        }
    }

    /// Returns the outcomes that the operation can have.
    fn outcomes(self) -> &'static [HoldOutcome] {
        use HoldOutcome::{Degraded, Denied, Done, Expired, Failed, Kept, Unknown};
        match self {
            HoldOperation::Reserve => &[Done, Denied, Degraded, Failed],
            HoldOperation::Settle => &[Done, Kept, Expired, Unknown, Failed],
            HoldOperation::Extend => &[Done, Denied, Expired, Unknown, Failed],
        }
    }
}

impl HoldOutcome {
    const ALL: [HoldOutcome; 7] = [
        HoldOutcome::Done,
        HoldOutcome::Kept,
        HoldOutcome::Denied,
        HoldOutcome::Degraded,
        HoldOutcome::Expired,
        HoldOutcome::Unknown,
        HoldOutcome::Failed,
    ];

    /// Returns the name in metrics, as the outcome of this operation.
    pub(crate) fn name(self, of: HoldOperation) -> &'static str {
        match self {
            HoldOutcome::Done if of == HoldOperation::Settle => "settled",
            HoldOutcome::Done => "allowed",
            HoldOutcome::Kept => "kept",
            HoldOutcome::Denied => "denied",
            HoldOutcome::Degraded => "degraded",
            HoldOutcome::Expired => "expired",
            HoldOutcome::Unknown => "unknown",
            HoldOutcome::Failed => "failed",
        }
    }

    fn of_ended(ended: EndedHold) -> HoldOutcome {
        match ended {
            EndedHold::Expired => HoldOutcome::Expired,
            EndedHold::Unknown => HoldOutcome::Unknown,
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
    /// Counts a reservation of `units`.
    pub(crate) fn count_reservation(&self, decision: &Decision, units: u64) {
        let outcome = match (decision.is_allowed(), decision.is_degraded()) {
            (true, false) => HoldOutcome::Done,
            (true, true) => HoldOutcome::Degraded,
            (false, _) => HoldOutcome::Denied,
        };
        self.count(HoldOperation::Reserve, outcome);
        if outcome == HoldOutcome::Done {
            self.add(HoldUnits::Held, units);
        }
    }

    /// Counts a settlement, after which the hold stays open or not.
    pub(crate) fn count_settlement(&self, settled: &HoldSettlement, keeps_rest: bool) {
        let outcome = match settled.ended() {
            Some(ended) => HoldOutcome::of_ended(ended),
            None if keeps_rest => HoldOutcome::Kept,
            None => HoldOutcome::Done,
        };
        self.count(HoldOperation::Settle, outcome);
        self.add(HoldUnits::Settled, settled.charged_units());
        self.add(HoldUnits::Excess, settled.excess_units());
        self.add(HoldUnits::Cut, settled.cut_units());
    }

    /// Counts an extension by `more` units.
    pub(crate) fn count_extension(&self, extended: &HoldExtension, more: u64) {
        let outcome = match extended.ended() {
            Some(ended) => HoldOutcome::of_ended(ended),
            None if extended.is_granted() => HoldOutcome::Done,
            None => HoldOutcome::Denied,
        };
        self.count(HoldOperation::Extend, outcome);
        if outcome == HoldOutcome::Done {
            self.add(HoldUnits::Held, more);
        }
    }

    /// Counts an operation that the store failed to decide. A request that is not valid is not counted.
    pub(crate) fn count_error(&self, operation: HoldOperation, error: &Error) {
        if let Error::Store(_) = error {
            self.count(operation, HoldOutcome::Failed);
        }
    }

    /// Returns the number of operations with each outcome.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (HoldOperation, HoldOutcome, u64)> {
        let count = |operation: HoldOperation, outcome: HoldOutcome| {
            self.operations[operation as usize][outcome as usize].load(Ordering::Relaxed)
        };
        HoldOperation::ALL.into_iter().flat_map(move |operation| {
            let outcomes = operation.outcomes().iter();
            outcomes.map(move |&outcome| (operation, outcome, count(operation, outcome)))
        })
    }

    /// Returns the numbers of units.
    pub(crate) fn units(&self) -> impl Iterator<Item = (HoldUnits, u64)> {
        HoldUnits::ALL.into_iter().map(|of| (of, self.units[of as usize].load(Ordering::Relaxed)))
    }

    /// Whether nothing was counted.
    pub(crate) fn is_unused(&self) -> bool {
        self.operations().all(|(_, _, count)| count == 0)
    }

    fn count(&self, operation: HoldOperation, outcome: HoldOutcome) {
        self.operations[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, of: HoldUnits, units: u64) {
        self.units[of as usize].fetch_add(units, Ordering::Relaxed);
    }
}
