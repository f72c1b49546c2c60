//! Who is connected, at most so many at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::Bounds;
use super::connections::{Connections, Reason};
use super::progress::ON_ITS_WAY;
use super::seldom::Seldom;
use super::watch::Watch;

/// How many connections are looked at for one that is silent, before others get a turn.
const LOOKS: usize = 256;

/// When to look again, if none was.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Room for so many connections.
pub(super) struct Room {
    bounds: Bounds,
    shared: Arc<Shared>,
    next_id: u64,
    full: Seldom,
}

struct Shared {
    seats: Mutex<Seats>,
    /// Told whenever a connection has gone.
    left: Notify,
    counts: Arc<Connections>,
}

#[derive(Default)]
struct Seats {
    by_id: AHashMap<u64, Seat>,
    /// By when each was silent at last, as far as anybody looked: later is possible, earlier is not.
    by_silence: BTreeSet<(Instant, u64)>,
}

struct Seat {
    filed: Instant,
    watch: Arc<Watch>,
    /// From when it runs.
    task: Option<AbortHandle>,
}

/// A connection's place in the room. Dropped, it is free.
pub(super) struct Place {
    pub(super) watch: Arc<Watch>,
    id: u64,
    shared: Arc<Shared>,
}

impl Room {
    pub(super) fn new(bounds: Bounds, counts: Arc<Connections>) -> Room {
        let shared = Shared { seats: Mutex::default(), left: Notify::new(), counts };
        Room { bounds, shared: Arc::new(shared), next_id: 0, full: Seldom::default() }
    }

    /// A place for one more. If there is none, the connection that has been silent longest is closed for it; if
    /// none is silent, it waits until one is, or is gone.
    pub(super) async fn enter(&mut self) -> Place {
        loop {
            if self.has_place() {
                return self.take_place(Instant::now());
            }
            if self.full.is_due(Instant::now()) {
                let cap = self.bounds.max_connections;
                tracing::warn!(
                    "{cap} connections are open, the most that there may be: \
                     silent ones are closed for new ones, and if none is silent, new ones wait"
                );
            }
            match self.shared.evict(Instant::now()) {
                Some(task) => {
                    task.abort();
                    // It may hear of one that left earlier.
                    while !self.has_place() {
                        self.shared.left.notified().await;
                    }
                }
                None => {
                    let _ = timeout(LOOK_AGAIN, self.shared.left.notified()).await;
                }
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

    /// Waits until all are gone: those that are silent soon, the others when they have their answer.
    pub(super) async fn close(self) {
        for seat in self.shared.seats.lock().by_id.values() {
            seat.watch.last_call();
        }
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
        let mut seats = self.shared.seats.lock();
        seats.by_id.insert(id, Seat { filed: now, watch: Arc::clone(&watch), task: None });
        seats.by_silence.insert((now, id));
        drop(seats);
        self.shared.counts.count_opened();
        Place { watch, id, shared: Arc::clone(&self.shared) }
    }
}

impl Shared {
    /// Ends the connection that has been silent longest, if one of those looked at is. A connection that was busy
    /// since it was last looked at is filed anew, so each look is O(log n), and no request pays for the order.
    fn evict(&self, now: Instant) -> Option<AbortHandle> {
        let mut seats = self.seats.lock();
        let Seats { by_id, by_silence } = &mut *seats;
        for _ in 0..LOOKS {
            let is_long = |(filed, _): &&(Instant, u64)| now.duration_since(*filed) >= ON_ITS_WAY;
            let (filed, id) = *by_silence.first().filter(is_long)?;
            by_silence.pop_first();
            let Some(seat) = by_id.get_mut(&id) else { continue };
            let since = seat.watch.with(|progress| progress.silent_since());
            let is_longest = since.is_some_and(|since| since <= filed);
            if is_longest && seat.watch.with(|progress| progress.end_if_silent()) {
                self.counts.count_closed(Reason::Evicted);
                return seat.task.take();
            }
            seat.filed = since.unwrap_or(now);
            by_silence.insert((seat.filed, id));
        }
        None
    }
}

impl Place {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn count_closed(&self, reason: Reason) {
        self.shared.counts.count_closed(reason);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.shared.seats.lock();
        let seat = seats.by_id.remove(&self.id);
        if let Some(seat) = &seat {
            seats.by_silence.remove(&(seat.filed, self.id));
        }
        // Before what the seat holds is dropped: that may be the last of a task.
        drop(seats);
        self.shared.counts.count_gone();
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(max_connections: u32) -> Room {
        let minute = Duration::from_secs(60);
        let bounds = Bounds { max_connections, first_byte: minute, request: minute, idle: minute };
        Room::new(bounds, Arc::default())
    }

    fn evicted(room: &Room) -> u64 {
        let mut closed = room.shared.counts.closed();
        closed.find(|(reason, _)| *reason == Reason::Evicted).unwrap().1
    }

    #[tokio::test]
    async fn a_place_that_is_left_is_forgotten() {
        let mut room = room(2);
        let places = [room.enter().await, room.enter().await];
        assert!(!room.has_place());
        drop(places);
        assert!(room.has_place());
        let seats = room.shared.seats.lock();
        assert!(seats.by_id.is_empty() && seats.by_silence.is_empty());
    }

    #[test]
    fn who_was_silent_only_for_a_moment_is_not_closed_for_others() {
        let mut room = room(1);
        let start = Instant::now();
        let _place = room.take_place(start);
        room.shared.evict(start + ON_ITS_WAY - Duration::from_millis(1));
        assert_eq!(evicted(&room), 0);
        room.shared.evict(start + ON_ITS_WAY);
        assert_eq!(evicted(&room), 1);
        // It is on its way out, and not closed a second time.
        room.shared.evict(start + 2 * ON_ITS_WAY);
        assert_eq!(evicted(&room), 1);
    }

    #[test]
    fn the_silent_one_among_many_is_found_a_few_looks_at_a_time() {
        let mut room = room(1000);
        let start = Instant::now();
        let places: Vec<Place> = (0..LOOKS + 10).map(|_| room.take_place(start)).collect();
        for place in &places[..LOOKS + 9] {
            place.watch.with(|progress| progress.complete());
        }
        let now = start + ON_ITS_WAY;
        room.shared.evict(now);
        assert_eq!(evicted(&room), 0);
        room.shared.evict(now);
        assert_eq!(evicted(&room), 1);
        assert!(places[LOOKS + 9].watch.with(|progress| progress.is_over()));
    }
}
