//! Keys with holds. They are kept apart from the table, so that checks of other keys pay nothing for them.
//!
//! A key is in the table of its shard or among its held keys, never in both. A check that finds no slot looks here, under
//! the same lock. A reservation moves its key here. The operation that ends the last hold moves the key back if the
//! table has room for it; without room, the key stays here without holds.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use tollgate_core::{
    CarryOver, ChargeReceipt, CheckResult, Cost, ExtendAnswer, GrantedExtension, HoldError,
    HoldGrowth, HoldReference, HoldUse, Holds, Limit, LimitDecision, MAX_STEP_BACK_US, OpenHold,
    Reservation, ReserveAnswer, Retry, SettleAnswer, State, UnitRequest, Verdict,
};

use super::KeyPlace;
use super::budget::StoreBudget;
use super::identity::KeyIdentity;
use super::logs::{self, BYTES_PER_ALLOCATION};
use super::scopes::MemoryScope;
use super::view::StoreView;
use crate::store::stored::reserve;

/// The number of the name, and the key.
pub(super) type HeldKeyId = (u64, KeyIdentity);

/// The keys of a shard that have holds.
#[derive(Debug)]
pub(super) struct HeldKeys {
    by_id: BTreeMap<HeldKeyId, Box<HeldKey>>,
    /// The number of keys at which dead ones are removed next.
    sweep_at: usize,
    /// The key after which the next search for dead keys begins, when there is no memory for a hold.
    cursor: HeldKeyId,
}

/// A key with its holds. The key stays here without holds while the table has no room for it.
#[derive(Debug)]
pub(super) struct HeldKey {
    /// The scope that the state is under. As long as it is here, the scope keeps its index.
    pub(super) scope: Arc<MemoryScope>,
    pub(super) state: State,
    pub(super) holds: Holds,
}

/// The fewest keys at which dead ones are removed.
const MIN_SWEEP: usize = 8;

/// How many keys are examined for dead ones when there is no memory for a hold: all keys of a shard of the planned size,
/// and few enough that a refusal takes microseconds in a larger one.
pub(super) const MAX_EXAMINED_KEYS: usize = 128;

/// After this many holds, no further key is examined: to examine a key takes longer the more holds it has.
pub(super) const MAX_EXAMINED_HOLDS: usize = 1_024;

/// The bytes of a key in the budget, without its holds and its log. A node of the map has 11 places, of which at least
/// 5 are used, and all inner nodes together take less than a third of the leaves: at most 11/5 * 4/3 places for each
/// key, which is less than 3.
const KEY_BYTES: usize = size_of::<HeldKey>()
    + BYTES_PER_ALLOCATION
    + 3 * (size_of::<HeldKeyId>() + size_of::<Box<HeldKey>>() + 4);

/// The bytes of the list in the budget, with its first node, which may be nearly empty.
pub(super) const LIST_BYTES: usize = size_of::<HeldKeys>()
    + 2 * BYTES_PER_ALLOCATION
    + 11 * (size_of::<HeldKeyId>() + size_of::<Box<HeldKey>>() + 8);

/// The bytes that a key takes with its first hold, a log not included.
pub(super) const FIRST_HOLD_BYTES: usize = KEY_BYTES + holds_bytes(4 * size_of::<OpenHold>());

const fn holds_bytes(heap_bytes: usize) -> usize {
    if heap_bytes == 0 { 0 } else { heap_bytes + BYTES_PER_ALLOCATION }
}

impl Default for HeldKeys {
    fn default() -> HeldKeys {
        let cursor = (0, KeyIdentity::default());
        HeldKeys { by_id: BTreeMap::new(), sweep_at: MIN_SWEEP, cursor }
    }
}

impl HeldKeys {
    pub(super) fn count(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn get(&self, id: &HeldKeyId) -> Option<&HeldKey> {
        self.by_id.get(id).map(|key| &**key)
    }

    pub(super) fn get_mut(&mut self, id: &HeldKeyId) -> Option<&mut HeldKey> {
        self.by_id.get_mut(id).map(|key| &mut **key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &HeldKey> {
        self.by_id.values().map(|key| &**key)
    }

    /// Inserts a key whose bytes are in the budget already.
    pub(super) fn insert(&mut self, id: HeldKeyId, key: HeldKey) {
        self.by_id.insert(id, Box::new(key));
    }

    /// Removes a key. The bytes of its log stay in the budget.
    pub(super) fn remove(&mut self, id: &HeldKeyId, budget: &StoreBudget) -> Option<HeldKey> {
        let key = self.by_id.remove(id)?;
        budget.give_back(key.bytes() - logs::state_bytes(&key.state));
        Some(*key)
    }

    /// Whether the number of keys has doubled since dead ones were removed.
    pub(super) fn must_sweep(&self) -> bool {
        self.by_id.len() >= self.sweep_at
    }

    /// Removes the dead keys, except the keys of the request that is being decided.
    pub(super) fn remove_dead(&mut self, except: &[HeldKeyId], now_us: u64, budget: &StoreBudget) {
        self.by_id.retain(|id, key| {
            let stays = except.contains(id) || !key.is_dead(now_us);
            if !stays {
                budget.give_back(key.bytes());
            }
            stays
        });
        self.sweep_at = (2 * self.by_id.len()).max(MIN_SWEEP);
    }

    /// Removes the dead keys among the next few, except the keys of the request that is being decided. Returns the earliest
    /// expiry after `now_us` of the other holds that were examined. Each call continues where the last one has ended.
    pub(super) fn remove_some_dead(
        &mut self,
        except: &[HeldKeyId],
        now_us: u64,
        budget: &StoreBudget,
    ) -> Option<u64> {
        let (mut dead, mut examined_holds, mut first_expiry) = (Vec::new(), 0, None);
        let (later, earlier) =
            ((Excluded(self.cursor), Unbounded), (Unbounded, Included(self.cursor)));
        let next = self.by_id.range(later).chain(self.by_id.range(earlier));
        for (id, key) in next.take(MAX_EXAMINED_KEYS) {
            if examined_holds >= MAX_EXAMINED_HOLDS {
                break;
            }
            self.cursor = *id;
            examined_holds += key.holds.len();
            if !except.contains(id) && key.is_dead(now_us) {
                dead.push(*id);
            } else {
                first_expiry = first_expiry.into_iter().chain(key.first_expiry_us(now_us)).min();
            }
        }
        for id in dead {
            if let Some(key) = self.by_id.remove(&id) {
                budget.give_back(key.bytes());
            }
        }
        first_expiry
    }

    /// Returns the bytes of the list and its keys in the budget.
    #[cfg(test)]
    pub(super) fn recounted(&self) -> usize {
        LIST_BYTES + self.keys().map(HeldKey::bytes).sum::<usize>()
    }
}

impl HeldKey {
    pub(super) fn id(place: KeyPlace, scope: &MemoryScope) -> HeldKeyId {
        (scope.family(), place.identity.key())
    }

    /// Returns the bytes of the key in the budget.
    pub(super) fn bytes(&self) -> usize {
        KEY_BYTES + holds_bytes(self.holds.heap_bytes()) + logs::state_bytes(&self.state)
    }

    /// Runs `act`, and corrects the bytes in the budget.
    fn accounted<T>(&mut self, budget: &StoreBudget, act: impl FnOnce(&mut HeldKey) -> T) -> T {
        let before = self.bytes();
        let answer = act(self);
        budget.replace(before, self.bytes());
        answer
    }

    pub(super) fn limit(&self) -> &Limit {
        &self.scope.limit
    }

    pub(super) fn first_expiry_us(&self, now_us: u64) -> Option<u64> {
        first_expiry_us(&self.holds, now_us)
    }

    /// Whether the key is dead: nothing is spent or held any more, even if the clock steps back by
    /// [`MAX_STEP_BACK_US`].
    fn is_dead(&self, now_us: u64) -> bool {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let one = UnitRequest::new(Cost::ONE);
        let decision = self.limit().peek_beside(&self.state, &self.holds, then_us, one);
        decision.remaining == decision.limit
    }

    /// Carries the key over to a limit of its name, if possible. Returns the limit that decides on it.
    pub(super) fn carry_over(
        &mut self,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        cost: Cost,
    ) -> Limit {
        let old = *self.limit();
        if old == scope.limit {
            return old;
        }
        let Some(own) = view.scopes.read().get(scope.index).cloned() else { return old };
        self.accounted(view.budget, |key| {
            let state = mem::replace(&mut key.state, old.fresh());
            let carried =
                own.limit.carry_over_beside(&old, state, &mut key.holds, view.now_us, cost);
            match carried {
                CarryOver::Done(state) => {
                    key.state = state;
                    key.scope = own;
                    key.scope.limit
                }
                CarryOver::Stays { decides, state } => {
                    key.state = state;
                    decides
                }
            }
        })
    }

    /// Returns the limit that decides on the key, and a copy of its state and holds, carried over to `limit` if
    /// possible.
    pub(super) fn carried_copy(
        &self,
        limit: &Limit,
        now_us: u64,
        cost: Cost,
    ) -> (Limit, State, Holds) {
        let (state, mut holds) = (self.state.clone(), self.holds.clone());
        if self.limit() == limit {
            return (*limit, state, holds);
        }
        let carried = limit.carry_over_beside(self.limit(), state, &mut holds, now_us, cost);
        let (decides, state) = carried.decides(limit);
        (decides, state, holds)
    }

    /// Decides one request and charges nothing.
    pub(super) fn peek(&self, limit: &Limit, now_us: u64, request: UnitRequest) -> LimitDecision {
        if self.limit() == limit {
            return limit.peek_beside(&self.state, &self.holds, now_us, request);
        }
        let (decides, state, holds) = self.carried_copy(limit, now_us, request.cost);
        decides.in_place_of(limit, decides.peek_beside(&state, &holds, now_us, request))
    }

    /// Decides one request, and charges it if it is allowed.
    pub(super) fn check(
        &mut self,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        request: UnitRequest,
    ) -> CheckResult {
        let now_us = view.now_us;
        let decides = self.carry_over(scope, view, request.cost);
        make_room(&decides, &mut self.state, &mut self.holds, view, request);
        let CheckResult { decision, receipt } = self.accounted(view.budget, |key| {
            decides.check_beside(&mut key.state, &mut key.holds, now_us, request)
        });
        CheckResult { decision: decides.in_place_of(&scope.limit, decision), receipt }
    }

    /// Sets units aside, if they fit; `bytes` have been taken for the hold.
    pub(super) fn reserve(
        &mut self,
        decides: &Limit,
        view: &StoreView<'_>,
        reservation: Reservation,
        bytes: usize,
    ) -> Result<ReserveAnswer, HoldError> {
        let before = self.bytes();
        let answer = reserve(decides, &mut self.state, &mut self.holds, view.now_us, reservation);
        view.budget.replace(before + bytes, self.bytes());
        answer
    }

    /// Returns the bytes by which the list of holds grows with one more hold.
    pub(super) fn growth_bytes(&self) -> usize {
        growth_bytes(&self.holds)
    }

    /// Charges what was used of a hold, under the limit that the key is under now.
    pub(super) fn settle(
        &mut self,
        view: &StoreView<'_>,
        hold: HoldReference,
        used: HoldUse,
    ) -> SettleAnswer {
        let limit = *self.limit();
        self.accounted(view.budget, |key| {
            limit.settle_hold(&mut key.state, &mut key.holds, view.now_us, hold, used)
        })
    }

    /// Adds units to a hold, and moves its expiry. Additional units are decided as a check through the scope is: the
    /// key is first carried over to the scope's limit, unless the hold is no longer listed.
    pub(super) fn extend(
        &mut self,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        let decides = match growth.more {
            Some(more) if self.holds.contains(hold.id) => self.carry_over(scope, view, more),
            _ => *self.limit(),
        };
        self.accounted(view.budget, |key| {
            decides.extend_hold(&mut key.state, &mut key.holds, view.now_us, hold, growth)
        })
    }

    /// Takes an extension back, under the limit that the key is under now.
    pub(super) fn take_back(
        &mut self,
        view: &StoreView<'_>,
        extended: GrantedExtension,
    ) -> ExtendAnswer {
        let limit = *self.limit();
        self.accounted(view.budget, |key| {
            limit.take_back_extension(&mut key.state, &mut key.holds, view.now_us, extended)
        })
    }

    /// Gives back the part of a charge that still counts, under the limit that the key is under now.
    pub(super) fn refund(&mut self, view: &StoreView<'_>, receipt: ChargeReceipt) -> u64 {
        let limit = *self.limit();
        self.accounted(view.budget, |key| {
            limit.refund_beside(&mut key.state, &mut key.holds, view.now_us, receipt)
        })
    }

    /// Moves the state and the holds out, until they are [put back](Self::put).
    pub(super) fn take(&mut self) -> (State, Holds) {
        let fresh = self.limit().fresh();
        (mem::replace(&mut self.state, fresh), mem::take(&mut self.holds))
    }

    /// Puts back the state and the holds that were taken. `taken_bytes` is the number of their bytes
    /// ([`state_and_holds_bytes`]) that the budget counts.
    pub(super) fn put(
        &mut self,
        (state, holds): (State, Holds),
        taken_bytes: usize,
        budget: &StoreBudget,
    ) {
        budget.replace(taken_bytes, state_and_holds_bytes(&state, &holds));
        (self.state, self.holds) = (state, holds);
    }
}

/// Returns the bytes by which a list of holds grows with one more hold.
pub(super) fn growth_bytes(holds: &Holds) -> usize {
    let heap_bytes = holds.heap_bytes();
    if holds.len() * size_of::<OpenHold>() < heap_bytes {
        return 0;
    }
    // The list doubles, and has 4 places at first.
    let grown = (2 * heap_bytes).max(4 * size_of::<OpenHold>());
    holds_bytes(grown) - holds_bytes(heap_bytes)
}

/// Returns the earliest expiry after `now_us`.
pub(super) fn first_expiry_us(holds: &Holds, now_us: u64) -> Option<u64> {
    holds.iter().map(|hold| hold.expires_us).find(|&expires_us| expires_us > now_us)
}

/// Returns the bytes of a state and its holds in the budget.
pub(super) fn state_and_holds_bytes(state: &State, holds: &Holds) -> usize {
    holds_bytes(holds.heap_bytes()) + logs::state_bytes(state)
}

/// Ensures that a log has memory for a charge beside holds, if the request will be charged.
pub(super) fn make_room(
    limit: &Limit,
    state: &mut State,
    holds: &mut Holds,
    view: &StoreView<'_>,
    request: UnitRequest,
) {
    if !matches!((limit, &*state), (Limit::SlidingWindowLog(_), State::Log(_)))
        || !limit.peek_beside(state, holds, view.now_us, request).is_allowed()
    {
        return;
    }
    limit.restart_clock_beside(state, holds, view.now_us);
    if let (Limit::SlidingWindowLog(limit), State::Log(log)) = (limit, state) {
        logs::reserve(log, limit, view.now_us, request.cost, view.budget);
    }
}

/// Returns the wait of a reservation that is refused at the ceiling: the time until a hold expires at `until_us`, or
/// 1 s if `until_us` is `None`.
pub(super) fn wait_at_ceiling_us(until_us: Option<u64>, now_us: u64) -> u64 {
    until_us.map_or(1_000_000, |until_us| until_us.saturating_sub(now_us))
}

/// Refuses a reservation that the limit would admit, because there is no memory for the hold.
pub(super) fn refused_at_ceiling(decision: LimitDecision, retry_after_us: u64) -> ReserveAnswer {
    let verdict = Verdict::Denied { retry: Retry::AfterUs(retry_after_us) };
    ReserveAnswer { decision: LimitDecision { verdict, ..decision }, hold: None }
}
