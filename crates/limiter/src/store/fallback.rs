//! Decisions by the failure policy, when the store has failed.

use std::sync::{Arc, OnceLock};

use tollgate_core::{self as core, HoldReference, HoldUse, Holds, Intent, State, check_all};

use super::memory::{self, MemoryBackend, MemoryStore};
use super::stored::limit_check;
use super::{Call, Charge};
use crate::clock::Clock;
use crate::decision::{Decision, DecisionSource};
use crate::failure::{OnFailure, share_of};
use crate::joint::{Demand, JointDecision};

/// Decides requests that a store failed to decide, by the failure policy of the request.
#[derive(Debug)]
pub struct Fallback {
    /// The charges that this process has admitted on its share of the limits. Allocated when it is first needed.
    local: OnceLock<Arc<MemoryBackend>>,
    max_bytes: Option<usize>,
    clock: Clock,
}

impl Fallback {
    /// Returns a fallback whose local shares take at most `max_bytes`.
    pub fn new(max_bytes: Option<usize>) -> Fallback {
        Fallback { local: OnceLock::new(), max_bytes, clock: Clock::system() }
    }

    /// Sets the clock of requests that bring no time.
    #[must_use]
    pub fn on_clock(self, clock: Clock) -> Fallback {
        Fallback { clock, ..self }
    }

    fn backend(&self) -> &Arc<MemoryBackend> {
        self.local.get_or_init(|| {
            let memory = MemoryStore::new(self.max_bytes);
            Arc::new(MemoryBackend { memory, clock: self.clock.clone() })
        })
    }

    fn local(&self) -> &MemoryStore {
        &self.backend().memory
    }

    /// Returns where this process keeps its share of a limit, for operations on a hold that was reserved there; `None` if
    /// there are more limits than a memory store holds.
    pub(crate) fn share(
        &self,
        processes: u32,
        charge: &Charge,
    ) -> Option<(Arc<MemoryBackend>, Arc<memory::MemoryScope>)> {
        let scope = scope_of(self.local(), processes, charge)?;
        Some((Arc::clone(self.backend()), scope))
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
                return joint?.into_each().pop();
            }
        };
        Some(degraded(decision))
    }

    /// Decides several charges: all are made, or none is. Returns `None` in the same cases as
    /// [`decide`](Self::decide).
    pub fn decide_all(&self, charges: &[Charge], call: &Call) -> Option<JointDecision> {
        let now_us = self.now_us(call);
        match call.on_failure {
            OnFailure::Closed => None,
            OnFailure::Open => Some(all_unspent(charges, now_us)),
            OnFailure::Local { processes } => decide_here(self.local(), processes, charges, now_us),
        }
    }

    /// Releases a hold that [`decide_all`](Self::decide_all) has set aside on this process's share of the limit. Without
    /// effect under the other policies, which hold nothing.
    pub fn release(&self, charge: &Charge, hold: HoldReference, call: &Call) {
        let OnFailure::Local { processes } = call.on_failure else { return };
        let Some(scope) = scope_of(self.local(), processes, charge) else { return };
        let none = HoldUse { units: 0, is_last: true };
        self.local().settle(&scope, charge.key(), self.now_us(call), hold, none);
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

/// Decides for keys that have spent nothing. An admitted reservation is not kept anywhere.
fn all_unspent(charges: &[Charge], now_us: u64) -> JointDecision {
    let mut keys: Vec<(State, Holds)> =
        charges.iter().map(|charge| (charge.limit().fresh(), Holds::default())).collect();
    let both = charges.iter().zip(&mut keys);
    let mut checks: Vec<_> = both
        .map(|(charge, (state, holds))| limit_check(charge.limit(), state, holds, charge.demand()))
        .collect();
    let combined = check_all(&mut checks, now_us);
    let each = checks.iter().filter_map(|check| check.decision().copied());
    JointDecision::new(combined, each.map(degraded).collect())
}

/// Decides on this process's share of the limits, with the holds that are then there.
fn decide_here(
    memory: &MemoryStore,
    processes: u32,
    charges: &[Charge],
    now_us: u64,
) -> Option<JointDecision> {
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
    let answer = memory.reserve_all(&parts, now_us, &mut each);
    let each = each.iter().map(|decision| degraded(*decision.decided())).collect();
    Some(JointDecision::new(answer.combined, each).with_holds(answer.holds))
}

/// Returns the scope of a limit's share; `None` if there are more limits than a memory store holds.
fn scope_of(
    memory: &MemoryStore,
    processes: u32,
    charge: &Charge,
) -> Option<Arc<memory::MemoryScope>> {
    memory.scope(charge.name(), share_of(charge.limit(), processes)).ok()
}
