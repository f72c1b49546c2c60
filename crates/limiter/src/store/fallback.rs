//! Decisions by the failure policy, when the store has failed.

use std::sync::{Arc, OnceLock};

use tollgate_core::{self as core, Intent, State, check_all};

use super::memory::{self, MemoryStore};
use super::{Call, Charge};
use crate::clock::Clock;
use crate::decision::{Decision, DecisionSource};
use crate::failure::{OnFailure, share_of};
use crate::joint::{Demand, JointDecision};

/// Decides requests that a store failed to decide, by the failure policy of the request.
#[derive(Debug)]
pub struct Fallback {
    /// The charges that this process has admitted on its share of the limits. Allocated when it is first needed.
    local: OnceLock<MemoryStore>,
    max_bytes: Option<usize>,
    clock: Clock,
}

impl Fallback {
    /// Returns a fallback whose local shares take at most `max_bytes`.
    pub fn new(max_bytes: Option<usize>) -> Fallback {
        Fallback { local: OnceLock::new(), max_bytes, clock: Clock::system() }
    }

    fn local(&self) -> &MemoryStore {
        self.local.get_or_init(|| MemoryStore::new(self.max_bytes))
    }

    fn now_us(&self, call: &Call) -> u64 {
        call.at_us.unwrap_or_else(|| self.clock.now_us())
    }

    /// Decides one charge. Returns `None` if the policy is [`OnFailure::Closed`], or if it is local and this process
    /// already has as many limits as a memory store holds: the caller then returns the store's error.
    pub fn decide(&self, charge: &Charge, call: &Call) -> Option<Decision> {
        let now_us = self.now_us(call);
        let decision = match call.on_failure {
            OnFailure::Closed => return None,
            OnFailure::Open => unspent(charge, now_us),
            OnFailure::Local { processes } if charge.demand().intent == Intent::Peek => {
                let scope = scope_of(self.local(), processes, charge)?;
                self.local().peek(&scope, charge.key(), now_us, charge.demand().request)
            }
            OnFailure::Local { processes } => {
                let joint =
                    decide_here(self.local(), processes, std::slice::from_ref(charge), now_us);
                *joint?.1.first()?
            }
        };
        Some(degraded(decision))
    }

    /// Decides several charges: all are made, or none is. Returns `None` in the same cases as
    /// [`decide`](Self::decide).
    pub fn decide_all(&self, charges: &[Charge], call: &Call) -> Option<JointDecision> {
        let now_us = self.now_us(call);
        let (together, each) = match call.on_failure {
            OnFailure::Closed => return None,
            OnFailure::Open => all_unspent(charges, now_us),
            OnFailure::Local { processes } => {
                decide_here(self.local(), processes, charges, now_us)?
            }
        };
        Some(JointDecision::new(together, each.into_iter().map(degraded).collect()))
    }

    /// Decides one charge as if its key had spent nothing. It is for the charge of a shadow limit whose server failed,
    /// which cannot change the answer of its check.
    pub fn decide_unspent(&self, charge: &Charge, call: &Call) -> Decision {
        degraded(unspent(charge, self.now_us(call)))
    }
}

fn degraded(decision: core::LimitDecision) -> Decision {
    Decision::uncharged(decision, DecisionSource::Degraded)
}

/// Decides for a key that has spent nothing. A cost above the limit is still refused.
fn unspent(charge: &Charge, now_us: u64) -> core::LimitDecision {
    let (limit, Demand { request, intent, .. }) = (charge.limit(), charge.demand());
    let mut state = limit.fresh();
    match intent {
        Intent::Charge => limit.check(&mut state, now_us, *request).decision,
        Intent::Peek => limit.peek(&state, now_us, *request),
    }
}

fn all_unspent(
    charges: &[Charge],
    now_us: u64,
) -> (core::CombinedDecision, Vec<core::LimitDecision>) {
    let mut states: Vec<State> = charges.iter().map(|charge| charge.limit().fresh()).collect();
    let both = charges.iter().zip(&mut states);
    let mut checks: Vec<_> = both
        .map(|(charge, state)| {
            let Demand { request, role, intent, .. } = *charge.demand();
            core::LimitCheck::enforced(charge.limit(), state, request).with(role, intent)
        })
        .collect();
    let combined = check_all(&mut checks, now_us);
    (combined, checks.iter().filter_map(|check| check.decision().copied()).collect())
}

/// Decides on this process's share of the limits.
fn decide_here(
    memory: &MemoryStore,
    processes: u32,
    charges: &[Charge],
    now_us: u64,
) -> Option<(core::CombinedDecision, Vec<core::LimitDecision>)> {
    let scopes = charges
        .iter()
        .map(|charge| scope_of(memory, processes, charge))
        .collect::<Option<Vec<_>>>()?;
    let both = charges.iter().zip(&scopes);
    let parts: Vec<memory::JointPart<'_>> = both
        .map(|(charge, scope)| memory::JointPart {
            scope,
            key: charge.key(),
            demand: *charge.demand(),
        })
        .collect();
    let mut each = Vec::with_capacity(charges.len());
    let combined = memory.check_all(&parts, now_us, &mut each);
    Some((combined, each.iter().map(|decision| *decision.decided()).collect()))
}

/// Returns the scope of a limit's share; `None` if there are more limits than a memory store holds.
fn scope_of(
    memory: &MemoryStore,
    processes: u32,
    charge: &Charge,
) -> Option<Arc<memory::MemoryScope>> {
    memory.scope(charge.name(), share_of(charge.limit(), processes)).ok()
}
