//! Who is connected, at most so many at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Context;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::bounds::Bounds;
use super::connections::{Connections, Evict};
use super::progress::{Rank, Spare};
use super::reason::Reason;
use super::seldom::Seldom;
use super::watch::Watch;
use crate::budget::MemoryAccount;

/// How long what was seen of all connections is good, and when to look again if none may be closed. Looking at
/// 10,000 takes about a millisecond.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The part of the room that connections may take from idle ones before they were answered: an eighth. Newcomers that
/// ask nothing do not drive out clients that did.
const NEWCOMERS: usize = 8;

/// Room for so many connections.
pub struct Room {
    bounds: Bounds,
    shared: Arc<Shared>,
    next_id: u64,
    full: Seldom,
    failing: Seldom,
    is_closing: bool,
}

struct Shared {
    seats: Mutex<Seats>,
    /// Told whenever a connection has gone.
    left: Notify,
    counts: Arc<Connections>,
    /// How many of them may be new, if others are to be closed for them.
    max_new: usize,
}

#[derive(Default)]
struct Seats {
    by_id: AHashMap<u64, Seat>,
    /// Who may be closed, in this order, as of the last look.
    spare: VecDeque<(Spare, u64)>,
    /// How many were new then, and how many came since.
    new: usize,
    looked: Option<Instant>,
}

struct Seat {
    watch: Arc<Watch>,
    /// From when it runs, if it is to be ended from outside.
    task: Option<AbortHandle>,
}

/// A connection's place in the room. Dropped, it is free.
pub struct Place {
    pub(super) watch: Arc<Watch>,
    /// The memory that the connection holds.
    pub account: Arc<MemoryAccount>,
    id: u64,
    shared: Arc<Shared>,
}

impl Room {
    /// Creates an empty room for the connections of one port.
    pub fn new(bounds: Bounds, counts: Arc<Connections>) -> Room {
        // OK because a u32 fits in usize where there are sockets.
        let max_new = (bounds.max_connections as usize / NEWCOMERS).max(1);
        let shared = Shared { seats: Mutex::default(), left: Notify::new(), counts, max_new };
        let shared = Arc::new(shared);
        let room: Weak<Shared> = Arc::downgrade(&shared);
        shared.counts.set_room(room);
        let (full, failing) = (Seldom::default(), Seldom::default());
        Room { bounds, shared, next_id: 0, full, failing, is_closing: false }
    }

    /// Returns whether to log that `accept` fails.
    pub(super) fn is_failure_due(&mut self, now: Instant) -> bool {
        self.failing.is_due(now)
    }

    /// Evicts a connection of this port or the other one: if possible one that is stuck or silent.
    pub(super) fn evict_of_both_ports(&self, now: Instant) -> bool {
        let rooms = self.shared.counts.rooms_of_both_ports();
        rooms.iter().any(|room| room.evict_silent(now))
            || rooms.iter().any(|room| room.evict_idle(now))
    }

    /// A place for one more. If there is none, another connection is closed for it: one whose client does not go on
    /// with a request or an answer, else one that never said anything, else one between requests. If there is none
    /// of these either, it waits. Whoever does not want to wait any longer need not.
    pub async fn enter(&mut self) -> Place {
        loop {
            if self.has_place() {
                return self.take_place(Instant::now());
            }
            if self.full.is_due(Instant::now()) {
                let (cap, port) = (self.bounds.max_connections, self.shared.counts.port().name());
                tracing::warn!(
                    port,
                    "{cap} connections are open, the most that there may be: those that are stuck, silent or \
                     idle are closed for new ones, and if there are none, new ones wait"
                );
            }
            if self.shared.evict(Instant::now()) {
                // It may hear of one that left earlier.
                while !self.has_place() {
                    self.shared.left.notified().await;
                }
            } else {
                let _ = timeout(LOOK_AGAIN, self.shared.left.notified()).await;
            }
        }
    }

    /// The task that serves the connection which has that place, so that it can be ended.
    pub(super) fn attach(&self, id: u64, task: AbortHandle) {
        // If it is gone already, there is nothing to end.
        if let Some(seat) = self.shared.seats.lock().by_id.get_mut(&id) {
            seat.task = Some(task);
        }
    }

    /// Tells all, and whoever comes from now on, that there is no next request.
    pub(super) fn last_call(&mut self) {
        self.is_closing = true;
        for seat in self.shared.seats.lock().by_id.values() {
            seat.watch.last_call();
        }
    }

    /// Waits until all are gone: those that are silent soon, the others when they have their answer.
    pub(super) async fn close(mut self) {
        self.last_call();
        while !self.shared.seats.lock().by_id.is_empty() {
            self.shared.left.notified().await;
        }
    }

    fn has_place(&self) -> bool {
        // OK because a u32 fits in usize where there are sockets.
        self.shared.seats.lock().by_id.len() < self.bounds.max_connections as usize
    }

    fn take_place(&mut self, now: Instant) -> Place {
        let id = self.next_id;
        // OK because nobody accepts 2^64 connections.
        self.next_id += 1;
        let watch = Arc::new(Watch::new(self.bounds, now));
        if self.is_closing {
            watch.last_call();
        }
        let mut seats = self.shared.seats.lock();
        seats.by_id.insert(id, Seat { watch: Arc::clone(&watch), task: None });
        // OK because nobody counts 2^64 connections.
        seats.new += 1;
        drop(seats);
        self.shared.counts.count_opened();
        let account = Arc::new(self.shared.counts.account());
        Place { watch, account, id, shared: Arc::clone(&self.shared) }
    }
}

impl Shared {
    /// Evicts the first connection in the order of eviction, if there is one. The order is computed from all
    /// connections once in [`LOOK_AGAIN`], not for each eviction.
    fn evict(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new, now)
    }

    /// How many connections may be new, if the port may have no more than it has now.
    fn max_new_of_open(&self) -> usize {
        (self.seats.lock().by_id.len() / NEWCOMERS).max(1)
    }

    /// Evicts a connection of this rank or one before it.
    fn evict_up_to(&self, most: Rank, max_new: usize, now: Instant) -> bool {
        let mut seats = self.seats.lock();
        if seats.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_AGAIN) {
            seats.look(now);
        }
        let Seats { by_id, spare, new, .. } = &mut *seats;
        while let Some((seen, id)) = spare.pop_front() {
            if seen.rank > most || (seen.rank == Rank::Idle && *new >= max_new) {
                spare.push_front((seen, id));
                return false;
            }
            let Some(seat) = by_id.get_mut(&id) else { continue };
            if seat.watch.with(|progress| progress.end_if(seen, now)) {
                self.counts.count_closed(Reason::Evicted);
                match seat.task.take() {
                    Some(task) => task.abort(),
                    None => seat.watch.wake(),
                }
                return true;
            }
        }
        false
    }
}

impl Evict for Shared {
    fn evict_silent(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Silent, self.max_new_of_open(), now)
    }

    fn evict_idle(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new_of_open(), now)
    }
}

impl Seats {
    fn look(&mut self, now: Instant) {
        let Seats { by_id, spare, new, looked } = self;
        *looked = Some(now);
        *new = 0;
        spare.clear();
        for (&id, seat) in by_id.iter() {
            let (seen, is_new) =
                seat.watch.with(|progress| (progress.spare(now), progress.is_new()));
            // OK because they are as many as connections at most.
            *new += usize::from(is_new);
            spare.extend(seen.map(|seen| (seen, id)));
        }
        spare.make_contiguous().sort_unstable();
    }
}

impl Place {
    /// Bytes of the beginning of a connection came.
    pub fn received(&self) {
        self.watch.with(|progress| progress.received(Instant::now()));
    }

    /// It has begun, with HTTP/2.
    pub fn multiplexes(&self) {
        self.watch.with(|progress| progress.multiplexes(Instant::now()));
    }

    /// Whether it is to end, because others have no room; if not, the task is woken when it is.
    pub fn is_over(&self, context: &Context<'_>) -> bool {
        // First: who ends it wakes the task after that.
        self.watch.runs_in(context.waker());
        self.watch.with(|progress| progress.is_over())
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Counts the connection as closed by the server.
    pub fn count_closed(&self, reason: Reason) {
        self.shared.counts.count_closed(reason);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.shared.seats.lock();
        let _seat = seats.by_id.remove(&self.id);
        // Before what the seat holds is dropped: that may be the last of a task.
        drop(seats);
        self.shared.counts.count_gone();
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::Port;
    use super::*;
    use crate::budget::Budget;

    fn room(max_connections: u32) -> Room {
        let minute = Duration::from_secs(60);
        let bounds = Bounds { max_connections, first_byte: minute, request: minute, idle: minute };
        let budget = Budget::new(1 << 20);
        Room::new(bounds, Arc::new(Connections::new(Port::Http, budget)))
    }

    fn evicted(room: &Room) -> u64 {
        let mut closed = room.shared.counts.closed();
        closed.find(|(reason, _)| *reason == Reason::Evicted).unwrap().1
    }

    /// So many, which came in this order a millisecond apart.
    fn enter(room: &mut Room, start: Instant, count: u64) -> Vec<Place> {
        let at = |ms| start + Duration::from_millis(ms);
        (0..count).map(|ms| room.take_place(at(ms))).collect()
    }

    fn answered(place: &Place, now: Instant) {
        place.watch.with(|progress| {
            progress.received(now);
            progress.complete();
            progress.answered();
            progress.wrote(1);
            progress.taken(now);
            progress.flushed(now);
        });
    }

    fn is_over(place: &Place) -> bool {
        place.watch.with(|progress| progress.is_over())
    }

    #[tokio::test]
    async fn a_place_that_is_left_is_forgotten() {
        let mut room = room(2);
        let places = [room.enter().await, room.enter().await];
        assert!(!room.has_place());
        drop(places);
        assert!(room.has_place());
        assert!(room.shared.seats.lock().by_id.is_empty());
        assert!(!room.shared.evict(Instant::now()));
    }

    #[test]
    fn who_was_silent_only_for_a_moment_is_not_closed_for_others() {
        let mut room = room(1);
        let start = Instant::now();
        let _place = room.take_place(start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!room.shared.evict(at(99)));
        assert!(room.shared.evict(at(99) + LOOK_AGAIN));
        assert_eq!(evicted(&room), 1);
        // It is on its way out, and not closed a second time.
        assert!(!room.shared.evict(at(200)));
        assert_eq!(evicted(&room), 1);
    }

    #[test]
    fn who_is_stuck_goes_first_then_who_is_silent_then_who_is_idle_and_the_oldest_of_each() {
        let mut room = room(6);
        let start = Instant::now();
        let places = enter(&mut room, start, 6);
        let [idle, later_idle, silent, later_silent, stuck, later_stuck] = &places[..] else {
            panic!("six")
        };
        let at = |ms| start + Duration::from_millis(ms);
        answered(idle, at(10));
        answered(later_idle, at(20));
        stuck.watch.with(|progress| progress.received(at(30)));
        later_stuck.watch.with(|progress| progress.received(at(40)));
        for (ms, next) in
            (1_000..).step_by(5).zip([stuck, later_stuck, silent, later_silent, idle, later_idle])
        {
            assert!(!is_over(next));
            assert!(room.shared.evict(at(ms)));
            assert!(is_over(next), "at {ms} ms");
        }
        assert!(!room.shared.evict(at(2_000)));
        assert_eq!(evicted(&room), 6);
    }

    #[test]
    fn what_was_seen_is_not_held_against_who_went_on_since() {
        let mut room = room(2);
        let start = Instant::now();
        let places = enter(&mut room, start, 2);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(room.shared.evict(at(200)));
        assert!(is_over(&places[0]));
        places[1].watch.with(|progress| progress.received(at(201)));
        assert!(!room.shared.evict(at(202)));
        assert!(!is_over(&places[1]));
    }

    #[test]
    fn newcomers_that_ask_nothing_take_an_eighth_from_those_who_did_and_then_wait() {
        let mut room = room(16);
        let start = Instant::now();
        let kept = enter(&mut room, start, 16);
        for place in &kept {
            answered(place, start);
        }
        let at = |ms| start + Duration::from_millis(ms);
        let mut came = Vec::new();
        for _ in 0..2 {
            assert!(room.shared.evict(at(1_000)));
            came.push(room.take_place(at(1_000)));
        }
        assert!(!room.shared.evict(at(1_001)));
        // One is answered, and is no newcomer any more: that is seen at the next look.
        answered(&came[0], at(1_002));
        assert!(!room.shared.evict(at(1_003)));
        assert!(room.shared.evict(at(1_000) + LOOK_AGAIN));
        assert_eq!(kept.iter().filter(|place| is_over(place)).count(), 3);
        // The other has been silent for long enough to go before those who asked.
        assert!(room.shared.evict(at(1_200)));
        assert!(is_over(&came[1]));
    }

    #[test]
    fn who_comes_after_the_last_call_has_heard_it() {
        let mut room = room(2);
        let before = room.take_place(Instant::now());
        room.last_call();
        let after = room.take_place(Instant::now());
        assert!(before.watch.hears_last_call() && after.watch.hears_last_call());
    }
}
