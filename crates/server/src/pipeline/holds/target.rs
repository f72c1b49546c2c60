//! The limits and keys of a hold, which its token names.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Error, Hold, HoldReference, JointHold, Scope};
use tollgate_core::{Cost, LimitDecision, UnitRequest, Verdict};

use super::HoldProblem;
use crate::receipt::{HeldBy, Receipts, TokenPart};
use crate::ruleset::{CountedOperation, HoldTally, RuleSet};

/// How long the store has for a settlement or an extension. Longer than the deadline of checks, because a hold whose
/// settlement is lost is charged in full.
const DEADLINE: Duration = Duration::from_secs(1);

/// The parts of a hold.
#[derive(Debug)]
pub(super) struct HoldTarget {
    pub(super) by: HeldBy,
    pub(super) parts: Vec<TargetPart>,
}

/// The limit and the key of a part.
#[derive(Debug)]
pub(super) struct TargetPart {
    pub(super) scope: Scope,
    pub(super) key: Box<[u8]>,
    pub(super) reference: HoldReference,
    /// Whether the part was admitted without the store, which has no such hold.
    pub(super) is_degraded: bool,
    pub(super) tally: Arc<HoldTally>,
}

impl HoldTarget {
    /// Reads a token. Parts whose limit no longer exists are skipped.
    pub(super) fn of(
        token: &str,
        receipts: &Receipts,
        rules: &RuleSet,
    ) -> Result<HoldTarget, HoldProblem<'static>> {
        let signed = receipts.read_hold(token).ok_or(HoldProblem::NotAToken)?;
        let (by, parts) = signed.content().ok_or(HoldProblem::NotAToken)?;
        let count = parts.len();
        let parts: Vec<TargetPart> = parts
            .into_iter()
            .filter_map(|TokenPart { scope, key, reference, is_degraded }| {
                let tally = rules.hold_tally(scope)?;
                let scope = rules.rules().scope(scope)?.deadline(DEADLINE);
                Some(TargetPart { scope, key: key.into(), reference, is_degraded, tally })
            })
            .collect();
        match parts.is_empty() && (count > 0 || by == HeldBy::Limit) {
            true => Err(HoldProblem::NoLimit),
            false => Ok(HoldTarget { by, parts }),
        }
    }

    /// Returns the parts that the store has.
    pub(super) fn on_store(&self) -> impl Iterator<Item = &TargetPart> {
        self.parts.iter().filter(|part| !part.is_degraded)
    }

    /// Returns the holds that the store has.
    pub(super) fn holds(&self) -> Result<JointHold, Error> {
        let hold = |part: &TargetPart| part.scope.hold(&*part.key, part.reference);
        JointHold::of(self.on_store().map(hold).collect::<Result<_, _>>()?)
    }

    /// Counts an operation that failed for every part.
    pub(super) fn count_error(&self, operation: CountedOperation, error: &Error) {
        self.on_store().for_each(|part| part.tally.count_error(operation, error));
    }
}

impl TargetPart {
    pub(super) fn name(&self) -> &str {
        self.scope.name()
    }

    /// Returns the decision on a part that was admitted without the store, as if nothing was spent.
    pub(super) fn unspent(&self) -> LimitDecision {
        let limit = self.scope.limit();
        let decision = limit.peek(&limit.fresh(), 0, UnitRequest::new(Cost::ONE));
        LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision }
    }

    /// Returns this part for a new token. If the store has it, its expiry is that of the next of `holds`.
    pub(super) fn with_expiry_of<'h>(
        &self,
        holds: &mut impl Iterator<Item = &'h Hold>,
    ) -> TokenPart<'_> {
        let hold = if self.is_degraded { None } else { holds.next() };
        TokenPart {
            scope: self.scope.name(),
            key: &self.key,
            reference: hold.map_or(self.reference, Hold::reference),
            is_degraded: self.is_degraded,
        }
    }
}
