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
use super::reason::CloseReason;
use super::watch::Watch;
use crate::budget::MemoryAccount;

/// How long the order of eviction stays valid, and how long to wait if no connection can be evicted.
/// Computing it for 10,000 connections takes about a millisecond.
const ORDER_VALID_FOR: Duration = Duration::from_millis(20);

/// New connections, which have had no answer yet, may displace idle ones only up to one in this many connections: an
/// eighth. So many silent clients cannot displace the clients that have sent requests.
const NEW_SHARE: usize = 8;

/// The open connections of a port, at most a fixed number.
pub struct ConnectionTable {
    bounds: Bounds,
    shared: Arc<TableState>,
    next_id: u64,
    full: OncePerMinute,
    failing: OncePerMinute,
    is_closing: bool,
}

struct TableState {
    slots: Mutex<OpenSlots>,
    /// Notified whenever a connection has ended.
    left: Notify,
    counts: Arc<Connections>,
    /// The most connections that may be new while idle ones are evicted for them.
    max_new: usize,
}

#[derive(Default)]
struct OpenSlots {
    by_id: AHashMap<u64, OpenSlot>,
    /// The order of eviction when it was last computed.
    eviction_queue: VecDeque<(EvictionOrder, u64)>,
    /// How many connections were new then, plus the number accepted since.
    new: usize,
    ordered_at: Option<Instant>,
}

struct OpenSlot {
    watch: Arc<Watch>,
    /// The connection's task, if it is ended by aborting it. Set when the task runs.
    task: Option<AbortHandle>,
}

/// A connection's slot in the table, which is freed when this is dropped.
pub struct ConnectionSlot {
    pub(super) watch: Arc<Watch>,
    /// The memory that the connection holds.
    pub account: Arc<MemoryAccount>,
    id: u64,
    shared: Arc<TableState>,
}

impl ConnectionTable {
    /// Creates an empty table for the connections of one port.
    pub fn new(bounds: Bounds, counts: Arc<Connections>) -> ConnectionTable {
        // OK because a u32 fits into usize wherever there are sockets.
        let max_new = (bounds.max_connections as usize / NEW_SHARE).max(1);
        let shared = TableState { slots: Mutex::default(), left: Notify::new(), counts, max_new };
        let shared = Arc::new(shared);
        let table: Weak<TableState> = Arc::downgrade(&shared);
        shared.counts.set_table(table);
        let (full, failing) = (OncePerMinute::default(), OncePerMinute::default());
        ConnectionTable { bounds, shared, next_id: 0, full, failing, is_closing: false }
    }

    /// Returns whether to log that `accept` fails.
    pub(super) fn is_failure_due(&mut self, now: Instant) -> bool {
        self.failing.is_due(now)
    }

    /// Evicts a connection of this port or of the other port: if possible one that is stuck or silent.
    pub(super) fn evict_of_both_ports(&self, now: Instant) -> bool {
        let tables = self.shared.counts.tables_of_both_ports();
        tables.iter().any(|table| table.evict_silent(now))
            || tables.iter().any(|table| table.evict_idle(now))
    }

    /// Returns a slot for one more connection. If all slots are taken, a connection is evicted: if possible one whose client
    /// makes no progress with a request or an answer, otherwise one whose client never sent anything, otherwise one between
    /// requests. If no connection can be evicted, the future waits. It may be dropped at any time.
    pub async fn enter(&mut self) -> ConnectionSlot {
        loop {
            if self.has_free_slot() {
                return self.take_slot(Instant::now());
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
                while !self.has_free_slot() {
                    self.shared.left.notified().await;
                }
            } else {
                let _ = timeout(ORDER_VALID_FOR, self.shared.left.notified()).await;
            }
        }
    }

    /// Registers the task that serves the connection in that slot, so that it can be aborted.
    pub(super) fn attach(&self, id: u64, task: AbortHandle) {
        // If the slot is gone already, there is nothing to abort.
        if let Some(slot) = self.shared.slots.lock().by_id.get_mut(&id) {
            slot.task = Some(task);
        }
    }

    /// Makes all connections, present and future, end after their present request.
    pub(super) fn announce_close(&mut self) {
        self.is_closing = true;
        for slot in self.shared.slots.lock().by_id.values() {
            slot.watch.announce_close();
        }
    }

    /// Waits until all connections have ended: silent ones soon, the others after their answer.
    pub(super) async fn close(mut self) {
        self.announce_close();
        while !self.shared.slots.lock().by_id.is_empty() {
            self.shared.left.notified().await;
        }
    }

    fn has_free_slot(&self) -> bool {
        // OK because a u32 fits into usize wherever there are sockets.
        self.shared.slots.lock().by_id.len() < self.bounds.max_connections as usize
    }

    fn take_slot(&mut self, now: Instant) -> ConnectionSlot {
        let id = self.next_id;
        // OK because a server does not accept 2^64 connections.
        self.next_id += 1;
        let watch = Arc::new(Watch::new(self.bounds, now));
        if self.is_closing {
            watch.announce_close();
        }
        let mut slots = self.shared.slots.lock();
        slots.by_id.insert(id, OpenSlot { watch: Arc::clone(&watch), task: None });
        // OK because there are never 2^64 connections.
        slots.new += 1;
        drop(slots);
        self.shared.counts.count_opened();
        let account = Arc::new(self.shared.counts.account());
        ConnectionSlot { watch, account, id, shared: Arc::clone(&self.shared) }
    }
}

impl TableState {
    /// Evicts the first connection in the order of eviction, if there is one. The order is computed from all
    /// connections once in [`ORDER_VALID_FOR`], not for each eviction.
    fn evict(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new, now)
    }

    /// Returns how many connections may be new, if the port cannot have more connections than it has now.
    fn max_new_of_open(&self) -> usize {
        (self.slots.lock().by_id.len() / NEW_SHARE).max(1)
    }

    /// Evicts a connection of this rank or an earlier one.
    fn evict_up_to(&self, most: Rank, max_new: usize, now: Instant) -> bool {
        let mut slots = self.slots.lock();
        if slots
            .ordered_at
            .is_none_or(|ordered_at| now.duration_since(ordered_at) >= ORDER_VALID_FOR)
        {
            slots.refresh(now);
        }
        let OpenSlots { by_id, eviction_queue, new, .. } = &mut *slots;
        while let Some((seen, id)) = eviction_queue.pop_front() {
            if seen.rank > most || (seen.rank == Rank::Idle && *new >= max_new) {
                eviction_queue.push_front((seen, id));
                return false;
            }
            let Some(slot) = by_id.get_mut(&id) else { continue };
            if slot.watch.with(|progress| progress.end_if(seen, now)) {
                self.counts.count_closed(CloseReason::Evicted);
                match slot.task.take() {
                    Some(task) => task.abort(),
                    None => slot.watch.wake(),
                }
                return true;
            }
        }
        false
    }
}

impl Evict for TableState {
    fn evict_silent(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Silent, self.max_new_of_open(), now)
    }

    fn evict_idle(&self, now: Instant) -> bool {
        self.evict_up_to(Rank::Idle, self.max_new_of_open(), now)
    }
}

impl OpenSlots {
    fn refresh(&mut self, now: Instant) {
        let OpenSlots { by_id, eviction_queue, new, ordered_at } = self;
        *ordered_at = Some(now);
        *new = 0;
        eviction_queue.clear();
        for (&id, slot) in by_id.iter() {
            let (seen, is_new) =
                slot.watch.with(|progress| (progress.eviction_order(now), progress.is_new()));
            // OK because there are no more new connections than connections.
            *new += usize::from(is_new);
            eviction_queue.extend(seen.map(|seen| (seen, id)));
        }
        eviction_queue.make_contiguous().sort_unstable();
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

    /// Whether the connection must end, because another connection needs its slot. If it need not, the task is woken when it
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
    pub fn count_closed(&self, reason: CloseReason) {
        self.shared.counts.count_closed(reason);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut slots = self.shared.slots.lock();
        let _seat = slots.by_id.remove(&self.id);
        // Unlocked before the slot is dropped, because that may drop a task.
        drop(slots);
        self.shared.counts.count_gone();
        self.shared.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::super::connections::Port;
    use super::*;
    use crate::budget::Budget;

    fn table(max_connections: u32) -> ConnectionTable {
        let minute = Duration::from_secs(60);
        let bounds = Bounds { max_connections, first_byte: minute, request: minute, idle: minute };
        let budget = Budget::new(1 << 20);
        ConnectionTable::new(bounds, Arc::new(Connections::new(Port::Http, budget)))
    }

    fn evicted(table: &ConnectionTable) -> u64 {
        let mut closed = table.shared.counts.closed();
        closed.find(|(reason, _)| *reason == CloseReason::Evicted).unwrap().1
    }

    /// Opens `count` connections, a millisecond apart.
    fn enter(table: &mut ConnectionTable, start: Instant, count: u64) -> Vec<ConnectionSlot> {
        let at = |ms| start + Duration::from_millis(ms);
        (0..count).map(|ms| table.take_slot(at(ms))).collect()
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
        let mut table = table(2);
        let places = [table.enter().await, table.enter().await];
        assert!(!table.has_free_slot());
        drop(places);
        assert!(table.has_free_slot());
        assert!(table.shared.slots.lock().by_id.is_empty());
        assert!(!table.shared.evict(Instant::now()));
    }

    #[test]
    fn connection_is_not_evicted_when_silent_only_for_a_moment() {
        let mut table = table(1);
        let start = Instant::now();
        let _place = table.take_slot(start);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!table.shared.evict(at(99)));
        assert!(table.shared.evict(at(99) + ORDER_VALID_FOR));
        assert_eq!(evicted(&table), 1);
        // It is ending already, and not evicted a second time.
        assert!(!table.shared.evict(at(200)));
        assert_eq!(evicted(&table), 1);
    }

    #[test]
    fn eviction_takes_stuck_then_silent_then_idle_and_the_oldest_first() {
        let mut table = table(6);
        let start = Instant::now();
        let places = enter(&mut table, start, 6);
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
            assert!(table.shared.evict(at(ms)));
            assert!(is_over(next), "at {ms} ms");
        }
        assert!(!table.shared.evict(at(2_000)));
        assert_eq!(evicted(&table), 6);
    }

    #[test]
    fn eviction_skips_a_connection_that_progressed_meanwhile() {
        let mut table = table(2);
        let start = Instant::now();
        let places = enter(&mut table, start, 2);
        let at = |ms| start + Duration::from_millis(ms);
        assert!(table.shared.evict(at(200)));
        assert!(is_over(&places[0]));
        places[1].watch.with(|progress| progress.received(at(201)));
        assert!(!table.shared.evict(at(202)));
        assert!(!is_over(&places[1]));
    }

    #[test]
    fn new_connections_displace_at_most_an_eighth_of_idle_ones() {
        let mut table = table(16);
        let start = Instant::now();
        let kept = enter(&mut table, start, 16);
        for place in &kept {
            answered(place, start);
        }
        let at = |ms| start + Duration::from_millis(ms);
        let mut came = Vec::new();
        for _ in 0..2 {
            assert!(table.shared.evict(at(1_000)));
            came.push(table.take_slot(at(1_000)));
        }
        assert!(!table.shared.evict(at(1_001)));
        // One connection is answered, and no longer new: that counts when the order is next computed.
        answered(&came[0], at(1_002));
        assert!(!table.shared.evict(at(1_003)));
        assert!(table.shared.evict(at(1_000) + ORDER_VALID_FOR));
        assert_eq!(kept.iter().filter(|place| is_over(place)).count(), 3);
        // The other has been silent long enough to be evicted before connections that have sent requests.
        assert!(table.shared.evict(at(1_200)));
        assert!(is_over(&came[1]));
    }

    #[test]
    fn later_connection_also_learns_of_the_last_call() {
        let mut table = table(2);
        let before = table.take_slot(Instant::now());
        table.announce_close();
        let after = table.take_slot(Instant::now());
        assert!(before.watch.learn_of_close() && after.watch.learn_of_close());
    }
}
