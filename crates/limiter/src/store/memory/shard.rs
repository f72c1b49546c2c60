//! A table, its logs, and the keys with holds: what one lock protects.

mod reserve;

use parking_lot::RwLock;
use tollgate_core::{CarryOver, Cost, Limit, State, UnitRequest};

use super::KeyPlace;
use super::budget::StoreBudget;
use super::held::{HeldKey, HeldKeys};
use super::identity::KeyHasher;
use super::logs::{self, Logs};
use super::reclaim::DroppedScopes;
use super::scopes::{MemoryScope, Scopes};
use super::slot::{Slot, SlotState};
use super::table::{SlotPosition, SlotTable};
use super::view::StoreView;
use super::words::Words;
pub(super) use reserve::HoldMemory;

/// How many slots are examined for dead keys with each new key: more than one, so that dead keys are removed faster
/// than new keys arrive, and few enough that the delay does not matter.
const EXAMINED_PER_INSERT: usize = 4;

/// How many slots are examined for dead keys before a new key in a full store must share the overflow state.
const EXAMINED_WHEN_FULL: usize = 32;

/// A slot that was found for a key, and the limit that decides on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundSlot {
    pub(super) at: SlotPosition,
    /// The limit that the state stays under, at the size of the requested limit; `None` if it is under the
    /// requested limit.
    pub(super) stays_under: Option<Limit>,
}

/// A key's state: under the requested limit, or with the limit that it stays under; or the key with its holds.
pub(super) enum StateAccess<'s, S> {
    Own(&'s mut S),
    Other(&'s Limit, &'s mut State),
    Held(&'s mut HeldKey, &'s StoreView<'s>),
}

/// A table, its logs, and the keys with holds. An empty shard has nothing on the heap, so a store of many shards is
/// small until they have keys.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: SlotTable,
    logs: Logs,
    /// The keys with holds; `None` without any.
    held: Option<Box<HeldKeys>>,
    /// Where the next search for dead keys begins.
    cursor: usize,
}

impl Shard {
    /// Returns how many chunks a shard may have before its list of chunks is moved.
    fn planned_chunks(budget: &StoreBudget) -> usize {
        budget.shard_bytes() / SlotTable::CHUNK_BYTES
    }

    /// Returns the bytes of a shard's list of chunks, which is allocated with the first key.
    pub(super) fn list_bytes(budget: &StoreBudget) -> usize {
        SlotTable::list_bytes(Shard::planned_chunks(budget))
    }

    pub(super) fn keys(&self) -> usize {
        self.table.live() + self.held.as_ref().map_or(0, |held| held.count())
    }

    #[inline]
    pub(super) fn find(&self, place: KeyPlace) -> Option<SlotPosition> {
        self.table.find(place.hash, |slot| slot.is_at(place))
    }

    /// Finds a key's slot under any limit of the scope's name; also returns that limit, if it is another one.
    pub(super) fn find_any(
        &self,
        place: KeyPlace,
        scope: &MemoryScope,
        scopes: &RwLock<Scopes>,
    ) -> Option<(SlotPosition, Option<Limit>)> {
        let key = place.identity.key();
        let at = self.table.find(place.hash, |slot| {
            slot.is_at(place) || slot.is_of(key) && scopes.read().is_in(slot.scope(), &scope.family)
        })?;
        let slot = self.table.slot(at);
        if slot.is_at(place) {
            return Some((at, None));
        }
        Some((at, scopes.read().get(slot.scope()).map(|other| other.limit)))
    }

    /// Returns a copy of the state in a slot under this limit.
    pub(super) fn copy_state(&self, at: SlotPosition, limit: &Limit) -> State {
        self.table.slot(at).state().copy_state(limit, &self.logs)
    }

    /// Finds a key's slot, and carries its state over to the scope's limit. As long as that is not possible, the limit
    /// that the state is under decides, at the size of the scope's limit.
    pub(super) fn carry_over(
        &mut self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        cost: Cost,
    ) -> Option<FoundSlot> {
        let (at, other) = self.find_any(place, scope, view.scopes)?;
        let Some(old) = other else { return Some(FoundSlot { at, stays_under: None }) };
        Some(FoundSlot { at, stays_under: self.carry(at, &old, scope, view, cost) })
    }

    /// Carries the state in a slot over to another limit of its name. If that is not possible, returns the
    /// limit that decides on it.
    fn carry(
        &mut self,
        at: SlotPosition,
        old: &Limit,
        scope: &MemoryScope,
        &StoreView { now_us, budget, .. }: &StoreView<'_>,
        cost: Cost,
    ) -> Option<Limit> {
        let slot = self.table.slot_mut(at);
        let words = slot.state();
        let state = words.take_state(old, &mut self.logs);
        let before = logs::state_bytes(&state);
        let state = match scope.limit.carry_over(old, state, now_us, cost) {
            CarryOver::Done(state) => state,
            CarryOver::Stays { decides, state } => {
                slot.set_state(words.put_state(state, &mut self.logs, budget));
                return Some(decides);
            }
        };
        // OK because only a log that stays a log has memory outside its slot.
        budget.replace(before, logs::state_bytes(&state));
        let words = match (old, &state) {
            (Limit::SlidingWindowLog(_), State::Log(_)) => words,
            (Limit::SlidingWindowLog(_), _) => {
                self.logs.forget(words, budget);
                Words::default()
            }
            _ => Words::default(),
        };
        let words = words.put_state(state, &mut self.logs, budget);
        slot.set_scope(scope.index);
        slot.set_state(words);
        None
    }

    /// Returns a key's slot, and the logs that it may refer to. `hash_of` is passed to [`SlotTable::find_mut`].
    #[inline(always)]
    pub(super) fn slot_mut(
        &mut self,
        place: KeyPlace,
        hash_of: impl Fn(&Slot) -> Option<u64>,
    ) -> Option<(&mut Slot, &mut Logs)> {
        let slot = self.table.find_mut(place, hash_of)?;
        Some((slot, &mut self.logs))
    }

    /// Returns the slot at a position, and the logs that it may refer to.
    pub(super) fn slot(&self, at: SlotPosition) -> (&Slot, &Logs) {
        (self.table.slot(at), &self.logs)
    }

    /// Runs `act` on the state in a slot.
    pub(super) fn change<S: SlotState, T>(
        &mut self,
        at: SlotPosition,
        budget: &StoreBudget,
        act: impl FnOnce(&mut S) -> T,
    ) -> T {
        S::change(self.table.slot_mut(at), &mut self.logs, budget, act)
    }

    /// Runs `act` on the state in a slot, under the limit that decides on it.
    pub(super) fn change_found<S: SlotState, T>(
        &mut self,
        FoundSlot { at, stays_under }: FoundSlot,
        budget: &StoreBudget,
        act: impl FnOnce(StateAccess<'_, S>) -> T,
    ) -> T {
        let Some(limit) = stays_under else {
            return self.change(at, budget, |own| act(StateAccess::Own(own)));
        };
        let slot = self.table.slot_mut(at);
        let words = slot.state();
        let mut state = words.take_state(&limit, &mut self.logs);
        let answer = act(StateAccess::Other(&limit, &mut state));
        slot.set_state(words.put_state(state, &mut self.logs, budget));
        answer
    }

    /// Returns the place of a key's slot, given the place of the key under another limit of its name.
    pub(super) fn place_of(&self, at: SlotPosition, place: KeyPlace) -> KeyPlace {
        self.table.slot(at).place(place)
    }

    /// Stores the state of a key that has none; [`make_room`](Self::make_room) was called before.
    pub(super) fn insert<S: SlotState>(&mut self, place: KeyPlace, state: S, budget: &StoreBudget) {
        let words = state.keep(&mut self.logs, budget);
        self.table.insert(place.hash, Slot::new(place, words));
    }

    /// Whether a limit allows this request on the state of a key; for a key without state, on a fresh state.
    pub(super) fn admits(
        &self,
        place: KeyPlace,
        limit: &Limit,
        now_us: u64,
        request: UnitRequest,
    ) -> bool {
        let slot = self.find(place).map(|at| self.table.slot(at));
        let decision = slot.map(|slot| slot.peek(limit, &self.logs, now_us, request));
        decision.unwrap_or_else(|| limit.peek(&limit.fresh(), now_us, request)).is_allowed()
    }

    /// Takes the state out of its slot, as a state of any algorithm, until it is put back; `None` if there is
    /// none.
    pub(super) fn take_state(&mut self, place: KeyPlace, limit: &Limit) -> Option<State> {
        let at = self.find(place)?;
        Some(self.table.slot(at).state().take_state(limit, &mut self.logs))
    }

    /// Puts a state of any algorithm into its slot, or into a new slot.
    pub(super) fn put_state(&mut self, place: KeyPlace, state: State, budget: &StoreBudget) {
        match self.find(place) {
            Some(at) => {
                let slot = self.table.slot_mut(at);
                slot.set_state(slot.state().put_state(state, &mut self.logs, budget));
            }
            None => {
                let words = Words::default().put_state(state, &mut self.logs, budget);
                self.table.insert(place.hash, Slot::new(place, words));
            }
        }
    }

    /// Removes a key.
    pub(super) fn remove(
        &mut self,
        at: SlotPosition,
        scopes: &Scopes,
        identify: &KeyHasher,
        budget: &StoreBudget,
    ) {
        let slot = self.table.slot(at);
        if scopes
            .get(slot.scope())
            .is_some_and(|scope| matches!(scope.limit, Limit::SlidingWindowLog(_)))
        {
            self.logs.forget(slot.state(), budget);
        }
        self.table.remove(at, |slot| scopes.hash_of(slot, identify));
    }

    /// Removes a few dead keys, and grows if that is not enough; returns whether `more` keys fit now.
    pub(super) fn make_room(&mut self, more: usize, view: &StoreView<'_>) -> bool {
        if view.budget.has_ceiling() {
            self.remove_dead(EXAMINED_PER_INSERT * more, view);
        }
        if self.table.has_room_for(more) || self.grow_table_for(more, view) {
            return true;
        }
        self.remove_dead(EXAMINED_WHEN_FULL, view);
        self.table.has_room_for(more)
    }

    #[cold]
    fn grow_table_for(&mut self, more: usize, view: &StoreView<'_>) -> bool {
        self.grow_by(self.table.chunks_for(more), view)
    }

    /// Grows by some chunks; returns whether there was memory for them.
    pub(super) fn grow_by(&mut self, chunks: usize, view: &StoreView<'_>) -> bool {
        let is_first = self.table.capacity() == 0;
        let list_bytes = if is_first { Shard::list_bytes(view.budget) } else { 0 };
        let take = || view.budget.take(list_bytes + chunks * SlotTable::CHUNK_BYTES);
        // New keys take precedence over the spare memory that is kept for logs.
        let can_grow = take() || self.logs.give_back_spare(view.budget) && take();
        if can_grow {
            if is_first {
                self.table = SlotTable::with_room_for(Shard::planned_chunks(view.budget));
            }
            let scopes = view.scopes.read();
            self.table.grow(chunks, |slot| scopes.hash_of(slot, view.identify));
        }
        can_grow
    }

    /// Removes the dead keys among the next `slots` slots.
    fn remove_dead(&mut self, slots: usize, view: &StoreView<'_>) {
        let scopes = view.scopes.read();
        for _ in 0..slots.min(self.table.capacity()) {
            self.cursor = (self.cursor + 1) % self.table.capacity();
            let Some((at, slot)) = self.table.live_slot(self.cursor) else { continue };
            let Some(scope) = scopes.get(slot.scope()) else { continue };
            if slot.is_dead(&scope.limit, &self.logs, view.now_us) {
                self.remove(at, &scopes, view.identify, view.budget);
            }
        }
    }

    /// Moves the keys of dropped scopes to the scopes that take them over, and removes the dead ones.
    pub(super) fn move_dropped_keys(&mut self, dropped: &mut DroppedScopes, view: &StoreView<'_>) {
        if let Some(held) = &self.held {
            // A reservation may have taken the key of a dropped scope out of its slot.
            held.keys().for_each(|key| dropped.mark_needed(key.scope.index));
        }
        let scopes = view.scopes.read();
        // Repeated after a removal, because that moves other slots.
        while self.move_or_remove_each(dropped, &scopes, view) {}
    }

    /// Visits every slot once; returns whether a key was removed.
    fn move_or_remove_each(
        &mut self,
        dropped: &mut DroppedScopes,
        scopes: &Scopes,
        view: &StoreView<'_>,
    ) -> bool {
        let keys = self.keys();
        for nth in 0..self.table.capacity() {
            let Some((at, slot)) = self.table.live_slot(nth) else { continue };
            let index = slot.scope();
            let Some(scope) = dropped.get(index) else { continue };
            let old = scope.limit;
            // The key may have been charged later than `view.now_us`, which can be a time that the store recorded long
            // ago.
            let now_us = view.now_us.max(slot.charged_us(&old, &self.logs));
            let then = StoreView { now_us, ..*view };
            if view.budget.has_ceiling() && slot.is_dead(&old, &self.logs, now_us) {
                self.remove(at, scopes, view.identify, view.budget);
            } else if let Some(successor) = dropped.successor_of(index)
                && self.carry(at, &old, &successor, &then, Cost::ONE).is_some()
            {
                dropped.mark_needed(index);
            }
        }
        self.keys() < keys
    }
}

#[cfg(test)]
impl Shard {
    /// Computes the shard's share of the budget anew.
    pub(super) fn recounted(&self, budget: &StoreBudget) -> usize {
        let chunks = self.table.capacity() / SlotTable::CHUNK_SLOTS;
        let list_bytes = if chunks > 0 { Shard::list_bytes(budget) } else { 0 };
        let held_bytes = self.held.as_ref().map_or(0, |held| held.recounted());
        list_bytes + chunks * SlotTable::CHUNK_BYTES + self.logs.recounted() + held_bytes
    }

    pub(super) fn logs(&self) -> usize {
        self.logs.count()
    }

    /// Returns how many keys are kept with holds.
    pub(super) fn held_count(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.count())
    }

    pub(super) fn spare_bytes(&self) -> usize {
        self.logs.spare_bytes()
    }
}
