//! Decisions by the failure policy, when the store has failed.

use std::sync::{Arc, OnceLock};

use tollgate_core::{self as core, Intent, State, check_all};

use super::memory::{self, Memory};
use super::{Call, Charge};
use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::failure::{OnFailure, share_of};
use crate::joint::{Demand, JointDecision};

/// Decides requests that a store failed to decide, by the failure policy of the request.
#[derive(Debug)]
pub struct Fallback {
    /// The charges that this process has admitted on its share of the limits. Allocated when it is first needed.
    local: OnceLock<Memory>,
    max_bytes: Option<usize>,
    clock: Clock,
}

impl Fallback {
    /// Returns a fallback whose local shares take at most `max_bytes`.
    pub fn new(max_bytes: Option<usize>) -> Fallback {
        Fallback { local: OnceLock::new(), max_bytes, clock: Clock::system() }
    }

    fn local(&self) -> &Memory {
        self.local.get_or_init(|| Memory::new(self.max_bytes))
    }

    fn now_us(&self, call: &Call) -> u64 {
        call.at_us.unwrap_or_else(|| self.clock.now_us())
    }

    /// Decides one charge. `None` if the policy is [`OnFailure::Closed`]: the caller then returns the store's
    /// error.
    pub fn decide(&self, charge: &Charge, call: &Call) -> Option<Decision> {
        let now_us = self.now_us(call);
        let decision = match call.on_failure {
            OnFailure::Closed => return None,
            OnFailure::Open => unspent(charge, now_us),
            OnFailure::Local { processes } if charge.demand().intent == Intent::Peek => {
                let scope = scope_of(self.local(), processes, charge)?;
                self.local().peek(&scope, charge.key(), now_us, charge.demand().ask)
            }
            OnFailure::Local { processes } => {
                let joint =
                    decide_here(self.local(), processes, std::slice::from_ref(charge), now_us);
                *joint?.1.first()?
            }
        };
        Some(degraded(decision))
    }

    /// Decides several charges: all are made, or none is. `None` if the policy is [`OnFailure::Closed`].
    pub fn decide_all(&self, charges: &[Charge], call: &Call) -> Option<JointDecision> {
        let now_us = self.now_us(call);
        let (together, each) = match call.on_failure {
            OnFailure::Closed => return None,
            OnFailure::Open => unspent_together(charges, now_us),
            OnFailure::Local { processes } => {
                decide_here(self.local(), processes, charges, now_us)?
            }
        };
        Some(JointDecision::new(together, each.into_iter().map(degraded).collect()))
    }

    /// Decides one charge as if its key had spent nothing, for an answer that does not depend on what is
    /// spent.
    pub fn decide_unspent(&self, charge: &Charge, call: &Call) -> Decision {
        degraded(unspent(charge, self.now_us(call)))
    }
}

fn degraded(decision: core::LimitDecision) -> Decision {
    Decision::uncharged(decision, Source::Degraded)
}

/// Decides for a key that has spent nothing. A cost above the limit is still refused.
fn unspent(charge: &Charge, now_us: u64) -> core::LimitDecision {
    let (limit, Demand { ask, intent, .. }) = (charge.limit(), charge.demand());
    let mut state = limit.fresh();
    match intent {
        Intent::Charge => limit.check(&mut state, now_us, *ask).decision,
        Intent::Peek => limit.peek(&state, now_us, *ask),
    }
}

fn unspent_together(
    charges: &[Charge],
    now_us: u64,
) -> (core::CombinedDecision, Vec<core::LimitDecision>) {
    let mut states: Vec<State> = charges.iter().map(|charge| charge.limit().fresh()).collect();
    let both = charges.iter().zip(&mut states);
    let mut parts: Vec<_> = both
        .map(|(charge, state)| {
            let Demand { ask, role, intent } = *charge.demand();
            core::LimitCheck::enforced(charge.limit(), state, ask).with(role, intent)
        })
        .collect();
    let together = check_all(&mut parts, now_us);
    (together, parts.iter().filter_map(|part| part.decision().copied()).collect())
}

/// Decides on this process's share of the limits.
fn decide_here(
    memory: &Memory,
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
    let together = memory.together(&parts, now_us, &mut each);
    Some((together, each.iter().map(|decision| *decision.decided()).collect()))
}

/// Returns the scope of a limit's share; `None` if there are more limits than a memory store holds.
fn scope_of(memory: &Memory, processes: u32, charge: &Charge) -> Option<Arc<memory::Scope>> {
    memory.scope(charge.name(), share_of(charge.limit(), processes)).ok()
}
