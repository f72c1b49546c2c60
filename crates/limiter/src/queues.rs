//! The queues of waiters, one for each key that is acquired.
//!
//! The first waiter of a queue checks with the store, and sleeps until it is worth checking again. The
//! waiters behind it are parked without timers of their own. A first waiter that leaves, admitted or not,
//! wakes the next one. An empty queue is dropped.
//!
//! No waker is woken or dropped under a shard's lock: either may drop a task, and with it a waiter in a queue
//! of the same shard.
//!
//! - `paced`: how often first waiters ask the store again about keys with holds

mod paced;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use ahash::RandomState;
use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;
use tollgate_core::{Cost, Limit};

use crate::error::Error;
pub(crate) use paced::PacedWaiter;
use paced::PacedWaiters;

/// Enough that acquires of different keys seldom contend for a lock.
const SHARDS: usize = 64;

/// The most waiters behind the first waiter of a key. A forecast computes the wait of each of them, in at most 30 ns:
/// 0.12 ms for all.
const MAX_BEHIND: usize = 4_096;

/// All queues of a limiter.
pub(crate) struct WaitQueues {
    shards: [Mutex<HashMap<QueueId, WaitQueue, RandomState>>; SHARDS],
    fingerprint: SipHasher13,
    tickets: AtomicU64,
    /// The number of waiters in all queues.
    waiting: AtomicUsize,
    max_waiting: usize,
    paced: PacedWaiters,
}

/// Identifies a queue: the scope's name, and a keyed 128-bit fingerprint of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueId {
    /// The number of the name. A waiter holds its scope, which holds the name, so the number stays in use.
    name: u64,
    key: u128,
}

impl QueueId {
    fn shard(self) -> usize {
        // OK because the low bits suffice.
        self.key as usize % SHARDS
    }
}

#[derive(Debug)]
struct WaitQueue {
    front: FrontWaiter,
    /// In order of arrival, which is the order of their tickets.
    behind: VecDeque<QueuedWaiter>,
}

/// The charge that a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterCharge {
    /// Each waiter has its own: a queue belongs to one name, under which there may be several limits.
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
}

#[derive(Debug)]
struct FrontWaiter {
    charge: WaiterCharge,
    /// When it checks again; 0 before its first denial.
    due_us: u64,
    /// Whether units came back since it last checked.
    is_nudged: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct QueuedWaiter {
    ticket: u64,
    charge: WaiterCharge,
    deadline_us: u64,
    waker: Option<Waker>,
}

impl From<QueuedWaiter> for FrontWaiter {
    fn from(next: QueuedWaiter) -> FrontWaiter {
        FrontWaiter { charge: next.charge, due_us: 0, is_nudged: false, waker: None }
    }
}

impl WaitQueues {
    pub(crate) fn new(max_waiting: usize) -> WaitQueues {
        let seed = RandomState::new();
        WaitQueues {
            shards: std::array::from_fn(|_| Mutex::default()),
            fingerprint: SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8)),
            tickets: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            max_waiting,
            paced: PacedWaiters::default(),
        }
    }

    /// Returns the number of waiters in all queues, the first ones included.
    pub(crate) fn waiting(&self) -> usize {
        let in_shard = |queues: &Mutex<HashMap<_, WaitQueue, _>>| {
            queues.lock().values().map(|queue| 1 + queue.behind.len()).sum::<usize>()
        };
        self.shards.iter().map(in_shard).sum()
    }

    /// Joins the end of the queue of a key, under the name with this number.
    pub(crate) fn join(
        &self,
        name: u64,
        key: &[u8],
        charge: WaiterCharge,
    ) -> Result<(QueueEntry<'_>, QueuePosition), Error> {
        let id = self.id(name, key);
        let mut shard = self.shards[id.shard()].lock();
        // Drawn under the lock, so that tickets rise along every queue.
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let last = QueuedWaiter { ticket, charge, deadline_us: u64::MAX, waker: None };
        let position = match shard.entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(WaitQueue { front: last.into(), behind: VecDeque::new() });
                QueuePosition::Front
            }
            Entry::Occupied(mut queue) => {
                let behind = &mut queue.get_mut().behind;
                let waiting = self.waiting.load(Ordering::Relaxed);
                if behind.len() >= MAX_BEHIND || waiting >= self.max_waiting {
                    return Err(Error::TooManyWaiting { waiting });
                }
                behind.push_back(last);
                QueuePosition::Behind
            }
        };
        self.waiting.fetch_add(1, Ordering::Release);
        Ok((QueueEntry { queues: self, id, ticket }, position))
    }

    /// Makes the key's first waiter check again at once, because units came back.
    pub(crate) fn nudge(&self, name: u64, key: &[u8]) {
        // OK to read without the lock of a shard: a first waiter is counted before it checks, and the store's lock
        // orders its check and the return of the units. So this count includes every waiter that checked before the
        // units came back.
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let id = self.id(name, key);
        let waker = {
            let mut shard = self.shards[id.shard()].lock();
            shard.get_mut(&id).and_then(|queue| {
                queue.front.is_nudged = true;
                queue.front.waker.take()
            })
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn id(&self, name: u64, key: &[u8]) -> QueueId {
        let key = self.fingerprint.hash(key).as_u128();
        QueueId { name, key }
    }
}

impl fmt::Debug for WaitQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueues").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// A waiter's entry in a queue. Dropping the entry removes the waiter from the queue; if it was the first, the next
/// waiter is woken.
#[derive(Debug)]
pub(crate) struct QueueEntry<'a> {
    queues: &'a WaitQueues,
    id: QueueId,
    ticket: u64,
}

/// A waiter's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// First in the queue: check with the store.
    Front,
    /// Behind other waiters: wait to be woken.
    Behind,
    /// Behind a first waiter that cannot be admitted before this waiter's deadline.
    TooLate {
        /// When the first waiter checks again.
        due_us: u64,
    },
}

/// The next action of the first waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontAction {
    /// It sleeps until its check is due, or until it is woken.
    Sleep,
    /// It checks again, because units came back since it checked.
    CheckAgain,
}

impl<'a> QueueEntry<'a> {
    /// Makes this first waiter one that asks the store again at a pace, until the result is dropped.
    pub(crate) fn paced(&self) -> PacedWaiter<'a> {
        self.queues.paced.join()
    }
}

impl QueueEntry<'_> {
    /// Returns this waiter's position. If other waiters are ahead, `waker` is woken when the position changes.
    pub(crate) fn poll_position(&self, deadline_us: u64, waker: &Waker) -> QueuePosition {
        let _stale;
        let mut shard = self.queues.shards[self.id.shard()].lock();
        let Some(queue) = shard.get_mut(&self.id) else { return QueuePosition::Front };
        let Some(at) = queue.position(self.ticket) else { return QueuePosition::Front };
        if queue.front.due_us > deadline_us {
            return QueuePosition::TooLate { due_us: queue.front.due_us };
        }
        let own = &mut queue.behind[at];
        own.deadline_us = deadline_us;
        _stale = remember(&mut own.waker, waker);
        QueuePosition::Behind
    }

    /// Returns the charges of the waiters ahead, the first waiter's first.
    pub(crate) fn charges_ahead(&self) -> Vec<WaiterCharge> {
        let shard = self.queues.shards[self.id.shard()].lock();
        let Some(queue) = shard.get(&self.id) else { return Vec::new() };
        let Some(at) = queue.position(self.ticket) else { return Vec::new() };
        let behind = queue.behind.iter().take(at).map(|ahead| ahead.charge);
        std::iter::once(queue.front.charge).chain(behind).collect()
    }

    /// Returns an error if there are too many waiters. A first waiter calls this before it begins to wait, because
    /// [`join`](WaitQueues::join) accepts a first waiter always.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        let waiting = self.queues.waiting.load(Ordering::Relaxed);
        if waiting > self.queues.max_waiting {
            return Err(Error::TooManyWaiting { waiting: waiting - 1 });
        }
        Ok(())
    }

    /// Records that the first waiter checks again at `due_us`. Waiters whose deadline is earlier are woken,
    /// to learn that they are too late.
    pub(crate) fn sleep(&self, due_us: u64, waker: &Waker) -> FrontAction {
        let mut late = Vec::new();
        let _stale;
        {
            let mut shard = self.queues.shards[self.id.shard()].lock();
            let Some(queue) = shard.get_mut(&self.id) else { return FrontAction::CheckAgain };
            if std::mem::take(&mut queue.front.is_nudged) {
                return FrontAction::CheckAgain;
            }
            _stale = remember(&mut queue.front.waker, waker);
            if queue.front.due_us != due_us {
                queue.front.due_us = due_us;
                let is_late = |behind: &&mut QueuedWaiter| behind.deadline_us < due_us;
                late.extend(
                    queue.behind.iter_mut().filter(is_late).filter_map(|late| late.waker.take()),
                );
            }
        }
        late.into_iter().for_each(Waker::wake);
        FrontAction::Sleep
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let left = self.leave();
        left.next.into_iter().for_each(Waker::wake);
    }
}

/// The wakers to wake and to drop after a waiter has left, without the lock.
#[derive(Debug, Default)]
struct LeftWakers {
    next: Option<Waker>,
    _stale: Option<Waker>,
}

impl QueueEntry<'_> {
    fn leave(&self) -> LeftWakers {
        let mut shard = self.queues.shards[self.id.shard()].lock();
        self.queues.waiting.fetch_sub(1, Ordering::Relaxed);
        let Entry::Occupied(mut entry) = shard.entry(self.id) else { return LeftWakers::default() };
        let queue = entry.get_mut();
        if let Some(at) = queue.position(self.ticket) {
            let own = queue.behind.remove(at);
            return LeftWakers { next: None, _stale: own.and_then(|own| own.waker) };
        }
        match queue.behind.pop_front() {
            Some(mut next) => {
                let woken = next.waker.take();
                let front = std::mem::replace(&mut queue.front, next.into());
                LeftWakers { next: woken, _stale: front.waker }
            }
            None => LeftWakers { next: None, _stale: entry.remove().front.waker },
        }
    }
}

impl WaitQueue {
    /// Returns the index among the waiters behind the first; `None` for the first.
    fn position(&self, ticket: u64) -> Option<usize> {
        self.behind.binary_search_by_key(&ticket, |behind| behind.ticket).ok()
    }
}

/// Stores a waker; returns the one that it replaces.
fn remember(kept: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match kept {
        Some(same) if same.will_wake(waker) => None,
        _ => kept.replace(waker.clone()),
    }
}
