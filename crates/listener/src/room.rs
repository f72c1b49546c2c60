//! The open connections of a port, at most a fixed number at a time.

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
use super::once_per_minute::OncePerMinute;
use super::progress::{EvictionOrder, Rank};
use super::reason::Reason;
use super::watch::Watch;
use crate::budget::MemoryAccount;

/// How long the order of eviction stays valid, and how long to wait if no connection can be evicted.
/// Computing it for 10,000 connections takes about a millisecond.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// New connections, which have had no answer yet, may displace idle ones up to this part of the room: an
/// eighth. A crowd of silent clients then cannot drive out clients that have sent requests.
const NEWCOMERS: usize = 8;

/// The open connections of a port: at most a fixed number, the room of the port.
pub struct Room {
    bounds: Bounds,
    shared: Arc<RoomState>,
    next_id: u64,
    full: OncePerMinute,
    failing: OncePerMinute,
    is_closing: bool,
}

struct RoomState {
    seats: Mutex<OpenSlots>,
    /// Notified whenever a connection has ended.
    left: Notify,
    counts: Arc<Connections>,
    /// How many connections may be new, if idle ones are to be evicted for them.
    max_new: usize,
}

#[derive(Default)]
struct OpenSlots {
    by_id: AHashMap<u64, OpenSlot>,
    /// The order of eviction when it was last computed.
    spare: VecDeque<(EvictionOrder, u64)>,
    /// How many connections were new then, plus the number accepted since.
    new: usize,
    looked: Option<Instant>,
}

struct OpenSlot {
    watch: Arc<Watch>,
    /// The connection's task, if it is ended by aborting it. Set when the task runs.
    task: Option<AbortHandle>,
}

/// A connection's slot in the room, which is freed when this is dropped.
pub struct ConnectionSlot {
    pub(super) watch: Arc<Watch>,
    /// The memory that the connection holds.
    pub account: Arc<MemoryAccount>,
    id: u64,
    shared: Arc<RoomState>,
}

impl Room {
    /// Creates an empty room for the connections of one port.
    pub fn new(bounds: Bounds, counts: Arc<Connections>) -> Room {
        // OK because a u32 fits into usize wherever there are sockets.
        let max_new = (bounds.max_connections as usize / NEWCOMERS).max(1);
        let shared = RoomState { seats: Mutex::default(), left: Notify::new(), counts, max_new };
        let shared = Arc::new(shared);
        let room: Weak<RoomState> = Arc::downgrade(&shared);
        shared.counts.set_room(room);
        let (full, failing) = (OncePerMinute::default(), OncePerMinute::default());
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

    /// Returns a slot for one more connection. If all are taken, another connection is evicted: one whose
    /// client makes no progress with a request or an answer, else one that never sent anything, else one
    /// between requests. If none can be evicted, it waits. The future may be dropped at any time.
    pub async fn enter(&mut self) -> ConnectionSlot {
        loop {
            if self.has_place() {
                return self.take_place(Instant::now());
            }
            if self.full.is_due(Instant::now()) {
                let (cap, port) = (self.bounds.max_connections, self.shared.counts.port().name());
                tracing::warn!(
                    port,
                    "{cap} connections are open, which is the maximum: stuck, silent or idle \
                     connections are closed for new ones; if there are none, new connections wait"
                );
            }
            if self.shared.evict(Instant::now()) {
                // The notification may be of a connection that ended earlier.
                while !self.has_place() {
                    self.shared.left.notified().await;
                }
            } else {
                let _ = timeout(LOOK_AGAIN, self.shared.left.notified()).await;
            }
        }
    }

    /// Registers the task that serves the connection in that slot, so that it can be aborted.
    pub(super) fn attach(&self, id: u64, task: AbortHandle) {
        // If the slot is gone already, there is nothing to abort.
        if let Some(seat) = self.shared.seats.lock().by_id.get_mut(&id) {
            seat.task = Some(task);
        }
    }

    /// Makes all connections, present and future, end after their present request.
    pub(super) fn last_call(&mut self) {
        self.is_closing = true;
        for seat in self.shared.seats.lock().by_id.values() {
            seat.watch.last_call();
        }
    }

    /// Waits until all connections have ended: silent ones soon, the others after their answer.
    pub(super) async fn close(mut self) {
        self.last_call();
        while !self.shared.seats.lock().by_id.is_empty() {
            self.shared.left.notified().await;
        }
    }

    fn has_place(&self) -> bool {
        // OK because a u32 fits into usize wherever there are sockets.
        self.shared.seats.lock().by_id.len() < self.bounds.max_connections as usize
    }

    fn take_place(&mut self, now: Instant) -> ConnectionSlot {
        let id = self.next_id;
        // OK because a server does not accept 2^64 connections.
        self.next_id += 1;
        let watch = Arc::new(Watch::new(self.bounds, now));
        if self.is_closing {
            watch.last_call();
        }
        let mut seats = self.shared.seats.lock();
        seats.by_id.insert(id, OpenSlot { watch: Arc::clone(&watch), task: None });
        // OK because there are never 2^64 connections.
        seats.new += 1;
        drop(seats);
        self.shared.counts.count_opened();
        let account = Arc::new(self.shared.counts.account());
        ConnectionSlot { watch, account, id, shared: Arc::clone(&self.shared) }
    }
}

impl RoomState {
    /// Evicts the first connection in the order of eviction, if there is one. The order is computed from all
    /// connections once in [`LOOK_AGAIN`], not for each eviction.
    fn evict(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new, now)
    }

    /// Returns how many connections may be new, if the port cannot have more connections than now.
    fn max_new_of_open(&self) -> usize {
        (self.seats.lock().by_id.len() / NEWCOMERS).max(1)
    }

    /// Evicts a connection of this rank or an earlier one.
    fn evict_up_to(&self, most: Rank, max_new: usize, now: Instant) -> bool {
        let mut seats = self.seats.lock();
        if seats.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_AGAIN) {
            seats.refresh(now);
        }
        let OpenSlots { by_id, spare, new, .. } = &mut *seats;
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

impl Evict for RoomState {
    fn evict_silent(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Silent, self.max_new_of_open(), now)
    }

    fn evict_idle(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new_of_open(), now)
    }
}

impl OpenSlots {
    fn refresh(&mut self, now: Instant) {
        let OpenSlots { by_id, spare, new, looked } = self;
        *looked = Some(now);
        *new = 0;
        spare.clear();
        for (&id, seat) in by_id.iter() {
            let (seen, is_new) =
                seat.watch.with(|progress| (progress.eviction_order(now), progress.is_new()));
            // OK because there are at most as many as connections.
            *new += usize::from(is_new);
            spare.extend(seen.map(|seen| (seen, id)));
        }
        spare.make_contiguous().sort_unstable();
    }
}

impl ConnectionSlot {
    /// Records that bytes from the beginning of a connection were received.
    pub fn received(&self) {
        self.watch.with(|progress| progress.received(Instant::now()));
    }

    /// Records that the connection uses HTTP/2.
    pub fn multiplexes(&self) {
        self.watch.with(|progress| progress.multiplexes(Instant::now()));
    }

    /// Whether the connection must end, because another needs its room; if not, the task is woken when it
    /// must.
    pub fn is_over(&self, context: &Context<'_>) -> bool {
        // First, because eviction wakes the task afterwards.
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

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut seats = self.shared.seats.lock();
        let _seat = seats.by_id.remove(&self.id);
        // Unlocked before the seat's content is dropped, which may drop a task.
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

    /// Opens `count` connections, a millisecond apart.
    fn enter(room: &mut Room, start: Instant, count: u64) -> Vec<ConnectionSlot> {
        let at = |ms| start + Duration::from_millis(ms);
        (0..count).map(|ms| room.take_place(at(ms))).collect()
    }

    fn answered(place: &ConnectionSlot, now: Instant) {
        place.watch.with(|progress| {
            progress.received(now);
            progress.complete();
            progress.answered();
            progress.wrote(1);
            progress.taken(now);
            progress.flushed(now);
        });
    }

    fn is_over(place: &ConnectionSlot) -> bool {
        place.watch.with(|progress| progress.is_over())
    }

    #[tokio::test]
    async fn dropped_slot_is_freed() {
        let mut room = room(2);
        let places = [room.enter().await, room.enter().await];
        assert!(!room.has_place());
        drop(places);
        assert!(room.has_place());
        assert!(room.shared.seats.lock().by_id.is_empty());
        assert!(!room.shared.evict(Instant::now()));
    }

    #[test]
    fn connection_is_not_evicted_when_silent_only_for_a_moment() {
        let mut room = room(1);
        let start = Instant::now();
        let _place = room.take_place(start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!room.shared.evict(at(99)));
        assert!(room.shared.evict(at(99) + LOOK_AGAIN));
        assert_eq!(evicted(&room), 1);
        // It is ending already, and not evicted a second time.
        assert!(!room.shared.evict(at(200)));
        assert_eq!(evicted(&room), 1);
    }

    #[test]
    fn eviction_takes_stuck_then_silent_then_idle_and_the_oldest_first() {
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
    fn eviction_skips_a_connection_that_progressed_meanwhile() {
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
    fn new_connections_displace_at_most_an_eighth_of_idle_ones() {
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
        // One connection is answered, and no longer new: that counts when the order is next computed.
        answered(&came[0], at(1_002));
        assert!(!room.shared.evict(at(1_003)));
        assert!(room.shared.evict(at(1_000) + LOOK_AGAIN));
        assert_eq!(kept.iter().filter(|place| is_over(place)).count(), 3);
        // The other has been silent long enough to be evicted before connections that have sent requests.
        assert!(room.shared.evict(at(1_200)));
        assert!(is_over(&came[1]));
    }

    #[test]
    fn later_connection_also_learns_of_the_last_call() {
        let mut room = room(2);
        let before = room.take_place(Instant::now());
        room.last_call();
        let after = room.take_place(Instant::now());
        assert!(before.watch.hears_last_call() && after.watch.hears_last_call());
    }
}
