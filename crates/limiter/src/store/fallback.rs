//! Decisions by the failure policy, when the store has failed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tollgate_core::{
    self as core, Cost, HoldReference, HoldUse, Holds, Intent, Limit, State, UnitRequest, check_all,
};

use super::memory::{self, MemoryBackend, MemoryStore};
use super::stored::limit_check;
use super::{Call, Charge};
use crate::clock::Clock;
use crate::decision::{Decision, DecisionSource};
use crate::failure::{
    LastSeen, OnFailure, SeenKeys, Spending, SpentUnits, share_of, starting_point,
};
use crate::joint::{Demand, JointDecision};
use crate::names::Name;

/// Decides requests that a store failed to decide, by the failure policy of the request.
#[derive(Debug)]
pub struct Fallback {
    /// The charges that this process has admitted on its share of the limits. Allocated when it is first needed.
    local: OnceLock<Arc<MemoryBackend>>,
    max_bytes: Option<usize>,
    clock: Clock,
    /// The store's last answer about each key, with which a share begins.
    seen: SeenKeys,
    /// The number of limiters that share the store's limits; 0 if it is not known.
    live_processes: AtomicU32,
}

impl Fallback {
    /// Returns a fallback whose local shares, and the states that they begin with, take at most `max_bytes`.
    pub fn new(max_bytes: Option<usize>) -> Fallback {
        let seen = SeenKeys::new(max_bytes);
        Fallback {
            local: OnceLock::new(),
            max_bytes: max_bytes.map(|bytes| bytes - seen.max_bytes()),
            clock: Clock::system(),
            seen,
            live_processes: AtomicU32::new(0),
        }
    }

    /// Sets the number of limiters that share the limits of the store at this time, with this one. A store that counts
    /// them calls this whenever it has counted. While the store fails, the last number holds.
    pub fn set_live_processes(&self, count: u32) {
        self.live_processes.store(count, Ordering::Relaxed);
    }

    /// Returns the number of limiters that share the limits of the store; `None` if the store has not counted them.
    pub(crate) fn live_processes(&self) -> Option<u32> {
        Some(self.live_processes.load(Ordering::Relaxed)).filter(|count| *count > 0)
    }

    /// Returns the number of processes that a local policy divides limits by.
    pub(crate) fn processes(&self, configured: Option<u32>) -> u32 {
        configured.or_else(|| self.live_processes()).unwrap_or(1)
    }

    /// Notes the store's decision on a charge, so that a share begins with it when the store fails. Decisions that the
    /// store did not make now, and policies that decide on no share, are ignored.
    #[inline]
    pub(crate) fn note(&self, charge: &Charge, decision: &Decision, call: &Call) {
        if !matches!(call.on_failure, OnFailure::Local { .. }) || !decision.is_of_store_now() {
            return;
        }
        self.note_answer(charge, decision.decided(), call);
    }

    /// Notes an answer of the store, whatever the failure policy.
    #[inline]
    pub(crate) fn note_answer(&self, charge: &Charge, decision: &core::LimitDecision, call: &Call) {
        let seen = LastSeen {
            spent: decision.limit.saturating_sub(decision.remaining),
            at_us: self.now_us(call),
            back_after_us: decision.reset_after_us,
        };
        self.seen.note(self.seen_hash(charge), seen);
    }

    /// Forgets what the store answered about the key of a charge, because the key was reset.
    pub(crate) fn forget(&self, charge: &Charge) {
        self.seen.forget(self.seen_hash(charge));
    }

    fn seen_hash(&self, charge: &Charge) -> u64 {
        self.seen.hash(charge.name().text_hash(), charge.key())
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
        name: &Arc<Name>,
        limit: &Limit,
    ) -> Option<(Arc<MemoryBackend>, Arc<memory::MemoryScope>)> {
        let scope = self.local().scope(name, share_of(limit, processes)).ok()?;
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
                let scope = self.share_at(processes, charge, now_us)?;
                self.local().peek(&scope, charge.key(), now_us, charge.demand().request)
            }
            OnFailure::Local { processes } => {
                let joint = self.decide_here(processes, std::slice::from_ref(charge), now_us);
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
            OnFailure::Local { processes } => self.decide_here(processes, charges, now_us),
        }
    }

    /// Releases a hold that [`decide_all`](Self::decide_all) has set aside on this process's share of the limit. Without
    /// effect under the other policies, which hold nothing.
    pub fn release(&self, charge: &Charge, hold: HoldReference, call: &Call) {
        let OnFailure::Local { processes } = call.on_failure else { return };
        let processes = self.processes(processes);
        let Some(scope) = scope_of(self.local(), processes, charge) else { return };
        let none = HoldUse { units: 0, is_last: true };
        self.local().settle(&scope, charge.key(), self.now_us(call), hold, none);
    }

    /// Decides one charge as if its key had spent nothing. It is for the charge of a shadow limit whose server failed,
    /// which cannot change the answer of its check.
    pub fn decide_unspent(&self, charge: &Charge, call: &Call) -> Decision {
        degraded(unspent(charge, self.now_us(call)))
    }

    /// Decides on this process's share of the limits, with the holds that are then there.
    fn decide_here(
        &self,
        processes: Option<u32>,
        charges: &[Charge],
        now_us: u64,
    ) -> Option<JointDecision> {
        let scopes = charges
            .iter()
            .map(|charge| self.share_at(processes, charge, now_us))
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
        let answer = self.local().reserve_all(&parts, now_us, &mut each);
        let each = each.iter().map(|decision| degraded(*decision.decided())).collect();
        Some(JointDecision::new(answer.combined, each).with_holds(answer.holds))
    }

    /// Returns the scope of a limit's share, in which the key of the charge has at least spent what the store last
    /// answered; `None` if there are more limits than a memory store holds.
    fn share_at(
        &self,
        processes: Option<u32>,
        charge: &Charge,
        now_us: u64,
    ) -> Option<Arc<memory::MemoryScope>> {
        let processes = self.processes(processes);
        let scope = scope_of(self.local(), processes, charge)?;
        self.seen.take(self.seen_hash(charge), |seen| {
            let spending = starting_point(charge.limit(), &scope.limit, processes, seen);
            spend_at_least(self.local(), &scope, charge.key(), spending, now_us);
        });
        Some(scope)
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

/// Spends units of a key, unless as many are spent already: this process may have admitted them while the store failed
/// before.
fn spend_at_least(
    memory: &MemoryStore,
    scope: &memory::MemoryScope,
    key: &[u8],
    spending: Spending,
    now_us: u64,
) {
    let spend = |SpentUnits { cost, at_us }| {
        let demand = Demand::of(UnitRequest::new(cost));
        let part = memory::JointPart { scope, key, demand };
        memory.reserve_all(&[part], at_us, &mut Vec::with_capacity(1));
    };
    let before = memory.peek(scope, key, now_us, UnitRequest::new(Cost::ONE));
    if before.reset_after_us == 0 {
        return spending.each().for_each(spend);
    }
    let spent = scope.limit.size().saturating_sub(before.remaining);
    let missing = spending.counts_at(&scope.limit, now_us).saturating_sub(spent);
    if let Some(missing) = SpentUnits::new(missing, now_us) {
        spend(missing);
    }
}

/// Returns the scope of a limit's share; `None` if there are more limits than a memory store holds.
fn scope_of(
    memory: &MemoryStore,
    processes: u32,
    charge: &Charge,
) -> Option<Arc<memory::MemoryScope>> {
    memory.scope(charge.name(), share_of(charge.limit(), processes)).ok()
}
