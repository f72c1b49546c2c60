//! A table and its logs: what one lock protects.

use std::sync::Arc;

use parking_lot::RwLock;
use tollgate_core::{Ask, Limit, State};

use super::budget::Budget;
use super::identity::Identify;
use super::logs::Logs;
use super::slot::{Kept, Slot, Words};
use super::table::{At, Table};
use super::{Place, Scope};

/// Slots looked at for a dead one whenever a key comes in: more than come in, so that the dead
/// leave faster than others arrive, and few enough that nobody notices.
const LOOKS_PER_INSERT: usize = 4;

/// Slots looked at before a newcomer is sent away from a full store.
const LOOKS_WHEN_FULL: usize = 32;

/// What a shard has to know of the store to tell the dead from the living, and what it may take.
#[derive(Clone, Copy)]
pub(super) struct Census<'a> {
    pub(super) identify: &'a Identify,
    pub(super) scopes: &'a RwLock<Vec<Arc<Scope>>>,
    pub(super) budget: &'a Budget,
    pub(super) now_us: u64,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    table: Table,
    logs: Logs,
    /// Where to look for dead slots next.
    cursor: usize,
}

impl Shard {
    pub(super) fn keys(&self) -> usize {
        self.table.live()
    }

    #[inline]
    pub(super) fn find(&self, place: Place) -> Option<At> {
        self.table.find(place.hash, |slot| slot.is(place.scope, place.identity))
    }

    /// Runs `act` on the state in a slot.
    #[inline]
    pub(super) fn change<S: Kept, T>(&mut self, at: At, act: impl FnOnce(&mut S) -> T) -> T {
        let slot = self.table.slot_mut(at);
        let words = slot.state();
        let mut state = S::take(words, &mut self.logs);
        let answer = act(&mut state);
        slot.set_state(state.put(words, &mut self.logs));
        answer
    }

    /// Keeps the state of a key that has none yet; [`make_room`](Self::make_room) has made room.
    pub(super) fn insert<S: Kept>(&mut self, place: Place, state: S) {
        let words = state.put(Words::default(), &mut self.logs);
        self.table.insert(place.hash, Slot::new(place.scope, place.identity, words));
    }

    /// Whether a key would be allowed this, as far as its own state goes.
    pub(super) fn admits(&self, place: Place, limit: &Limit, now_us: u64, ask: Ask) -> bool {
        let slot = self.find(place).map(|at| self.table.slot(at));
        let decision = slot.and_then(|slot| slot.peek(limit, &self.logs, now_us, ask));
        decision.unwrap_or_else(|| limit.peek(&limit.fresh(), now_us, ask)).is_allowed()
    }

    /// Takes a state of any kind out of its slot, until it is put back; `None` if there is none.
    pub(super) fn take_state(&mut self, place: Place, limit: &Limit) -> Option<State> {
        let at = self.find(place)?;
        Some(self.table.slot(at).state().take_state(limit, &mut self.logs))
    }

    /// Puts a state of any kind into its slot, or into a new one.
    pub(super) fn put_state(&mut self, place: Place, state: State) {
        match self.find(place) {
            Some(at) => {
                let slot = self.table.slot_mut(at);
                slot.set_state(slot.state().put_state(state, &mut self.logs));
            }
            None => {
                let words = Words::default().put_state(state, &mut self.logs);
                self.table.insert(place.hash, Slot::new(place.scope, place.identity, words));
            }
        }
    }

    /// Drops a key of this limit.
    pub(super) fn remove(&mut self, at: At, limit: &Limit, budget: &Budget) {
        if let Limit::SlidingWindowLog(_) = limit {
            self.logs.forget(self.table.slot(at).state(), budget);
        }
        self.table.remove(at);
    }

    /// Looks for dead slots, and grows if that is not enough; whether `more` keys fit now.
    pub(super) fn make_room(&mut self, more: usize, limit: &Limit, census: &Census<'_>) -> bool {
        if census.budget.has_ceiling() {
            self.bury(LOOKS_PER_INSERT * more, census);
        }
        if !self.table.has_room_for(more) {
            self.make_slots(more, census);
        }
        let has_logs = match limit {
            Limit::SlidingWindowLog(_) => self.logs.make_room(census.budget),
            _ => true,
        };
        has_logs && self.table.has_room_for(more)
    }

    #[cold]
    fn make_slots(&mut self, more: usize, census: &Census<'_>) {
        let grown = self.table.grown_for(more);
        let bytes = (grown - self.table.capacity()) * Table::BYTES_PER_SLOT;
        if census.budget.take(bytes) {
            self.resize(grown, census);
            return;
        }
        if self.table.has_deleted() {
            self.resize(self.table.capacity(), census);
        }
        if !self.table.has_room_for(more) {
            self.bury(LOOKS_WHEN_FULL, census);
        }
    }

    /// Drops the dead among the next `looks` slots.
    fn bury(&mut self, looks: usize, census: &Census<'_>) {
        let scopes = census.scopes.read();
        for _ in 0..looks.min(self.table.capacity()) {
            self.cursor = (self.cursor + 1) % self.table.capacity();
            let Some((at, slot)) = self.table.live_slot(self.cursor) else { continue };
            let Some(scope) = scopes.get(slot.scope() as usize) else { continue };
            if slot.is_dead(&scope.limit, &self.logs, census.now_us) {
                self.remove(at, &scope.limit, census.budget);
            }
        }
    }

    fn resize(&mut self, capacity: usize, census: &Census<'_>) {
        let hash = |slot: &Slot| census.identify.hash(slot.scope(), slot.identity());
        self.table = self.table.resized(capacity, hash);
    }
}
