//! The limits and keys of a hold, which its token names.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{Error, Hold, HoldReference, JointHold, Scope};
use tollgate_core::{Cost, LimitDecision, UnitRequest, Verdict};

use super::HoldProblem;
use crate::receipt::{HeldBy, HoldPlace, Receipts, TokenPart};
use crate::ruleset::{CountedExpiry, CountedOperation, HoldTally, RuleSet};

/// How long the store has for a settlement or an extension. Longer than the deadline of checks, because a hold whose
/// settlement is lost is charged in full.
const DEADLINE: Duration = Duration::from_secs(1);

/// The parts of a hold.
#[derive(Debug)]
pub(super) struct HoldTarget {
    pub(super) by: HeldBy,
    pub(super) parts: Vec<TargetPart>,
    /// The names of the rules in the token whose limit no longer exists.
    pub(super) without_limit: Vec<String>,
}

/// The limit and the key of a part.
#[derive(Debug)]
pub(super) struct TargetPart {
    pub(super) scope: Scope,
    /// The name of the limit that a rule spends.
    limit: Box<str>,
    pub(super) key: Box<[u8]>,
    reference: HoldReference,
    /// The expiry, as the hold is counted by it.
    pub(super) expiry: CountedExpiry,
    place: HoldPlace,
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
        let mut target = HoldTarget { by, parts: Vec::new(), without_limit: Vec::new() };
        for part in parts {
            if let HoldPlace::Share(share) = part.place
                && !receipts.is_own(share)
            {
                return Err(HoldProblem::OnOtherServer);
            }
            match TargetPart::of(&part, rules) {
                Some(part) => target.parts.push(part),
                None => target.without_limit.push(rule_name(part.scope).to_owned()),
            }
        }
        let is_gone = target.parts.is_empty() && !target.without_limit.is_empty();
        if is_gone { Err(HoldProblem::NoLimit) } else { Ok(target) }
    }

    /// Returns the parts whose units are held: on the store, or on this process's share of the limit.
    pub(super) fn held(&self) -> impl Iterator<Item = &TargetPart> {
        self.parts.iter().filter(|part| part.is_held())
    }

    /// Returns the holds of these parts.
    pub(super) fn holds(&self) -> Result<JointHold, HoldProblem<'static>> {
        let holds = self.held().map(TargetPart::hold).collect::<Result<_, _>>()?;
        JointHold::of(holds).map_err(HoldProblem::Failed)
    }

    /// Counts an operation that failed for every part.
    pub(super) fn count_error(&self, operation: CountedOperation, error: &Error) {
        self.held().for_each(|part| part.tally.count_error(operation, error));
    }
}

impl TargetPart {
    /// Returns the part that a token names; `None` if its limit no longer exists.
    fn of(part: &TokenPart<'_>, rules: &RuleSet) -> Option<TargetPart> {
        let &TokenPart { scope: name, limit, key, reference, place, .. } = part;
        let tally = rules.hold_tally(name)?;
        let scope = rules.scope_of(name, limit, key)?.deadline(DEADLINE);
        let (limit, key, expiry) = (limit.into(), key.into(), part.expiry());
        Some(TargetPart { scope, limit, key, reference, expiry, place, tally })
    }

    /// Whether the units are held. If not, the failure policy `open` admitted the part.
    pub(super) fn is_held(&self) -> bool {
        self.place != HoldPlace::Nowhere
    }

    /// Whether the part was admitted without the store, which has no such hold.
    pub(super) fn is_degraded(&self) -> bool {
        self.place != HoldPlace::Store
    }

    /// Returns the hold.
    fn hold(&self) -> Result<Hold, HoldProblem<'static>> {
        let hold = match self.place {
            HoldPlace::Share(share) => {
                self.scope.hold_on_share(&*self.key, self.reference, share.processes)
            }
            HoldPlace::Store | HoldPlace::Nowhere => {
                self.scope.hold(&*self.key, self.reference).map(Some)
            }
        };
        // Without a share, this is not the server that has the hold.
        hold.map_err(HoldProblem::Failed)?.ok_or(HoldProblem::OnOtherServer)
    }

    /// Returns the name of the limit, or of the rule without its domain.
    pub(super) fn rule_name(&self) -> &str {
        rule_name(self.scope.name())
    }

    /// Returns the decision on a part that was admitted without the store, as if nothing was spent.
    pub(super) fn unspent(&self) -> LimitDecision {
        let limit = self.scope.limit();
        let decision = limit.peek(&limit.fresh(), 0, UnitRequest::new(Cost::ONE));
        LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision }
    }

    /// Returns this part for a new token, after it was extended for `hold_for`. If its units are held, its expiry is that
    /// of the next of `holds`.
    pub(super) fn extended<'h>(
        &self,
        holds: &mut impl Iterator<Item = &'h Hold>,
        hold_for: Duration,
    ) -> TokenPart<'_> {
        let hold = if self.is_held() { holds.next() } else { None };
        let reference = hold.map_or(self.reference, Hold::reference);
        TokenPart {
            scope: self.scope.name(),
            limit: &self.limit,
            key: &self.key,
            reference,
            slot_width: CountedExpiry::new(reference.expires_us, hold_for).width,
            place: self.place,
        }
    }
}

/// Returns the name of a rule without its domain, or the name of a limit.
fn rule_name(scope: &str) -> &str {
    scope.rsplit_once('/').map_or(scope, |(_, name)| name)
}
