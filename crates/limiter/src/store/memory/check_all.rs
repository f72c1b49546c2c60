//! A check of several limits: every lock is held while all of them are decided.

mod holds;

use std::mem;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tollgate_core::{
    CheckResult, CombinedDecision, HoldReference, Holds, Intent, Limit, LimitCheck, Role, State,
    check_all,
};

use super::held;
use super::locked_shards::LockedShards;
use super::logs;
use super::part::JointPart;
use super::scopes::{MemoryScope, Overflow};
use super::shard::{FoundSlot, Shard};
use super::view::StoreView;
use super::{KeyPlace, MemoryStore};
use crate::decision::Decision;
use crate::joint::Demand;
use crate::store::stored::limit_check;

/// Where the state of a charge is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateStorage {
    Slot,
    /// Among the keys with holds.
    Held,
    /// In the overflow state of the name, which the keys that found no room share.
    Overflow,
    /// Not stored: a peek at a state under another limit, or at a key with holds, works on a copy and discards it.
    Copy,
}

/// One charge, and its state while it is decided.
struct JointCharge<'a> {
    part: JointPart<'a>,
    /// The limit that decides: the scope's, or the one that the state is still under.
    limit: Limit,
    place: KeyPlace,
    storage: StateStorage,
    state: State,
    /// Empty unless the storage is `Held`, or `Copy` of a key with holds.
    holds: Holds,
    /// The bytes that the budget counts for the state and the holds: their bytes when they were taken from the keys
    /// with holds, and the bytes that were then taken for a new hold or for the log.
    held_bytes: usize,
    /// How long a reservation must wait if there is no memory for its hold.
    without_memory_us: Option<u64>,
}

/// The answer to a request on several limits: the joint decision, and the hold of each part whose units were set aside.
/// Without a reservation there are no holds.
pub(crate) struct JointAnswer {
    pub(crate) combined: CombinedDecision,
    pub(crate) holds: Vec<Option<HoldReference>>,
}

/// The locks of a check, in the order in which every caller takes them: shards, then overflow states.
struct CheckLocks<'m> {
    shards: LockedShards<'m>,
    /// By the number of the family.
    overflows: Vec<(u64, MutexGuard<'m, Overflow>)>,
}

impl MemoryStore {
    /// Decides all parts as one request, and pushes each part's own decision to `each`, in their order. Parts that
    /// share a state are merged into one charge, under the limit of the part that takes precedence
    /// ([`Demand::outranks`]). The first part that is not a peek gets the receipt.
    pub(crate) fn check_all(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> CombinedDecision {
        let known = self.check_all_known(parts, now_us, each);
        known.unwrap_or_else(|| self.check_all_any(parts, now_us, each))
    }

    /// [`check_all`](Self::check_all), for a request that sets the units of some parts aside. Those parts' limits can
    /// have holds.
    pub(crate) fn reserve_all(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> JointAnswer {
        if parts.iter().all(|part| part.demand.hold.is_none()) {
            return JointAnswer {
                combined: self.check_all(parts, now_us, each),
                holds: Vec::new(),
            };
        }
        self.decide_all(parts, now_us, each)
    }

    pub(crate) fn check_all_any(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> CombinedDecision {
        self.decide_all(parts, now_us, each).combined
    }

    #[cold]
    fn decide_all(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> JointAnswer {
        let view = self.view(now_us);
        let charges =
            parts.iter().map(|part| JointCharge::new(*part, self.place(part.scope, part.key)));
        let (mut charges, by_key) = merge(charges, JointCharge::has_key_of);
        let mut locks = CheckLocks {
            shards: self.lock_shards(charges.iter().map(|charge| charge.place)),
            overflows: Vec::new(),
        };
        charges.iter_mut().for_each(|charge| charge.carry_over(locks.shard(charge.place), &view));
        self.choose_storage(&mut charges, &mut locks, &view);
        let (mut charges, by_storage) = merge(charges, JointCharge::overflows_with);
        locks.lock_overflows(&charges);
        locks.take_all(&mut charges, &view);
        let MergedResults { mut combined, mut results, holds } = decide(&mut charges, &view);
        let charge_of: Vec<usize> = by_key.iter().map(|&key| by_storage[key]).collect();
        let first_of = |charge| charge_of.iter().position(|&of| of == charge);
        combined.refused_by = combined.refused_by.and_then(first_of);
        let answer = |(&charge, part): (&usize, &JointPart<'_>)| {
            let CheckResult { decision, receipt } = results.get_mut(charge)?;
            let receipt = if part.is_peek() { None } else { receipt.take() };
            let checked = CheckResult { decision: *decision, receipt };
            Some(Decision::of_key(checked, self.place(part.scope, part.key).fingerprint()))
        };
        each.extend(charge_of.iter().zip(parts).filter_map(answer));
        let held: Vec<(KeyPlace, &MemoryScope)> = charges
            .iter()
            .filter(|charge| charge.storage == StateStorage::Held || !charge.holds.is_empty())
            .map(|charge| (charge.place, charge.part.scope))
            .collect();
        charges.into_iter().for_each(|charge| locks.put(charge, &view));
        // Last, because making room in a table may remove slots, and must see all states in their slots.
        for (place, scope) in held {
            locks.shard(place).release(place, scope, &view);
            locks.shard(place).sweep_held(&view);
        }
        let of_part = |(&charge, part): (&usize, &JointPart<'_>)| {
            holds.get(charge).copied().flatten().filter(|_| !part.is_peek())
        };
        let holds = match holds.is_empty() {
            true => Vec::new(),
            false => charge_of.iter().zip(parts).map(of_part).collect(),
        };
        JointAnswer { combined, holds }
    }

    /// Determines where each state is or will be: in a slot, if the shard has room for all new keys.
    fn choose_storage(
        &self,
        charges: &mut [JointCharge<'_>],
        locks: &mut CheckLocks<'_>,
        view: &StoreView<'_>,
    ) {
        // A request that will be refused must not add a key to the store.
        let is_charged = charges.iter().all(|charge| {
            let JointCharge { part: JointPart { demand, .. }, limit, place, storage, .. } = charge;
            if demand.role == Role::Shadow {
                return true;
            }
            match storage {
                // A key that has a slot has no holds, so a reservation is decided as a check.
                StateStorage::Slot => {
                    locks.shard(*place).admits(*place, limit, view.now_us, demand.request)
                }
                StateStorage::Copy | StateStorage::Held => charge.admits(view.now_us),
                // At this point only peeks have this storage. They are decided later: the overflow states are not
                // locked yet.
                StateStorage::Overflow => true,
            }
        });
        let is_charged = is_charged && locks.take_for_holds(charges, view);
        // If all keys have state, no room is needed, and nothing is removed.
        let mut is_known = |charge: &JointCharge<'_>| {
            !charge.needs_slot() || locks.shard(charge.place).find(charge.place).is_some()
        };
        if !is_charged || charges.iter().all(&mut is_known) {
            return;
        }
        let count = charges.iter().filter(|charge| charge.needs_slot()).count();
        let charges = charges.iter_mut().filter(|charge| charge.needs_slot());
        for JointCharge { place, storage, .. } in charges {
            let shard = locks.shard(*place);
            // Room for all charges, because a known key may be dead, and be removed to make room for another.
            if !shard.make_room(count, view) && shard.find(*place).is_none() {
                self.overflowed.fetch_add(1, Ordering::Relaxed);
                *storage = StateStorage::Overflow;
            }
        }
    }
}

/// Merges equal charges; returns the merged charges, and the index among them of each original.
fn merge<'a>(
    all: impl IntoIterator<Item = JointCharge<'a>>,
    is_same: impl Fn(&JointCharge<'a>, &JointCharge<'a>) -> bool,
) -> (Vec<JointCharge<'a>>, Vec<usize>) {
    let mut merged: Vec<JointCharge<'a>> = Vec::new();
    let merge_one = |charge: JointCharge<'a>| {
        let same = merged.iter().position(|other| is_same(other, &charge));
        match same {
            Some(index) => merged[index].add(&charge),
            None => merged.push(charge),
        }
        same.unwrap_or(merged.len() - 1)
    };
    let indices = all.into_iter().map(merge_one).collect();
    (merged, indices)
}

/// The decisions on merged charges.
struct MergedResults {
    combined: CombinedDecision,
    results: Vec<CheckResult>,
    /// Empty, without memory, if no units were set aside.
    holds: Vec<Option<HoldReference>>,
}

fn decide(charges: &mut [JointCharge<'_>], view: &StoreView<'_>) -> MergedResults {
    let now_us = view.now_us;
    let has_log = charges.iter().any(|charge| matches!(charge.state, State::Log(_)));
    // A request that will be refused changes nothing, not even how a log is stored.
    if has_log && charges.iter().all(|charge| charge.admits(now_us)) {
        charges.iter_mut().for_each(|charge| charge.make_room(view));
    }
    let mut checks: Vec<LimitCheck<'_>> = charges
        .iter_mut()
        .map(|charge| {
            let JointCharge { part, limit, state, holds, without_memory_us, .. } = charge;
            let check = limit_check(limit, state, holds, &part.demand);
            match without_memory_us {
                Some(retry_after_us) => check.without_memory(*retry_after_us),
                None => check,
            }
        })
        .collect();
    let combined = check_all(&mut checks, now_us);
    let holds = match checks.iter().any(|check| check.hold().is_some()) {
        true => checks.iter().map(LimitCheck::hold).collect(),
        false => Vec::new(),
    };
    let result = |mut check: LimitCheck<'_>| {
        let receipt = check.take_receipt();
        check.decision().map(|&decision| CheckResult { decision, receipt })
    };
    let results: Vec<CheckResult> = checks.into_iter().filter_map(result).collect();
    let complete =
        |(charge, CheckResult { decision, receipt }): (&JointCharge<'_>, CheckResult)| {
            let decision = charge.limit.in_place_of(&charge.part.scope.limit, decision);
            CheckResult { decision, receipt }
        };
    MergedResults { combined, results: charges.iter().zip(results).map(complete).collect(), holds }
}

impl JointPart<'_> {
    fn is_peek(&self) -> bool {
        self.demand.intent == Intent::Peek
    }
}

impl<'a> JointCharge<'a> {
    fn new(part: JointPart<'a>, place: KeyPlace) -> JointCharge<'a> {
        let limit = part.scope.limit;
        JointCharge {
            part,
            limit,
            place,
            storage: StateStorage::Slot,
            state: limit.fresh(),
            holds: Holds::default(),
            held_bytes: 0,
            without_memory_us: None,
        }
    }

    fn is_peek(&self) -> bool {
        self.part.is_peek()
    }

    /// Carries an existing state over to the scope's limit, if possible.
    fn carry_over(&mut self, shard: &mut Shard, view: &StoreView<'_>) {
        if self.is_peek() {
            return self.find(shard, view);
        }
        let JointPart { scope, demand, .. } = self.part;
        if let Some(held) = shard.held_key_mut(self.place, scope) {
            self.limit = held.carry_over(scope, view, demand.request.cost);
            (self.state, self.holds) = held.take();
            self.held_bytes = held::state_and_holds_bytes(&self.state, &self.holds);
            self.storage = StateStorage::Held;
            return;
        }
        let carried =
            shard.carry_over(self.place, self.part.scope, view, self.part.demand.request.cost);
        if let Some(FoundSlot { at, stays_under: Some(limit) }) = carried {
            (self.limit, self.place) = (limit, shard.place_of(at, self.place));
        }
    }

    /// Finds the state for a peek, and leaves it unchanged. A key without state may use the overflow state.
    fn find(&mut self, shard: &Shard, view: &StoreView<'_>) {
        let JointPart { scope, demand, .. } = self.part;
        if let Some(held) = shard.held_key(self.place, scope) {
            (self.limit, self.state, self.holds) =
                held.carried_copy(&scope.limit, view.now_us, demand.request.cost);
            self.storage = StateStorage::Copy;
            return;
        }
        match shard.find_any(self.place, scope, view.scopes) {
            Some((_, None)) => {}
            Some((at, Some(old))) => {
                let (state, cost) = (shard.copy_state(at, &old), demand.request.cost);
                let carried = scope.limit.carry_over(&old, state, view.now_us, cost);
                (self.limit, self.state) = carried.decides(&scope.limit);
                self.storage = StateStorage::Copy;
            }
            None => self.storage = StateStorage::Overflow,
        }
    }

    /// Whether this charge lets the request proceed: it is a shadow, or its limit allows the request.
    fn admits(&self, now_us: u64) -> bool {
        let Demand { request, role, .. } = self.part.demand;
        let peek = || self.limit.peek_beside(&self.state, &self.holds, now_us, request);
        role == Role::Shadow || self.peek_reserve(now_us).unwrap_or_else(peek).is_allowed()
    }

    /// Ensures that a log has memory for its charge, as a check of one limit does.
    fn make_room(&mut self, view: &StoreView<'_>) {
        // A peek is never charged. A shadow that refuses is not charged either: `held::make_room` tests that.
        // A reservation adds no entry to a log.
        let JointPart { demand: Demand { request, intent, hold, .. }, .. } = self.part;
        if intent == Intent::Charge && hold.is_none() {
            let before = logs::state_bytes(&self.state);
            held::make_room(&self.limit, &mut self.state, &mut self.holds, view, request);
            // The memory that was taken for the log is in the budget.
            self.held_bytes = (self.held_bytes + logs::state_bytes(&self.state)) - before;
        }
    }

    /// Whether both have the same name and key, under any limits.
    fn has_key_of(&self, other: &JointCharge<'a>) -> bool {
        let key =
            |charge: &JointCharge<'_>| (charge.part.scope.family(), charge.place.identity.key());
        key(self) == key(other)
    }

    fn overflows_with(&self, other: &JointCharge<'a>) -> bool {
        let is_one_family = self.part.scope.family() == other.part.scope.family();
        is_one_family && self.spends_overflow() && other.spends_overflow()
    }

    /// Whether it charges the overflow state. Peeks are excluded: they are not merged.
    fn spends_overflow(&self) -> bool {
        self.storage == StateStorage::Overflow && !self.is_peek()
    }

    fn add(&mut self, other: &JointCharge<'a>) {
        let own = &mut self.part;
        if other.part.demand.outranks(&own.demand) {
            (own.scope, self.limit, self.place) = (other.part.scope, other.limit, other.place);
        }
        own.demand = own.demand.merged(other.part.demand);
    }
}

impl<'m> CheckLocks<'m> {
    fn shard(&mut self, place: KeyPlace) -> &mut Shard {
        self.shards.shard(place)
    }

    fn lock_overflows(&mut self, charges: &[JointCharge<'m>]) {
        let overflowing = charges.iter().filter(|charge| charge.storage == StateStorage::Overflow);
        let mut scopes: Vec<&'m MemoryScope> =
            overflowing.map(|charge| charge.part.scope).collect();
        scopes.sort_unstable_by_key(|scope| scope.family());
        scopes.dedup_by_key(|scope| scope.family());
        self.overflows =
            scopes.into_iter().map(|it| (it.family(), it.family.overflow.lock())).collect();
    }

    fn overflow(&mut self, scope: &MemoryScope) -> Option<&mut Overflow> {
        let found = self.overflows.iter_mut().find(|(family, _)| *family == scope.family());
        found.map(|(_, overflow)| &mut **overflow)
    }

    /// Takes all states; peeks first, because charges move the overflow states out.
    fn take_all(&mut self, charges: &mut [JointCharge<'_>], view: &StoreView<'_>) {
        for are_peeks in [true, false] {
            let these = charges.iter_mut().filter(|charge| charge.is_peek() == are_peeks);
            these.for_each(|charge| self.take(charge, view));
        }
    }

    fn take(&mut self, charge: &mut JointCharge<'_>, view: &StoreView<'_>) {
        let (scope, cost) = (charge.part.scope, charge.part.demand.request.cost);
        let taken = match charge.storage {
            StateStorage::Copy | StateStorage::Held => return,
            StateStorage::Slot => {
                let taken = self.shard(charge.place).take_state(charge.place, &charge.limit);
                if charge.part.demand.hold.is_some() {
                    charge.held_bytes += taken.as_ref().map_or(0, logs::state_bytes);
                    if taken.is_none() {
                        // A dead key that stayed under an old limit was removed to make room.
                        charge.limit = scope.limit;
                    }
                }
                taken
            }
            StateStorage::Overflow if charge.is_peek() => self.overflow(scope).map(|overflow| {
                let carried = overflow.carried_copy(&scope.limit, view.now_us, cost);
                let (limit, state) =
                    carried.unwrap_or_else(|| (scope.limit, overflow.state.clone()));
                charge.limit = limit;
                state
            }),
            StateStorage::Overflow => self.overflow(scope).map(|overflow| {
                let (decides, state) =
                    overflow.carry_over(&scope.limit, view.now_us, cost, view.budget);
                charge.limit = decides.unwrap_or(scope.limit);
                mem::replace(state, charge.limit.fresh())
            }),
        };
        charge.state = taken.unwrap_or_else(|| charge.limit.fresh());
    }

    fn put(&mut self, charge: JointCharge<'_>, view: &StoreView<'_>) {
        if charge.storage == StateStorage::Slot && charge.part.demand.hold.is_some() {
            return self.put_reserved(charge, view);
        }
        let budget = view.budget;
        let JointCharge { part, limit, place, storage, state, holds, held_bytes, .. } = charge;
        match storage {
            StateStorage::Held => {
                if let Some(key) = self.shard(place).held_key_mut(place, part.scope) {
                    key.put((state, holds), held_bytes, budget);
                }
            }
            StateStorage::Slot => {
                let shard = self.shard(place);
                if state != limit.fresh() || shard.find(place).is_some() {
                    shard.put_state(place, state, budget);
                }
            }
            StateStorage::Overflow if !part.is_peek() => {
                if let Some(overflow) = self.overflow(part.scope) {
                    overflow.state = state;
                }
            }
            StateStorage::Overflow | StateStorage::Copy => {}
        }
    }
}
