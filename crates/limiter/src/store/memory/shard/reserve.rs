//! The keys of a shard that have holds: how they leave the table, and return to it.

use tollgate_core::{
    ExtendAnswer, GrantedExtension, HoldError, HoldGrowth, HoldReference, HoldUse, Holds, Limit,
    Reservation, ReserveAnswer, SettleAnswer, State,
};

use super::{FoundSlot, Shard};
use crate::store::memory::KeyPlace;
use crate::store::memory::budget::StoreBudget;
use crate::store::memory::held::{self, FIRST_HOLD_BYTES, HeldKey, HeldKeyId};
use crate::store::memory::logs;
use crate::store::memory::scopes::MemoryScope;
use crate::store::memory::view::StoreView;
use crate::store::stored::reserve;

/// Whether there is memory for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum HoldMemory {
    /// Its bytes were taken.
    Taken,
    /// There is no memory.
    Missing {
        /// The earliest expiry of the other holds that were examined, if there are any.
        expiry_us: Option<u64>,
    },
}

impl Shard {
    /// Returns a key with holds.
    pub(in super::super) fn held_key(
        &self,
        place: KeyPlace,
        scope: &MemoryScope,
    ) -> Option<&HeldKey> {
        self.held.as_ref()?.get(&HeldKey::id(place, scope))
    }

    /// Returns a key with holds, to be changed. The caller [releases](Self::release) it afterwards.
    pub(in super::super) fn held_key_mut(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
    ) -> Option<&mut HeldKey> {
        self.held.as_mut()?.get_mut(&HeldKey::id(place, scope))
    }

    /// Runs `act` on a key with holds; `None` if the key has none. If the key has no holds afterwards,
    /// [releases](Self::release) it.
    fn change_held<T>(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        act: impl FnOnce(&mut HeldKey) -> T,
    ) -> Option<T> {
        let answer = act(self.held_key_mut(place, scope)?);
        self.release(place, scope, view);
        Some(answer)
    }

    /// Moves a key to the table if it has no holds any more and the table has room for it. If its state is fresh,
    /// forgets the key instead.
    pub(in super::super) fn release(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
    ) {
        let Some(key) = self.held_key(place, scope).filter(|key| key.holds.is_empty()) else {
            return;
        };
        let is_fresh = key.state == key.limit().fresh();
        if !is_fresh && !self.make_room(1, view) {
            return;
        }
        let Some(HeldKey { scope, state, .. }) =
            self.remove_held(&HeldKey::id(place, scope), view.budget)
        else {
            return;
        };
        if is_fresh {
            view.budget.give_back(logs::state_bytes(&state));
            return;
        }
        let identity = place.identity.key().with_scope(scope.mark);
        let place = KeyPlace { identity, scope: scope.mark.in_slot, ..place };
        self.put_state(place, state, view.budget);
    }

    /// Forgets a key with holds; returns whether there was one.
    pub(in super::super) fn forget_held(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        budget: &StoreBudget,
    ) -> bool {
        let removed = self.remove_held(&HeldKey::id(place, scope), budget);
        if let Some(key) = &removed {
            budget.give_back(logs::state_bytes(&key.state));
        }
        removed.is_some()
    }

    /// Removes a key with holds. The bytes of its log stay in the budget.
    fn remove_held(&mut self, id: &HeldKeyId, budget: &StoreBudget) -> Option<HeldKey> {
        let removed = self.held.as_mut()?.remove(id, budget);
        self.drop_empty_held(budget);
        removed
    }

    fn drop_empty_held(&mut self, budget: &StoreBudget) {
        if self.held.as_ref().is_some_and(|held| held.count() == 0) {
            self.held = None;
            budget.give_back(held::LIST_BYTES);
        }
    }

    /// Removes the dead keys among the keys with holds. A store that keeps every key removes none.
    pub(in super::super) fn remove_dead_held(
        &mut self,
        except: &[HeldKeyId],
        view: &StoreView<'_>,
    ) {
        if !view.budget.has_ceiling() {
            return;
        }
        if let Some(held) = &mut self.held {
            held.remove_dead(except, view.now_us, view.budget);
        }
        self.drop_empty_held(view.budget);
    }

    /// Takes bytes for a hold. At the ceiling, the dead keys among a few and the spare memory of logs make room.
    /// None of the keys `except` is removed.
    pub(in super::super) fn take_for_hold(
        &mut self,
        bytes: usize,
        except: &[HeldKeyId],
        view: &StoreView<'_>,
    ) -> HoldMemory {
        if view.budget.take(bytes) {
            return HoldMemory::Taken;
        }
        let held = self.held.as_mut();
        let expiry_us =
            held.and_then(|held| held.remove_some_dead(except, view.now_us, view.budget));
        self.drop_empty_held(view.budget);
        self.logs.give_back_spare(view.budget);
        match view.budget.take(bytes) {
            true => HoldMemory::Taken,
            false => HoldMemory::Missing { expiry_us },
        }
    }

    /// Sets units of a key aside, if they fit. The key's state is first carried over to the scope's limit, as for a
    /// check. Without memory for the hold, the reservation is refused.
    pub(in super::super) fn reserve(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        reservation: Reservation,
    ) -> Result<ReserveAnswer, HoldError> {
        let id = HeldKey::id(place, scope);
        let Some(key) = self.held_key_mut(place, scope) else {
            return self.reserve_first(place, scope, view, reservation);
        };
        let decides = key.carry_over(scope, view, reservation.cost);
        let bytes = key.growth_bytes();
        let memory = self.take_for_hold(bytes, &[id], view);
        let Some(key) = self.held_key_mut(place, scope) else {
            // Not reached: making room for the hold does not remove its own key.
            return Err(HoldError::Shaping);
        };
        let answer = match memory {
            HoldMemory::Taken => key.reserve(&decides, view, reservation, bytes),
            HoldMemory::Missing { expiry_us } => {
                let until_us = key.first_expiry_us(view.now_us).or(expiry_us);
                let (state, holds) = (&key.state, &key.holds);
                refuse_at_ceiling(&decides, state, holds, view, reservation, until_us)
            }
        };
        self.release(place, scope, view);
        in_place_of(&decides, scope, answer)
    }

    /// Does the same for a key that is not among the keys with holds.
    fn reserve_first(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        reservation: Reservation,
    ) -> Result<ReserveAnswer, HoldError> {
        let id = HeldKey::id(place, scope);
        let carried = self.carry_over(place, scope, view, reservation.cost);
        let index = carried.map_or(scope.index, |slot| self.table.slot(slot.at).scope());
        let Some(under) = view.scopes.read().get(index).cloned() else {
            // Not reached: a scope stays while a caller or a slot has its index.
            return Err(HoldError::Shaping);
        };
        let (decides, mut state) = match carried {
            None => (scope.limit, scope.limit.fresh()),
            Some(FoundSlot { at, stays_under }) => {
                let words = self.table.slot(at).state();
                let state = words.take_state(&under.limit, &mut self.logs);
                (stays_under.unwrap_or(scope.limit), state)
            }
        };
        let (mut holds, log_bytes) = (Holds::default(), logs::state_bytes(&state));
        let is_allowed = decides
            .peek_reserve(&state, &holds, view.now_us, reservation.cost)
            .is_ok_and(|decision| decision.is_allowed());
        let bytes = FIRST_HOLD_BYTES + if self.has_held() { 0 } else { held::LIST_BYTES };
        let memory = is_allowed.then(|| self.take_for_hold(bytes, &[id], view));
        let answer = match memory {
            Some(HoldMemory::Missing { expiry_us }) => {
                refuse_at_ceiling(&decides, &state, &holds, view, reservation, expiry_us)
            }
            _ => reserve(&decides, &mut state, &mut holds, view.now_us, reservation),
        };
        if holds.is_empty() {
            if let Some(FoundSlot { at, .. }) = carried {
                let slot = self.table.slot_mut(at);
                slot.set_state(slot.state().put_state(state, &mut self.logs, view.budget));
            }
            if memory == Some(HoldMemory::Taken) {
                view.budget.give_back(bytes);
            }
            return in_place_of(&decides, scope, answer);
        }
        if let Some(FoundSlot { at, .. }) = carried {
            self.remove(at, &view.scopes.read(), view.identify, view.budget);
        }
        self.insert_held(id, HeldKey { scope: under, state, holds }, bytes + log_bytes, view);
        self.sweep_held(view);
        in_place_of(&decides, scope, answer)
    }

    /// Moves a key that has no holds from its slot, if it has one, to the keys with holds. The state was taken out of the
    /// slot; `taken_bytes` is the number of its bytes and of the bytes taken for the hold.
    pub(in super::super) fn hold_first(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        (state, holds): (State, Holds),
        taken_bytes: usize,
        view: &StoreView<'_>,
    ) {
        let at = self.find(place);
        let index = at.map_or(scope.index, |at| self.table.slot(at).scope());
        let Some(under) = view.scopes.read().get(index).cloned() else {
            // Not reached: a scope stays while a caller or a slot has its index.
            return view.budget.give_back(taken_bytes);
        };
        if let Some(at) = at {
            self.remove(at, &view.scopes.read(), view.identify, view.budget);
        }
        let key = HeldKey { scope: under, state, holds };
        self.insert_held(HeldKey::id(place, scope), key, taken_bytes, view);
    }

    fn insert_held(
        &mut self,
        id: HeldKeyId,
        key: HeldKey,
        taken_bytes: usize,
        view: &StoreView<'_>,
    ) {
        let list_bytes = if self.has_held() { 0 } else { held::LIST_BYTES };
        view.budget.replace(taken_bytes, list_bytes + key.bytes());
        self.held.get_or_insert_default().insert(id, key);
    }

    /// Removes the dead keys among the keys with holds, if their number has doubled since the last time.
    pub(in super::super) fn sweep_held(&mut self, view: &StoreView<'_>) {
        if self.held.as_ref().is_some_and(|held| held.must_sweep()) {
            self.remove_dead_held(&[], view);
        }
    }

    /// Whether any key has holds.
    pub(in super::super) fn has_held(&self) -> bool {
        self.held.is_some()
    }

    /// Charges what was used of a hold, under the limit that the key is under now.
    pub(in super::super) fn settle(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        hold: HoldReference,
        used: HoldUse,
    ) -> SettleAnswer {
        let settled = self.change_held(place, scope, view, |held| held.settle(view, hold, used));
        settled.unwrap_or_else(|| {
            self.change_without_holds(place, scope, view, |limit, state| {
                limit.settle_hold(state, &mut Holds::default(), view.now_us, hold, used)
            })
        })
    }

    /// Adds units to a hold if they fit, and moves its expiry.
    pub(in super::super) fn extend(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        let extended =
            self.change_held(place, scope, view, |held| held.extend(scope, view, hold, growth));
        extended.unwrap_or_else(|| {
            self.change_without_holds(place, scope, view, |limit, state| {
                limit.extend_hold(state, &mut Holds::default(), view.now_us, hold, growth)
            })
        })
    }

    /// Takes an extension back. Without effect if the key has no holds any more.
    pub(in super::super) fn take_back(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        extended: GrantedExtension,
    ) {
        self.change_held(place, scope, view, |held| held.take_back(view, extended));
    }

    /// Runs `act` on the state of a key without holds, with the limit that it is under.
    fn change_without_holds<T>(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        act: impl FnOnce(&Limit, &mut State) -> T,
    ) -> T {
        let Some((at, other)) = self.find_any(place, scope, view.scopes) else {
            return act(&scope.limit, &mut scope.limit.fresh());
        };
        let limit = other.unwrap_or(scope.limit);
        let slot = self.table.slot_mut(at);
        let words = slot.state();
        let mut state = words.take_state(&limit, &mut self.logs);
        let answer = act(&limit, &mut state);
        slot.set_state(words.put_state(state, &mut self.logs, view.budget));
        answer
    }
}

/// Refuses a reservation for which there is no memory. Its wait ends at `until_us`, when a hold expires, or after 1 s
/// if that is `None`. If the limit refuses the reservation too, returns the limit's own refusal.
fn refuse_at_ceiling(
    decides: &Limit,
    state: &State,
    holds: &Holds,
    view: &StoreView<'_>,
    reservation: Reservation,
    until_us: Option<u64>,
) -> Result<ReserveAnswer, HoldError> {
    let decision = decides.peek_reserve(state, holds, view.now_us, reservation.cost)?;
    if !decision.is_allowed() {
        return Ok(ReserveAnswer { decision, hold: None });
    }
    Ok(held::refused_at_ceiling(decision, held::wait_at_ceiling_us(until_us, view.now_us)))
}

/// If `decides` decided instead of the scope's limit, completes the decision as [`Limit::in_place_of`] does.
fn in_place_of(
    decides: &Limit,
    scope: &MemoryScope,
    answer: Result<ReserveAnswer, HoldError>,
) -> Result<ReserveAnswer, HoldError> {
    let ReserveAnswer { decision, hold } = answer?;
    let decision = if *decides == scope.limit {
        decision
    } else {
        decides.in_place_of(&scope.limit, decision)
    };
    Ok(ReserveAnswer { decision, hold })
}
