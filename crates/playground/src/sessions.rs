//! The sessions that were active last: at most a fixed number, because each has counters in the store.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;

use super::session::Id;

/// The most sessions that are kept. A further session takes the slot of the one that was idle for longest.
pub(super) const MAX_SESSIONS: usize = 1_024;

/// The sessions that were active last.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    slots: AHashMap<Id, SessionSlot>,
    turn: u64,
}

#[derive(Debug)]
struct SessionSlot {
    /// When the slot was last used, as a count of all uses.
    turn: u64,
    /// The number of requests in flight.
    playing: u32,
    /// Whether the store is resetting the session's counters; after that the slot is free.
    is_leaving: bool,
}

/// The result of entering a session.
#[derive(Debug)]
pub(super) enum SessionEntry {
    Playing(ActiveSession),
    /// No slot is free until the store has reset this idle session. Then call [`Sessions::left`], or on failure
    /// [`Sessions::stays`].
    Idle(Id),
    /// All slots are in use.
    Full,
}

/// A session's slot in use, until this is dropped.
#[derive(Debug)]
pub(super) struct ActiveSession {
    sessions: Arc<Sessions>,
    id: Id,
}

impl Sessions {
    /// Returns a slot for a session: its own, a free one, or none yet.
    pub(super) fn enter(self: &Arc<Self>, id: Id) -> SessionEntry {
        let mut own = self.0.lock();
        own.turn += 1;
        let turn = own.turn;
        let is_full = own.slots.len() >= MAX_SESSIONS;
        match own.slots.get_mut(&id) {
            Some(slot) if slot.is_leaving => return SessionEntry::Full,
            Some(slot) => {
                slot.turn = turn;
                slot.playing += 1;
            }
            None if is_full => return own.rested(),
            None => {
                own.slots.insert(id, SessionSlot { turn, playing: 1, is_leaving: false });
            }
        }
        drop(own);
        SessionEntry::Playing(ActiveSession { sessions: Arc::clone(self), id })
    }

    /// Frees the slot of a session that the store has reset.
    pub(super) fn left(&self, id: Id) {
        self.0.lock().slots.remove(&id);
    }

    /// Keeps the slot of a session that the store failed to reset. It is the next to be evicted.
    pub(super) fn stays(&self, id: Id) {
        if let Some(slot) = self.0.lock().slots.get_mut(&id) {
            slot.is_leaving = false;
        }
    }
}

impl SessionTable {
    /// Chooses the session that was idle for longest for eviction.
    fn rested(&mut self) -> SessionEntry {
        let free = self.slots.iter_mut().filter(|(_, own)| own.playing == 0 && !own.is_leaving);
        match free.min_by_key(|(_, own)| own.turn) {
            None => SessionEntry::Full,
            Some((id, slot)) => {
                slot.is_leaving = true;
                SessionEntry::Idle(*id)
            }
        }
    }
}

impl Drop for ActiveSession {
    fn drop(&mut self) {
        if let Some(slot) = self.sessions.0.lock().slots.get_mut(&self.id) {
            slot.playing = slot.playing.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> Id {
        Id(format!("{number:032x}").as_bytes().try_into().unwrap())
    }

    fn full() -> Arc<Sessions> {
        let sessions = Arc::new(Sessions::default());
        for number in 0..MAX_SESSIONS {
            assert!(matches!(sessions.enter(id(number)), SessionEntry::Playing(_)));
        }
        sessions
    }

    fn rested(sessions: &Arc<Sessions>, number: usize) -> Id {
        match sessions.enter(id(number)) {
            SessionEntry::Idle(rested) => rested,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn longest_idle_session_is_evicted_and_then_its_slot_is_free() {
        let sessions = full();
        assert!(matches!(sessions.enter(id(0)), SessionEntry::Playing(_)));
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(1));
        // A session that enters meanwhile evicts another one.
        assert_eq!(rested(&sessions, MAX_SESSIONS + 1), id(2));
        assert!(matches!(sessions.enter(id(1)), SessionEntry::Full), "it is leaving");
        sessions.left(id(1));
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), SessionEntry::Playing(_)));
        assert_eq!(sessions.0.lock().slots.len(), MAX_SESSIONS);
    }

    #[test]
    fn session_keeps_its_slot_and_is_evicted_next_when_the_store_fails() {
        let sessions = full();
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
        sessions.stays(id(0));
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
        assert_eq!(sessions.0.lock().slots.len(), MAX_SESSIONS);
    }

    #[test]
    fn session_with_a_request_in_flight_is_not_evicted() {
        let sessions = full();
        let playing: Vec<_> = (0..MAX_SESSIONS).map(|number| sessions.enter(id(number))).collect();
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), SessionEntry::Full));
        drop(playing);
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
    }
}
