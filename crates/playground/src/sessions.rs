//! The sessions that were active most recently. Their number is bounded, because each has counters in the store.

use std::sync::Arc;
use std::time::Instant;

use ahash::AHashMap;
use parking_lot::Mutex;

use super::algorithm::PlaygroundAlgorithm;
use super::session::SessionId;
use super::session_holds::{HoldQuotaSpent, SessionHold, SessionHolds};

/// The largest number of sessions. A further session takes the slot of the session that was idle for longest.
pub(super) const MAX_SESSIONS: usize = 1_024;

/// The sessions that were active most recently.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<SessionTable>);

/// The slots by session, and a count of their uses.
#[derive(Debug, Default)]
struct SessionTable {
    slots: AHashMap<SessionId, SessionSlot>,
    uses: u64,
}

/// The slot of a session.
#[derive(Debug)]
struct SessionSlot {
    /// The count of all uses when this slot was last used. A smaller number means a longer idle time.
    last_use: u64,
    /// The number of requests in flight.
    requests_in_flight: u32,
    /// Whether the session is being evicted: the store is resetting its counters. The slot is free after that.
    is_evicting: bool,
    holds: SessionHolds,
}

/// The result of entering a session.
#[derive(Debug)]
pub(super) enum SessionEntry {
    /// The session has a slot.
    Active(ActiveSession),
    /// No slot is free. The caller has to reset this idle session in the store, and then call [`Sessions::evicted`], or
    /// on failure [`Sessions::eviction_failed`].
    Evict(SessionId),
    /// All slots belong to sessions with requests in flight, or to sessions that are being evicted.
    Full,
}

/// A request in flight of a session. The session is not evicted until this is dropped.
#[derive(Debug)]
pub(super) struct ActiveSession {
    sessions: Arc<Sessions>,
    id: SessionId,
}

impl Sessions {
    /// Enters a session: uses its slot, or a free one, or chooses an idle session to evict.
    pub(super) fn enter(self: &Arc<Self>, id: SessionId) -> SessionEntry {
        let mut table = self.0.lock();
        table.uses += 1;
        let last_use = table.uses;
        let is_full = table.slots.len() >= MAX_SESSIONS;
        match table.slots.get_mut(&id) {
            Some(slot) if slot.is_evicting => return SessionEntry::Full,
            Some(slot) => {
                slot.last_use = last_use;
                slot.requests_in_flight += 1;
            }
            None if is_full => return table.choose_idle(),
            None => {
                let slot = SessionSlot {
                    last_use,
                    requests_in_flight: 1,
                    is_evicting: false,
                    holds: SessionHolds::default(),
                };
                table.slots.insert(id, slot);
            }
        }
        drop(table);
        SessionEntry::Active(ActiveSession { sessions: Arc::clone(self), id })
    }

    /// Frees the slot of a session that the store has reset.
    pub(super) fn evicted(&self, id: SessionId) {
        // A hold of a concurrency limit is released when it is dropped, which is after the table is unlocked.
        let slot = self.0.lock().slots.remove(&id);
        drop(slot);
    }

    /// Keeps the slot of a session that the store failed to reset. This session is the next to be evicted.
    pub(super) fn eviction_failed(&self, id: SessionId) {
        if let Some(slot) = self.0.lock().slots.get_mut(&id) {
            slot.is_evicting = false;
        }
    }

    /// Runs `read` on the holds of a session; returns `None` if the session has no slot.
    pub(super) fn with_holds<T>(
        &self,
        id: SessionId,
        read: impl FnOnce(&mut SessionHolds) -> T,
    ) -> Option<T> {
        self.0.lock().slots.get_mut(&id).map(|slot| read(&mut slot.holds))
    }
}

impl ActiveSession {
    /// Returns the number of a hold that is to be reserved. It counts as one of the session's holds until it is
    /// dropped.
    pub(super) fn begin_hold(&self) -> Result<PendingSessionHold, HoldQuotaSpent> {
        let now = Instant::now();
        let begun = self.sessions.with_holds(self.id, |holds| holds.begin(now));
        // An active session has a slot. The ended holds are dropped after the table is unlocked.
        let (number, _ended) = begun.unwrap_or((Err(HoldQuotaSpent::WITHOUT_SLOT), Vec::new()));
        let (sessions, id) = (Arc::clone(&self.sessions), self.id);
        Ok(PendingSessionHold { sessions, id, number: number? })
    }

    /// Takes the open hold of this number.
    pub(super) fn take_hold(&self, number: u64, of: PlaygroundAlgorithm) -> Option<SessionHold> {
        self.sessions.with_holds(self.id, |holds| holds.take(number, of))?
    }
}

/// The number of a hold that the store has not decided yet.
#[derive(Debug)]
pub(super) struct PendingSessionHold {
    sessions: Arc<Sessions>,
    id: SessionId,
    number: u64,
}

impl PendingSessionHold {
    /// Keeps the hold in the session, and returns its number.
    pub(super) fn keep(self, hold: SessionHold) -> u64 {
        self.sessions.with_holds(self.id, |holds| holds.keep(self.number, hold));
        self.number
    }
}

impl Drop for PendingSessionHold {
    fn drop(&mut self) {
        self.sessions.with_holds(self.id, |holds| holds.end_pending(self.number));
    }
}

impl SessionTable {
    /// Chooses the session that was idle for longest, to be evicted.
    fn choose_idle(&mut self) -> SessionEntry {
        let is_idle = |slot: &SessionSlot| slot.requests_in_flight == 0 && !slot.is_evicting;
        let idle = self.slots.iter_mut().filter(|(_, slot)| is_idle(slot));
        match idle.min_by_key(|(_, slot)| slot.last_use) {
            None => SessionEntry::Full,
            Some((id, slot)) => {
                slot.is_evicting = true;
                SessionEntry::Evict(*id)
            }
        }
    }
}

impl Drop for ActiveSession {
    fn drop(&mut self) {
        if let Some(slot) = self.sessions.0.lock().slots.get_mut(&self.id) {
            slot.requests_in_flight = slot.requests_in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session_holds::MAX_HOLDS;
    use super::*;

    fn id(number: usize) -> SessionId {
        SessionId(format!("{number:032x}").as_bytes().try_into().unwrap())
    }

    fn full() -> Arc<Sessions> {
        let sessions = Arc::new(Sessions::default());
        for number in 0..MAX_SESSIONS {
            assert!(matches!(sessions.enter(id(number)), SessionEntry::Active(_)));
        }
        sessions
    }

    fn evicted_by(sessions: &Arc<Sessions>, number: usize) -> SessionId {
        match sessions.enter(id(number)) {
            SessionEntry::Evict(idle) => idle,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn longest_idle_session_is_evicted_and_then_its_slot_is_free() {
        let sessions = full();
        assert!(matches!(sessions.enter(id(0)), SessionEntry::Active(_)));
        assert_eq!(evicted_by(&sessions, MAX_SESSIONS), id(1));
        // Another session that enters during the eviction evicts a different session.
        assert_eq!(evicted_by(&sessions, MAX_SESSIONS + 1), id(2));
        assert!(matches!(sessions.enter(id(1)), SessionEntry::Full), "it is being evicted");
        sessions.evicted(id(1));
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), SessionEntry::Active(_)));
        assert_eq!(sessions.0.lock().slots.len(), MAX_SESSIONS);
    }

    #[test]
    fn pending_hold_counts_until_it_is_dropped() {
        let sessions = Arc::new(Sessions::default());
        let SessionEntry::Active(active) = sessions.enter(id(0)) else { panic!("no slot") };
        let mut pending: Vec<_> = (0..MAX_HOLDS).map(|_| active.begin_hold().unwrap()).collect();
        assert!(active.begin_hold().is_err());
        pending.pop();
        assert_eq!(active.begin_hold().unwrap().number, MAX_HOLDS as u64 + 1);
        assert!(active.take_hold(1, PlaygroundAlgorithm::TokenBucket).is_none(), "not decided yet");
    }

    #[test]
    fn session_keeps_its_slot_and_is_evicted_next_when_the_store_fails() {
        let sessions = full();
        assert_eq!(evicted_by(&sessions, MAX_SESSIONS), id(0));
        sessions.eviction_failed(id(0));
        assert_eq!(evicted_by(&sessions, MAX_SESSIONS), id(0));
        assert_eq!(sessions.0.lock().slots.len(), MAX_SESSIONS);
    }

    #[test]
    fn session_with_a_request_in_flight_is_not_evicted() {
        let sessions = full();
        let in_flight: Vec<_> =
            (0..MAX_SESSIONS).map(|number| sessions.enter(id(number))).collect();
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), SessionEntry::Full));
        drop(in_flight);
        assert_eq!(evicted_by(&sessions, MAX_SESSIONS), id(0));
    }
}
