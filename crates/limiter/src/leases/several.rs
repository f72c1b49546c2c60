//! Checks of several limits, of which some are leased.

use std::sync::Arc;

use tollgate_core::{CombinedDecision, DecisionPart, LimitDecision};
use tollgate_lease::{LeaseTerms, TakeOneOfSeveral};

use super::driver::LeaseDriver;
use super::key::KeyParts;
use crate::decision::{Decision, DecisionSource};
use crate::error::Error;
use crate::joint::JointDecision;
use crate::store::Charge;

/// The answer of the leases to a check of several limits.
#[derive(Debug)]
pub(crate) enum TakenParts {
    /// The leases decide the whole check.
    Decided(JointDecision),
    /// The store decides the limits without a hit.
    Store(LeasedParts),
}

/// The limits of a check that leases have admitted, and the others, which the store decides.
#[derive(Debug)]
pub(crate) struct LeasedParts {
    driver: Arc<LeaseDriver>,
    charges: Vec<Charge>,
    /// One entry for each charge: the decision, if it was a hit.
    hits: Vec<Option<Decision>>,
}

/// The answer of a lease to one limit of a check.
enum TakenPart {
    Hit(Decision),
    Refused(LimitDecision),
    Store,
}

impl LeaseDriver {
    /// Decides the limits of one check with the leases of their keys, as far as they can. `terms` has one entry for each
    /// charge: `None` for a limit that is not leased.
    pub(crate) fn take_several(
        self: &Arc<Self>,
        charges: &[Charge],
        terms: &[Option<LeaseTerms>],
    ) -> TakenParts {
        let taken: Vec<TakenPart> = charges
            .iter()
            .zip(terms)
            .map(|(charge, terms)| self.take_part(charge, terms))
            .collect();
        let is_refused = taken.iter().any(|part| matches!(part, TakenPart::Refused(_)));
        let asks_store = taken.iter().any(|part| matches!(part, TakenPart::Store));
        if asks_store || !is_refused {
            // The store decides a limit with an empty lease together with the limits that are not leased.
            let hits = taken.into_iter().map(TakenPart::into_hit).collect();
            let parts = LeasedParts { driver: Arc::clone(self), charges: charges.to_vec(), hits };
            return match asks_store {
                true => TakenParts::Store(parts),
                false => {
                    TakenParts::Decided(parts.joined_with(CombinedDecision::of([]), Vec::new()))
                }
            };
        }
        TakenParts::Decided(self.refused(charges, taken))
    }

    fn take_part(&self, charge: &Charge, terms: &Option<LeaseTerms>) -> TakenPart {
        let Some(terms) = terms else { return TakenPart::Store };
        let (key, now) = (self.key_of(charge.name(), charge.key()), self.now());
        let cost = charge.demand().request.cost;
        let mut shard = self.shard(key.hash).lock();
        match shard.leases.take_one_of_several(now, &key as &dyn KeyParts, terms, cost) {
            TakeOneOfSeveral::Hit(hit) => {
                drop(shard);
                TakenPart::Hit(self.hit(&key, now, terms, hit))
            }
            TakeOneOfSeveral::Refuse(decision) => TakenPart::Refused(decision),
            TakeOneOfSeveral::Changed(end) => {
                drop(shard);
                drop(self.settle(end));
                TakenPart::Store
            }
            TakeOneOfSeveral::Store(call) => {
                drop(shard);
                if let Some(call) = call {
                    self.send(call, None);
                }
                TakenPart::Store
            }
        }
    }

    /// Refuses a check of which every limit is leased. If only shadows refuse, it is allowed.
    fn refused(&self, charges: &[Charge], taken: Vec<TakenPart>) -> JointDecision {
        let mut each = Vec::with_capacity(taken.len());
        for part in taken {
            each.push(match part {
                TakenPart::Hit(decision) => decision,
                TakenPart::Refused(decision) => {
                    Decision::uncharged(decision, DecisionSource::Leased)
                }
                // Not reached: every limit was decided here.
                TakenPart::Store => continue,
            });
        }
        let parts = charges.iter().zip(&each).map(|(charge, decision)| part(charge, decision));
        let combined = CombinedDecision::of(parts);
        if !combined.verdict.is_allowed() {
            for (charge, decision) in charges.iter().zip(&mut each) {
                self.give_back_decision(charge, decision);
            }
        }
        JointDecision::new(combined, each)
    }

    /// Gives back what a decision took. Without its receipt it says that the limit would have admitted the request.
    fn give_back_decision(&self, charge: &Charge, decision: &mut Decision) {
        self.give_back_unread(charge.name(), charge.key(), decision);
        decision.take_receipt();
    }
}

impl TakenPart {
    fn into_hit(self) -> Option<Decision> {
        match self {
            TakenPart::Hit(decision) => Some(decision),
            TakenPart::Refused(_) | TakenPart::Store => None,
        }
    }
}

impl LeasedParts {
    /// Returns the charges that the store decides.
    pub(crate) fn rest(&self) -> Vec<Charge> {
        let both = self.charges.iter().zip(&self.hits);
        both.filter(|(_, hit)| hit.is_none()).map(|(charge, _)| charge.clone()).collect()
    }

    /// Joins the store's answer about the rest with the hits. If the store refuses the request, or fails to decide it, the
    /// hits are given back.
    pub(crate) fn joined(
        mut self,
        rest: Result<JointDecision, Error>,
    ) -> Result<JointDecision, Error> {
        match rest {
            Ok(rest) => {
                let decided = *rest.decided();
                if !decided.verdict.is_allowed() {
                    self.give_back();
                }
                Ok(self.joined_with(decided, rest.into_each()))
            }
            Err(error) => {
                self.give_back();
                Err(error)
            }
        }
    }

    fn give_back(&mut self) {
        for (charge, hit) in self.charges.iter().zip(&mut self.hits) {
            if let Some(decision) = hit {
                self.driver.give_back_decision(charge, decision);
            }
        }
    }

    fn joined_with(self, mut combined: CombinedDecision, rest: Vec<Decision>) -> JointDecision {
        let of_rest: Vec<usize> =
            (0..self.hits.len()).filter(|&index| self.hits[index].is_none()).collect();
        combined.refused_by = combined.refused_by.and_then(|nth| of_rest.get(nth).copied());
        for (index, (charge, hit)) in self.charges.iter().zip(&self.hits).enumerate() {
            if let Some(decision) = hit {
                combined.add(index, &part(charge, decision));
            }
        }
        let mut rest = rest.into_iter();
        // OK because the store returns one decision for each of its charges.
        let each = self.hits.into_iter().filter_map(|hit| hit.or_else(|| rest.next()));
        JointDecision::new(combined, each.collect())
    }
}

fn part(charge: &Charge, decision: &Decision) -> DecisionPart {
    DecisionPart {
        role: charge.demand().role,
        decision: *decision.decided(),
        requests_remaining: decision.remaining() / charge.demand().request.cost.units(),
    }
}
