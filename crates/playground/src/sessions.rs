//! The sessions that played last: at most a fixed number, because each has counters in the store.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;

use super::session::Id;

/// The most sessions that are remembered. A new one then takes the place of the one that was idle for longest.
pub(super) const MAX_SESSIONS: usize = 1_024;

/// The sessions that played last.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    places: AHashMap<Id, Place>,
    turn: u64,
}

#[derive(Debug)]
struct Place {
    /// When it was taken or used last, in turns.
    turn: u64,
    /// How many requests are under way.
    playing: u32,
    /// It is being forgotten by the store, and free after that.
    is_leaving: bool,
}

/// What a session gets that wants to play.
#[derive(Debug)]
pub(super) enum Entry {
    Playing(Playing),
    /// There is no place until the store has forgotten this one; then [`Sessions::left`] or [`Sessions::stays`].
    Rested(Id),
    /// All places are in use.
    Full,
}

/// A session's place, until this is dropped.
#[derive(Debug)]
pub(super) struct Playing {
    sessions: Arc<Sessions>,
    id: Id,
}

impl Sessions {
    /// Returns a place for a session: its own, a free one, or none yet.
    pub(super) fn enter(self: &Arc<Self>, id: Id) -> Entry {
        let mut own = self.0.lock();
        own.turn += 1;
        let turn = own.turn;
        let is_full = own.places.len() >= MAX_SESSIONS;
        match own.places.get_mut(&id) {
            Some(place) if place.is_leaving => return Entry::Full,
            Some(place) => {
                place.turn = turn;
                place.playing += 1;
            }
            None if is_full => return own.rested(),
            None => {
                own.places.insert(id, Place { turn, playing: 1, is_leaving: false });
            }
        }
        drop(own);
        Entry::Playing(Playing { sessions: Arc::clone(self), id })
    }

    /// Frees the place of a session that the store has forgotten.
    pub(super) fn left(&self, id: Id) {
        self.0.lock().places.remove(&id);
    }

    /// Keeps the place of a session that the store failed to forget. It is the next to go.
    pub(super) fn stays(&self, id: Id) {
        if let Some(place) = self.0.lock().places.get_mut(&id) {
            place.is_leaving = false;
        }
    }
}

impl Remembered {
    /// Chooses the session that was idle for longest to leave.
    fn rested(&mut self) -> Entry {
        let free = self.places.iter_mut().filter(|(_, own)| own.playing == 0 && !own.is_leaving);
        match free.min_by_key(|(_, own)| own.turn) {
            None => Entry::Full,
            Some((id, place)) => {
                place.is_leaving = true;
                Entry::Rested(*id)
            }
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        if let Some(place) = self.sessions.0.lock().places.get_mut(&self.id) {
            place.playing = place.playing.saturating_sub(1);
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
            assert!(matches!(sessions.enter(id(number)), Entry::Playing(_)));
        }
        sessions
    }

    fn rested(sessions: &Arc<Sessions>, number: usize) -> Id {
        match sessions.enter(id(number)) {
            Entry::Rested(rested) => rested,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_one_that_has_rested_longest_goes_and_its_place_is_free_when_it_has() {
        let sessions = full();
        assert!(matches!(sessions.enter(id(0)), Entry::Playing(_)));
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(1));
        // Whoever comes meanwhile does not wait for the same one.
        assert_eq!(rested(&sessions, MAX_SESSIONS + 1), id(2));
        assert!(matches!(sessions.enter(id(1)), Entry::Full), "it is leaving");
        sessions.left(id(1));
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), Entry::Playing(_)));
        assert_eq!(sessions.0.lock().places.len(), MAX_SESSIONS);
    }

    #[test]
    fn one_that_the_store_has_not_forgotten_keeps_its_place_and_is_the_next() {
        let sessions = full();
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
        sessions.stays(id(0));
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
        assert_eq!(sessions.0.lock().places.len(), MAX_SESSIONS);
    }

    #[test]
    fn whoever_plays_at_this_moment_stays() {
        let sessions = full();
        let playing: Vec<_> = (0..MAX_SESSIONS).map(|number| sessions.enter(id(number))).collect();
        assert!(matches!(sessions.enter(id(MAX_SESSIONS)), Entry::Full));
        drop(playing);
        assert_eq!(rested(&sessions, MAX_SESSIONS), id(0));
    }
}
