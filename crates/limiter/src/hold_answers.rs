//! The answers to operations on holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{
    EndedHold, ExtendAnswer, Extension, LimitDecision, SettleAnswer, Settlement, Verdict,
};

use crate::receipt::Receipt;
use crate::scope::Scope;

/// The answer to a settlement.
#[derive(Debug, PartialEq, Eq)]
pub struct HoldSettlement {
    decided: LimitDecision,
    charged_units: u64,
    excess_units: u64,
    cut_units: u64,
    freed_units: u64,
    receipt: Option<Receipt>,
    ended: Option<EndedHold>,
    is_degraded: bool,
}

impl HoldSettlement {
    pub(crate) fn new(
        SettleAnswer { decision, settlement }: SettleAnswer,
        scope: &Scope,
        key: &[u8],
    ) -> Self {
        let mut answer = HoldSettlement::uncharged(decision, false);
        match settlement {
            Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt } => {
                (answer.charged_units, answer.excess_units) = (charged_units, excess_units);
                (answer.cut_units, answer.freed_units) = (cut_units, freed_units);
                answer.receipt = receipt.map(|charge| Receipt::new(charge, scope.fingerprint(key)));
            }
            Settlement::Ended(ended) => answer.ended = Some(ended),
        }
        answer
    }

    fn uncharged(decided: LimitDecision, is_degraded: bool) -> HoldSettlement {
        let (charged_units, excess_units, cut_units, freed_units) = (0, 0, 0, 0);
        let (receipt, ended) = (None, None);
        HoldSettlement {
            decided,
            charged_units,
            excess_units,
            cut_units,
            freed_units,
            receipt,
            ended,
            is_degraded,
        }
    }

    /// Returns the settlement of a hold that the policy `open` admitted: nothing is charged.
    pub(crate) fn of_nothing(decided: LimitDecision) -> HoldSettlement {
        HoldSettlement::uncharged(decided, true)
    }

    /// Returns the same settlement of a hold on this process's share of the limit. The store does not know the receipt of
    /// such a charge.
    pub(crate) fn on_share(self) -> HoldSettlement {
        HoldSettlement { receipt: None, is_degraded: true, ..self }
    }

    /// Returns why nothing was charged: the hold had ended before. `None` if it was open.
    pub fn ended(&self) -> Option<EndedHold> {
        self.ended
    }

    /// Returns the units that this settlement charged.
    pub fn charged_units(&self) -> u64 {
        self.charged_units
    }

    /// Returns how many of the charged units were beyond the hold.
    pub fn excess_units(&self) -> u64 {
        self.excess_units
    }

    /// Returns the units that were used and not charged, because more than one whole limit was used beyond the hold.
    pub fn cut_units(&self) -> u64 {
        self.cut_units
    }

    /// Returns how many units of the hold are not held any more: all of them if this settlement has ended the hold, and
    /// otherwise the units that were used now.
    pub fn freed_units(&self) -> u64 {
        self.freed_units
    }

    /// Returns the receipt of the charge; `None` if nothing was charged.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Takes the receipt, with which the charge can be refunded.
    pub fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }

    /// Whether the hold was [admitted without the store](crate::Hold::is_degraded), so that nothing was charged there.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }

    /// Returns what remains of the limit that the key is under, with times in microseconds. It says allowed if the
    /// hold was open.
    pub fn decided(&self) -> &LimitDecision {
        &self.decided
    }
}

/// The answer to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the extension may have been refused: branch on `is_granted()`"]
pub struct HoldExtension {
    decided: LimitDecision,
    extension: Extension,
}

impl HoldExtension {
    pub(crate) fn new(
        ExtendAnswer { decision, extension }: ExtendAnswer,
        expiry: &AtomicU64,
    ) -> Self {
        if let Extension::Granted { expires_us, .. } = extension {
            expiry.store(expires_us, Ordering::Relaxed);
        }
        HoldExtension { decided: decision, extension }
    }

    /// Whether the hold is now as large and as long as requested.
    pub fn is_granted(&self) -> bool {
        matches!(self.extension, Extension::Granted { .. })
    }

    /// Returns why the hold cannot be extended: it had ended. `None` if it was open.
    pub fn ended(&self) -> Option<EndedHold> {
        match self.extension {
            Extension::Ended(ended) => Some(ended),
            Extension::Granted { .. } | Extension::Refused => None,
        }
    }

    /// Returns how long a refused extension must wait; `None` if it was granted, or can never be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.retry_after_us().map(Duration::from_micros)
    }

    /// Returns the limit's decision on the extension, with times in microseconds.
    pub fn decided(&self) -> &LimitDecision {
        &self.decided
    }

    /// Returns the units that the extended hold has now; 0 if it was not extended, or if the policy `open` admitted it
    /// without the store.
    pub fn held_units(&self) -> u64 {
        match self.extension {
            Extension::Granted { held_units, .. } => held_units,
            Extension::Refused | Extension::Ended(_) => 0,
        }
    }

    /// Returns the effect on the hold.
    pub fn extension(&self) -> Extension {
        self.extension
    }
}

/// The answer to an extension of several holds: all were extended, or none was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the extension may have been refused: branch on `is_granted()`"]
pub struct JointExtension {
    each: Vec<HoldExtension>,
}

impl JointExtension {
    pub(crate) fn new(each: Vec<HoldExtension>) -> JointExtension {
        JointExtension { each }
    }

    /// Whether all holds are now as large and as long as requested.
    pub fn is_granted(&self) -> bool {
        self.each.iter().all(HoldExtension::is_granted)
    }

    /// Returns why the holds cannot be extended: one of them had ended. `None` if all were open.
    pub fn ended(&self) -> Option<EndedHold> {
        self.each.iter().find_map(HoldExtension::ended)
    }

    /// Returns how long a refused extension must wait: the longest wait of its parts. `None` if it was granted, or can
    /// never be.
    pub fn retry_after(&self) -> Option<Duration> {
        let retry = |each: &HoldExtension| match each.decided.verdict {
            Verdict::Denied { retry } => Some(retry),
            Verdict::Allowed { .. } => None,
        };
        self.each.iter().filter_map(retry).max()?.after()
    }

    /// Returns the answer for each hold, in their order. If only another hold cannot be extended, a hold's own decision
    /// says allowed, although the hold was not extended.
    pub fn each(&self) -> &[HoldExtension] {
        &self.each
    }
}
