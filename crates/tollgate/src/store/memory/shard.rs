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

#[derive(Debug)]
pub(super) struct Shard {
    table: Table,
    logs: Logs,
    /// Where to look for dead slots next.
    cursor: usize,
}

impl Shard {
    /// What the lists of such a shard take while it is empty.
    pub(super) fn list_bytes(bytes: usize) -> usize {
        Table::list_bytes(bytes / Table::CHUNK_BYTES)
    }

    /// A shard that will grow to about so many bytes.
    pub(super) fn for_bytes(bytes: usize) -> Shard {
        let table = Table::with_room_for(bytes / Table::CHUNK_BYTES);
        Shard { table, logs: Logs::default(), cursor: 0 }
    }

    pub(super) fn keys(&self) -> usize {
        self.table.live()
    }

    pub(super) fn find(&self, place: Place) -> Option<At> {
        self.table.find(place.hash, |slot| slot.is_at(place))
    }

    /// A key's slot, if it has one, and where that may point to.
    #[inline(always)]
    pub(super) fn slot_mut(&mut self, place: Place) -> Option<(&mut Slot, &mut Logs)> {
        let slot = self.table.find_mut(place.hash, |slot| slot.is_at(place))?;
        Some((slot, &mut self.logs))
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

    /// Drops a key of this limit.
    pub(super) fn remove(&mut self, at: At, limit: &Limit, identify: &Identify, budget: &Budget) {
        if let Limit::SlidingWindowLog(_) = limit {
            self.logs.forget(self.table.slot(at).state(), budget);
        }
        self.table.remove(at, |slot| slot.hash(identify));
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
        let chunks = self.table.chunks_for(more);
        let can_grow = census.budget.take(chunks * Table::CHUNK_BYTES);
        if can_grow {
            self.table.grow(chunks, |slot| slot.hash(census.identify));
        }
        can_grow
    }

    /// Drops the dead among the next `looks` slots.
    fn bury(&mut self, looks: usize, census: &Census<'_>) {
        let scopes = census.scopes.read();
        for _ in 0..looks.min(self.table.capacity()) {
            self.cursor = (self.cursor + 1) % self.table.capacity();
            let Some((at, slot)) = self.table.live_slot(self.cursor) else { continue };
            let Some(scope) = scopes.get(slot.scope() as usize) else { continue };
            if slot.is_dead(&scope.limit, &self.logs, census.now_us) {
                self.remove(at, &scope.limit, census.identify, census.budget);
            }
        }
    }
}

#[cfg(test)]
impl Shard {
    /// What it takes of the budget, counted anew.
    pub(super) fn recounted(&self) -> usize {
        self.table.capacity() / Table::CHUNK_SLOTS * Table::CHUNK_BYTES + self.logs.recounted()
    }
}
