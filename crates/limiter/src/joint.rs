//! The decision of several limits on one request.

use std::time::Duration;

use tollgate_core::{
    Cost, DecisionPart, HoldId, HoldReference, HoldTime, Intent, MAX_UNITS, Reservation, Role,
    UnitRequest, Verdict,
};

use crate::decision::Decision;

/// The decision of several limits on one request: all limits are charged, or none is. Peeks are never
/// charged.
#[derive(Debug)]
#[must_use = "the request may have been refused: branch on `is_allowed()` or `verdict()`"]
pub struct JointDecision {
    decided: tollgate_core::CombinedDecision,
    each: Vec<Decision>,
    /// The hold of each limit whose units were set aside. Empty, without memory, if nothing was.
    holds: Vec<Option<HoldReference>>,
}

impl JointDecision {
    /// Returns the joint decision, with the decision of each limit.
    #[inline]
    pub fn new(decided: tollgate_core::CombinedDecision, each: Vec<Decision>) -> JointDecision {
        JointDecision { decided, each, holds: Vec::new() }
    }

    /// Adds the holds of an admitted reservation, one entry for each limit: `None` for a limit whose units were not set
    /// aside.
    pub fn with_holds(self, holds: Vec<Option<HoldReference>>) -> JointDecision {
        JointDecision { holds, ..self }
    }

    /// Returns the decision of a single limit on a request that costs `units`.
    pub fn of_one(decision: Decision, units: u64) -> JointDecision {
        let requests_remaining = decision.remaining() / units.max(1);
        let part = DecisionPart {
            role: Role::Enforced,
            decision: *decision.decided(),
            requests_remaining,
        };
        JointDecision::new(tollgate_core::CombinedDecision::of([part]), vec![decision])
    }

    /// Whether every enforced limit allows the request.
    pub fn is_allowed(&self) -> bool {
        self.decided.verdict.is_allowed()
    }

    /// Returns whether the request is allowed, and when a refused request may be tried again.
    pub fn verdict(&self) -> Verdict {
        self.decided.verdict
    }

    /// Returns the index of the check that refuses for longest; the first, if several do. `None` for an
    /// allowed request. Checks of one key under one name count as one, with the index of the first of them.
    pub fn refused_by(&self) -> Option<usize> {
        self.decided.refused_by
    }

    /// Returns the size of the tightest enforced limit; `None` without an enforced limit.
    ///
    /// The tightest limit is the one that refuses the request for longest; for an allowed request the one that
    /// fits the fewest more such requests, and among equals the one that resets last.
    pub fn limit(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.limit)
    }

    /// Returns the units left of the tightest enforced limit; `None` without an enforced limit.
    pub fn remaining(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.remaining)
    }

    /// Returns how many more such requests fit all enforced limits at this instant, as if peeks were charged too;
    /// `None` without an enforced limit.
    ///
    /// After a request that costs 10 of a limit of 600, [`remaining`](Self::remaining) is 590 and this is 59.
    pub fn requests_remaining(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.requests_remaining)
    }

    /// Returns how long a refused request must wait, exactly; `None` for an allowed request, and for
    /// a refused request that can never be allowed.
    ///
    /// `None` does not mean allowed. Branch on [`is_allowed`](Self::is_allowed) or
    /// [`verdict`](Self::verdict), and call this only for a refused request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.verdict.retry_after_us().map(Duration::from_micros)
    }

    /// Returns how long until nothing is spent under any enforced limit.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.decided.reset_after_us)
    }

    /// Returns how long an allowed request should wait before it proceeds: the longest of the limits' delays.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.decided.verdict.delay_us())
    }

    /// Whether at least one limit was decided without the store, because the store failed.
    pub fn is_degraded(&self) -> bool {
        self.each.iter().any(Decision::is_degraded)
    }

    /// Returns each limit's own decision, in the order of the checks. If only another limit refuses the request, a
    /// limit's own decision says allowed, although the limit was not charged.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// Returns the hold of the limit at this index; `None` if its units were not set aside.
    pub fn hold(&self, index: usize) -> Option<HoldReference> {
        self.holds.get(index).copied().flatten()
    }

    /// Returns the decision of all limits together, as the algorithms return it.
    pub fn decided(&self) -> &tollgate_core::CombinedDecision {
        &self.decided
    }

    /// Takes each limit's own decision, for the receipts.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

/// A request to one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The cost, and the longest wait.
    pub request: UnitRequest,
    /// Whether the limit is enforced, so that it can refuse the request.
    pub role: Role,
    /// Whether the limit is charged.
    pub intent: Intent,
    /// Set if the units are set aside instead of charged. The intent is then [`Intent::Charge`].
    pub hold: Option<HoldTerms>,
}

/// The terms of a hold that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldTerms {
    /// The id of the hold, if the request is admitted.
    pub id: HoldId,
    /// How long the units are held.
    pub hold_for: HoldTime,
}

impl Demand {
    /// Returns the demand of a plain check: enforced, and charged.
    pub fn of(request: UnitRequest) -> Demand {
        Demand { request, role: Role::Enforced, intent: Intent::Charge, hold: None }
    }

    /// Returns the demand of a reservation.
    pub fn of_reservation(Reservation { id, cost, hold_for }: Reservation) -> Demand {
        let hold = Some(HoldTerms { id, hold_for });
        Demand { hold, ..Demand::of(UnitRequest::new(cost)) }
    }

    /// Returns the reservation that this demand makes; `None` if its units are not set aside.
    pub fn reservation(&self) -> Option<Reservation> {
        let HoldTerms { id, hold_for } = self.hold?;
        Some(Reservation { id, cost: self.request.cost, hold_for })
    }

    /// Whether this part of a check takes precedence over `other`, a part of the same check with the same key:
    /// enforced before shadow, then charge before peek.
    pub(crate) fn outranks(&self, other: &Demand) -> bool {
        self.rank() > other.rank()
    }

    fn rank(&self) -> (bool, bool) {
        (self.role == Role::Enforced, self.intent == Intent::Charge)
    }

    /// Merges two parts of one check with the same key. If one takes precedence, the other adds nothing: a shadow next
    /// to an enforced part must not refuse, and a peek next to a charge must not be charged. Otherwise the costs are
    /// added, and the shorter of the two longest waits applies.
    pub(crate) fn merged(self, other: Demand) -> Demand {
        if other.outranks(&self) {
            return other;
        } else if self.outranks(&other) {
            return self;
        }
        let units = self.request.cost.units().saturating_add(other.request.cost.units());
        // A sum above the largest cost, 2^53 - 1, becomes the largest cost, which fits only a limit of
        // 2^53 - 1.
        let cost = Cost::new(units.min(MAX_UNITS)).unwrap_or(self.request.cost);
        let max_wait_us =
            [self.request.max_wait_us, other.request.max_wait_us].into_iter().flatten().min();
        let hold = HoldTerms::merged(self.hold, other.hold);
        Demand { request: UnitRequest { cost, max_wait_us }, hold, ..self }
    }
}

impl HoldTerms {
    /// Merges the terms of two parts with the same key: the longer time applies. A part that holds nothing adds its units
    /// to the hold of the other.
    fn merged(one: Option<HoldTerms>, other: Option<HoldTerms>) -> Option<HoldTerms> {
        match (one, other) {
            (Some(one), Some(other)) => {
                Some(HoldTerms { hold_for: one.hold_for.max(other.hold_for), ..one })
            }
            (one, other) => one.or(other),
        }
    }
}
