//! What requests come to without a server.

use std::sync::{Arc, OnceLock};

use tollgate_core::{self as core, Intent, State, Together, check_all};

use super::wire::{Charge, PartOf, Reply, Request};
use crate::decision::{Decision, Source};
use crate::failure::{OnFailure, share_of};
use crate::store::memory::{self, Memory};
use crate::together::Demand;

/// What is decided without a server.
pub(super) struct Policy {
    /// What this process's share has spent; made when it is first needed, of so many bytes.
    local: OnceLock<Memory>,
    max_bytes: Option<usize>,
}

impl Policy {
    pub(super) fn new(max_bytes: Option<usize>) -> Policy {
        Policy { local: OnceLock::new(), max_bytes }
    }

    fn local(&self) -> &Memory {
        self.local.get_or_init(|| Memory::new(self.max_bytes))
    }

    /// What a request comes to; `None` if that is an error.
    pub(super) fn decide(
        &self,
        on_failure: OnFailure,
        request: &Request,
        now_us: u64,
    ) -> Option<Reply> {
        match (request, on_failure) {
            (_, OnFailure::Closed) => None,
            (Request::Check { charge, .. }, OnFailure::Open) => {
                Some(Reply::Checked(unspent(charge, now_us)))
            }
            (Request::Peek { charge, .. }, OnFailure::Open) => {
                let decision = charge.limit.peek(&charge.limit.fresh(), now_us, charge.demand.ask);
                Some(Reply::Checked(degraded(decision)))
            }
            (Request::Check { charge, .. }, OnFailure::Local { processes }) => {
                let (_, each) = decide_here(self.local(), processes, &[charge], now_us)?;
                let decision = *each.first()?;
                Some(Reply::Checked(degraded(decision)))
            }
            (Request::Peek { charge, .. }, OnFailure::Local { processes }) => {
                let scope = scope_of(self.local(), processes, charge)?;
                let decision = self.local().peek(&scope, &charge.key, now_us, charge.demand.ask);
                Some(Reply::Checked(degraded(decision)))
            }
            (Request::Together { charges, parts, .. }, on_failure) => {
                let (mut together, each) = match on_failure {
                    OnFailure::Local { processes } => {
                        let charges: Vec<&Charge> = charges.iter().collect();
                        decide_here(self.local(), processes, &charges, now_us)?
                    }
                    _ => unspent_together(charges, now_us),
                };
                let first_of = |charge| PartOf::first_of(parts, charge);
                together.refused_by = together.refused_by.and_then(first_of);
                let own = |part: &PartOf| Some(degraded(*each.get(part.charge)?));
                let each = parts.iter().map(own).collect::<Option<_>>()?;
                Some(Reply::Together(together, each))
            }
            (Request::Refund { .. } | Request::Reset { .. } | Request::State { .. }, _) => None,
        }
    }
}

fn degraded(decision: core::Decision) -> Decision {
    Decision::uncharged(decision, Source::Degraded)
}

/// What a key that has spent nothing would be told: one that costs too much never fits.
pub(super) fn unspent(charge: &Charge, now_us: u64) -> Decision {
    let Charge { limit, demand: Demand { ask, intent, .. }, .. } = charge;
    let mut state = limit.fresh();
    let decision = match intent {
        Intent::Charge => limit.check(&mut state, now_us, *ask).decision,
        Intent::Look => limit.peek(&state, now_us, *ask),
    };
    degraded(decision)
}

fn unspent_together(charges: &[Charge], now_us: u64) -> (Together, Vec<core::Decision>) {
    let mut states: Vec<State> = charges.iter().map(|charge| charge.limit.fresh()).collect();
    let together = |(charge, state)| {
        let Charge { limit, demand: Demand { ask, role, intent }, .. }: &Charge = charge;
        tollgate_core::Charge::enforced(limit, state, *ask).with(*role, *intent)
    };
    let mut parts: Vec<_> = charges.iter().zip(&mut states).map(together).collect();
    let together = check_all(&mut parts, now_us);
    (together, parts.iter().filter_map(|part| part.decision().copied()).collect())
}

/// Decides on this process's share. The Redis key says everything but the limit.
fn decide_here(
    memory: &Memory,
    processes: u32,
    charges: &[&Charge],
    now_us: u64,
) -> Option<(Together, Vec<core::Decision>)> {
    let scopes = charges
        .iter()
        .map(|charge| scope_of(memory, processes, charge))
        .collect::<Option<Vec<_>>>()?;
    let parts: Vec<memory::Part<'_>> = charges
        .iter()
        .zip(&scopes)
        .map(|(charge, scope)| {
            let Charge { key, demand, .. } = charge;
            memory::Part { scope, key, demand: *demand }
        })
        .collect();
    let mut each = memory::Few::new();
    let together = memory.together(&parts, now_us, &mut each);
    Some((together, each.iter().map(|decision| *decision.decided()).collect()))
}

/// `None` if there are more limits than a memory store takes: then there is no share of one.
fn scope_of(memory: &Memory, processes: u32, charge: &Charge) -> Option<Arc<memory::Scope>> {
    let Charge { key, limit, .. } = charge;
    // The scope's name is behind the id; there is no brace in either.
    let name = key.rsplit(|&byte| byte == b'}').next().unwrap_or_default();
    memory.scope(&String::from_utf8_lossy(name), share_of(limit, processes)).ok()
}
