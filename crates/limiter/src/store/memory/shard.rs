//! A table and its logs: what one lock protects.

use parking_lot::RwLock;
use tollgate_core::{Ask, CarryOver, Cost, Limit, State};

use super::Place;
use super::budget::Budget;
use super::census::Census;
use super::identity::Identify;
use super::logs::{self, Logs};
use super::reclaim::Leaving;
use super::scopes::{Scope, Scopes};
use super::slot::{Kept, Slot};
use super::table::{At, Table};
use super::words::Words;

/// Slots looked at for a dead one whenever a key comes in: more than come in, so that the dead
/// leave faster than others arrive, and few enough that nobody notices.
const LOOKS_PER_INSERT: usize = 4;

/// Slots looked at before a newcomer is sent away from a full store.
const LOOKS_WHEN_FULL: usize = 32;

/// A key's slot, and what decides on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    pub(super) at: At,
    /// The limit that it stays under, at the size of the one that was asked for; `None` if it is under
    /// that.
    pub(super) stays_under: Option<Limit>,
}

/// A key's state, under the limit that was asked for, or with the one that it stays under.
pub(super) enum Reached<'s, S> {
    Own(&'s mut S),
    Other(&'s Limit, &'s mut State),
}

/// Empty, it has nothing on the heap: a store of many shards is small until they have keys.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: Table,
    logs: Logs,
    /// Where to look for dead slots next.
    cursor: usize,
}

impl Shard {
    /// The chunks that a shard may grow to without moving its list.
    fn planned_chunks(budget: &Budget) -> usize {
        budget.shard_bytes() / Table::CHUNK_BYTES
    }

    /// The bytes that the list of a shard's chunks takes, from its first key on.
    pub(super) fn list_bytes(budget: &Budget) -> usize {
        Table::list_bytes(Shard::planned_chunks(budget))
    }

    pub(super) fn keys(&self) -> usize {
        self.table.live()
    }

    #[inline]
    pub(super) fn find(&self, place: Place) -> Option<At> {
        self.table.find(place.hash, |slot| slot.is_at(place))
    }

    /// A key's slot under whichever limit of the scope's name; and that limit, if it is another.
    pub(super) fn find_any(
        &self,
        place: Place,
        scope: &Scope,
        scopes: &RwLock<Scopes>,
    ) -> Option<(At, Option<Limit>)> {
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

    /// A copy of the state in a slot under this limit.
    pub(super) fn copy_state(&self, at: At, limit: &Limit) -> State {
        self.table.slot(at).state().copy_state(limit, &self.logs)
    }

    /// A key's slot, if it has one, and what decides on it: the scope's limit, to which it is carried over
    /// from another, or that other one for as long as it cannot be.
    pub(super) fn bring(
        &mut self,
        place: Place,
        scope: &Scope,
        census: &Census<'_>,
        cost: Cost,
    ) -> Option<Brought> {
        let (at, other) = self.find_any(place, scope, census.scopes)?;
        let Some(old) = other else { return Some(Brought { at, stays_under: None }) };
        Some(Brought { at, stays_under: self.carry(at, &old, scope, census, cost) })
    }

    /// Carries the state in a slot over to another limit of its name, if it can be; otherwise, the limit
    /// that decides on it.
    fn carry(
        &mut self,
        at: At,
        old: &Limit,
        scope: &Scope,
        &Census { now_us, budget, .. }: &Census<'_>,
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
        // OK because only a log that stays one has more than its slot.
        budget.settle(before, logs::state_bytes(&state));
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

    /// A key's slot, if it has one, and where that may point to. `hash_of` is for the [table](Table::find_mut).
    #[inline(always)]
    pub(super) fn slot_mut(
        &mut self,
        place: Place,
        hash_of: impl Fn(&Slot) -> Option<u64>,
    ) -> Option<(&mut Slot, &mut Logs)> {
        let slot = self.table.find_mut(place, hash_of)?;
        Some((slot, &mut self.logs))
    }

    /// The slot there, and where that may point to.
    pub(super) fn slot(&self, at: At) -> (&Slot, &Logs) {
        (self.table.slot(at), &self.logs)
    }

    /// Runs `act` on the state in a slot.
    pub(super) fn change<S: Kept, T>(
        &mut self,
        at: At,
        budget: &Budget,
        act: impl FnOnce(&mut S) -> T,
    ) -> T {
        S::change(self.table.slot_mut(at), &mut self.logs, budget, act)
    }

    /// Runs `act` on the state of a key that was brought.
    pub(super) fn change_brought<S: Kept, T>(
        &mut self,
        Brought { at, stays_under }: Brought,
        budget: &Budget,
        act: impl FnOnce(Reached<'_, S>) -> T,
    ) -> T {
        let Some(limit) = stays_under else {
            return self.change(at, budget, |own| act(Reached::Own(own)));
        };
        let slot = self.table.slot_mut(at);
        let words = slot.state();
        let mut state = words.take_state(&limit, &mut self.logs);
        let answer = act(Reached::Other(&limit, &mut state));
        slot.set_state(words.put_state(state, &mut self.logs, budget));
        answer
    }

    /// Where a key's slot is, whichever limit it is under.
    pub(super) fn place_of(&self, at: At, place: Place) -> Place {
        self.table.slot(at).place(place)
    }

    /// Keeps the state of a key that has none yet; [`make_room`](Self::make_room) has made room.
    pub(super) fn insert<S: Kept>(&mut self, place: Place, state: S, budget: &Budget) {
        let words = state.keep(&mut self.logs, budget);
        self.table.insert(place.hash, Slot::new(place, words));
    }

    /// Whether a key would be allowed this, as far as its own state goes.
    pub(super) fn admits(&self, place: Place, limit: &Limit, now_us: u64, ask: Ask) -> bool {
        let slot = self.find(place).map(|at| self.table.slot(at));
        let decision = slot.map(|slot| slot.peek(limit, &self.logs, now_us, ask));
        decision.unwrap_or_else(|| limit.peek(&limit.fresh(), now_us, ask)).is_allowed()
    }

    /// Takes a state of any kind out of its slot, until it is put back; `None` if there is none.
    pub(super) fn take_state(&mut self, place: Place, limit: &Limit) -> Option<State> {
        let at = self.find(place)?;
        Some(self.table.slot(at).state().take_state(limit, &mut self.logs))
    }

    /// Puts a state of any kind into its slot, or into a new one.
    pub(super) fn put_state(&mut self, place: Place, state: State, budget: &Budget) {
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

    /// Drops a key.
    pub(super) fn remove(&mut self, at: At, scopes: &Scopes, identify: &Identify, budget: &Budget) {
        let slot = self.table.slot(at);
        if scopes
            .get(slot.scope())
            .is_some_and(|scope| matches!(scope.limit, Limit::SlidingWindowLog(_)))
        {
            self.logs.forget(slot.state(), budget);
        }
        self.table.remove(at, |slot| scopes.hash_of(slot, identify));
    }

    /// Drops a few of the dead, and grows if that is not enough; whether `more` keys fit now.
    pub(super) fn make_room(&mut self, more: usize, census: &Census<'_>) -> bool {
        if census.budget.has_ceiling() {
            self.bury(LOOKS_PER_INSERT * more, census);
        }
        if self.table.has_room_for(more) || self.grow_table_for(more, census) {
            return true;
        }
        self.bury(LOOKS_WHEN_FULL, census);
        self.table.has_room_for(more)
    }

    #[cold]
    fn grow_table_for(&mut self, more: usize, census: &Census<'_>) -> bool {
        self.grow_by(self.table.chunks_for(more), census)
    }

    /// Whether there is memory for so many chunks more.
    pub(super) fn grow_by(&mut self, chunks: usize, census: &Census<'_>) -> bool {
        let is_first = self.table.capacity() == 0;
        let list_bytes = if is_first { Shard::list_bytes(census.budget) } else { 0 };
        let take = || census.budget.take(list_bytes + chunks * Table::CHUNK_BYTES);
        // Keys come before what busy ones may need again.
        let can_grow = take() || self.logs.give_back_spare(census.budget) && take();
        if can_grow {
            if is_first {
                self.table = Table::with_room_for(Shard::planned_chunks(census.budget));
            }
            let scopes = census.scopes.read();
            self.table.grow(chunks, |slot| scopes.hash_of(slot, census.identify));
        }
        can_grow
    }

    /// Drops the dead among the next `looks` slots.
    fn bury(&mut self, looks: usize, census: &Census<'_>) {
        let scopes = census.scopes.read();
        for _ in 0..looks.min(self.table.capacity()) {
            self.cursor = (self.cursor + 1) % self.table.capacity();
            let Some((at, slot)) = self.table.live_slot(self.cursor) else { continue };
            let Some(scope) = scopes.get(slot.scope()) else { continue };
            if slot.is_dead(&scope.limit, &self.logs, census.now_us) {
                self.remove(at, &scopes, census.identify, census.budget);
            }
        }
    }

    /// Moves the keys of scopes that are leaving to their heirs, and drops the dead among them.
    pub(super) fn vacate(&mut self, leaving: &mut Leaving, census: &Census<'_>) {
        let scopes = census.scopes.read();
        // Once more after a removal, which moves others.
        while self.vacate_once(leaving, &scopes, census) {}
    }

    /// Whether one was dropped.
    fn vacate_once(&mut self, leaving: &mut Leaving, scopes: &Scopes, census: &Census<'_>) -> bool {
        let keys = self.keys();
        for nth in 0..self.table.capacity() {
            let Some((at, slot)) = self.table.live_slot(nth) else { continue };
            let index = slot.scope();
            let Some(scope) = leaving.get(index) else { continue };
            let old = scope.limit;
            // What was seen last may be earlier than what the key has seen.
            let now_us = census.now_us.max(slot.charged_us(&old, &self.logs));
            let then = Census { now_us, ..*census };
            if census.budget.has_ceiling() && slot.is_dead(&old, &self.logs, now_us) {
                self.remove(at, scopes, census.identify, census.budget);
            } else if let Some(heir) = leaving.heir_of(index)
                && self.carry(at, &old, &heir, &then, Cost::ONE).is_some()
            {
                leaving.need(index);
            }
        }
        self.keys() < keys
    }
}

#[cfg(test)]
impl Shard {
    /// What it takes of the budget, counted anew.
    pub(super) fn recounted(&self, budget: &Budget) -> usize {
        let chunks = self.table.capacity() / Table::CHUNK_SLOTS;
        let list_bytes = if chunks > 0 { Shard::list_bytes(budget) } else { 0 };
        list_bytes + chunks * Table::CHUNK_BYTES + self.logs.recounted()
    }

    pub(super) fn logs(&self) -> usize {
        self.logs.count()
    }

    pub(super) fn spare_bytes(&self) -> usize {
        self.logs.spare_bytes()
    }
}
