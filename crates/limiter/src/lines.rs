//! The queues of waiters, one for each key that is acquired.
//!
//! The first waiter of a queue checks with the store, and sleeps until it is worth checking again. The
//! waiters behind it are parked without timers of their own. A first waiter that leaves, admitted or not,
//! wakes the next one. An empty queue is dropped.
//!
//! No waker is woken or dropped under a shard's lock: either may drop a task, and with it a waiter in a queue
//! of the same shard.

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

/// Enough that acquires of different keys seldom contend for a lock.
const SHARDS: usize = 64;

/// The most waiters behind the first one of a key. A forecast walks over them, up to 30 ns each: 0.12 ms.
const MAX_BEHIND: usize = 4_096;

/// All queues of a limiter.
pub(crate) struct Lines {
    shards: [Mutex<HashMap<Place, Line, RandomState>>; SHARDS],
    fingerprint: SipHasher13,
    tickets: AtomicU64,
    /// The number of waiters in all queues.
    standing: AtomicUsize,
    max_waiting: usize,
}

/// Identifies a queue: the scope's name, and a keyed fingerprint of 128 bits of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The number of the name. A waiter holds its scope, which holds the name, so the number stays in use.
    name: u64,
    key: u128,
}

impl Place {
    fn shard(self) -> usize {
        // OK because only the low bits are wanted.
        self.key as usize % SHARDS
    }
}

#[derive(Debug)]
struct Line {
    front: Front,
    /// In order of arrival, which is the order of their tickets.
    behind: VecDeque<Behind>,
}

/// The charge that a waiter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// Each waiter has its own: a queue belongs to one name, under which there may be several limits.
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
}

#[derive(Debug)]
struct Front {
    want: Want,
    /// When it checks again; 0 before its first denial.
    due_us: u64,
    /// Whether units came back since it last checked.
    is_nudged: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Behind {
    ticket: u64,
    want: Want,
    deadline_us: u64,
    waker: Option<Waker>,
}

impl From<Behind> for Front {
    fn from(next: Behind) -> Front {
        Front { want: next.want, due_us: 0, is_nudged: false, waker: None }
    }
}

impl Lines {
    pub(crate) fn new(max_waiting: usize) -> Lines {
        let seed = RandomState::new();
        Lines {
            shards: std::array::from_fn(|_| Mutex::default()),
            fingerprint: SipHasher13::new_with_keys(seed.hash_one(0_u8), seed.hash_one(1_u8)),
            tickets: AtomicU64::new(0),
            standing: AtomicUsize::new(0),
            max_waiting,
        }
    }

    /// Returns the number of waiters in all queues, the first ones included.
    pub(crate) fn waiting(&self) -> usize {
        let in_shard = |lines: &Mutex<HashMap<_, Line, _>>| {
            lines.lock().values().map(|line| 1 + line.behind.len()).sum::<usize>()
        };
        self.shards.iter().map(in_shard).sum()
    }

    /// Joins the end of the queue of a key, under the name with this number.
    pub(crate) fn join(
        &self,
        name: u64,
        key: &[u8],
        want: Want,
    ) -> Result<(Turn<'_>, Standing), Error> {
        let place = self.place(name, key);
        let mut shard = self.shards[place.shard()].lock();
        // Drawn under the lock, so that tickets rise along every queue.
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let last = Behind { ticket, want, deadline_us: u64::MAX, waker: None };
        let standing = match shard.entry(place) {
            Entry::Vacant(vacant) => {
                vacant.insert(Line { front: last.into(), behind: VecDeque::new() });
                Standing::Front
            }
            Entry::Occupied(mut line) => {
                let behind = &mut line.get_mut().behind;
                let waiting = self.standing.load(Ordering::Relaxed);
                if behind.len() >= MAX_BEHIND || waiting >= self.max_waiting {
                    return Err(Error::TooManyWaiting { waiting });
                }
                behind.push_back(last);
                Standing::Behind
            }
        };
        self.standing.fetch_add(1, Ordering::Release);
        Ok((Turn { lines: self, place, ticket }, standing))
    }

    /// Lets the key's first waiter check again at once, because units came back.
    pub(crate) fn nudge(&self, name: u64, key: &[u8]) {
        // OK because a first waiter that checked before the units came back was counted before it checked,
        // and the store's lock orders the two.
        if self.standing.load(Ordering::Acquire) == 0 {
            return;
        }
        let place = self.place(name, key);
        let waker = {
            let mut shard = self.shards[place.shard()].lock();
            shard.get_mut(&place).and_then(|line| {
                line.front.is_nudged = true;
                line.front.waker.take()
            })
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn place(&self, name: u64, key: &[u8]) -> Place {
        let key = self.fingerprint.hash(key).as_u128();
        Place { name, key }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("standing", &self.standing).finish_non_exhaustive()
    }
}

/// A waiter's place in a queue. Dropping it leaves the queue; if it was the first, the next waiter is woken.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    lines: &'a Lines,
    place: Place,
    ticket: u64,
}

/// A waiter's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
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

/// Whether the first waiter may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Yes, until its time has come or it is woken.
    Undisturbed,
    /// No: units came back since it checked.
    Nudged,
}

impl Turn<'_> {
    /// Returns this waiter's position. If that is behind others, `waker` is woken when it changes.
    pub(crate) fn stand(&self, deadline_us: u64, waker: &Waker) -> Standing {
        let _stale;
        let mut shard = self.lines.shards[self.place.shard()].lock();
        let Some(line) = shard.get_mut(&self.place) else { return Standing::Front };
        let Some(at) = line.position(self.ticket) else { return Standing::Front };
        if line.front.due_us > deadline_us {
            return Standing::TooLate { due_us: line.front.due_us };
        }
        let own = &mut line.behind[at];
        own.deadline_us = deadline_us;
        _stale = remember(&mut own.waker, waker);
        Standing::Behind
    }

    /// Returns the charges that the waiters ahead ask for, the first waiter's first.
    pub(crate) fn wants_ahead(&self) -> Vec<Want> {
        let shard = self.lines.shards[self.place.shard()].lock();
        let Some(line) = shard.get(&self.place) else { return Vec::new() };
        let Some(at) = line.position(self.ticket) else { return Vec::new() };
        let behind = line.behind.iter().take(at).map(|ahead| ahead.want);
        std::iter::once(line.front.want).chain(behind).collect()
    }

    /// Checks that there is room for one more waiter; for a first waiter that has not waited yet.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        let standing = self.lines.standing.load(Ordering::Relaxed);
        if standing > self.lines.max_waiting {
            return Err(Error::TooManyWaiting { waiting: standing - 1 });
        }
        Ok(())
    }

    /// Records that the first waiter checks again at `due_us`. Waiters whose deadline is earlier are woken,
    /// to learn that they are too late.
    pub(crate) fn rest(&self, due_us: u64, waker: &Waker) -> Rest {
        let mut late = Vec::new();
        let _stale;
        {
            let mut shard = self.lines.shards[self.place.shard()].lock();
            let Some(line) = shard.get_mut(&self.place) else { return Rest::Nudged };
            if std::mem::take(&mut line.front.is_nudged) {
                return Rest::Nudged;
            }
            _stale = remember(&mut line.front.waker, waker);
            if line.front.due_us != due_us {
                line.front.due_us = due_us;
                let is_late = |behind: &&mut Behind| behind.deadline_us < due_us;
                late.extend(
                    line.behind.iter_mut().filter(is_late).filter_map(|late| late.waker.take()),
                );
            }
        }
        late.into_iter().for_each(Waker::wake);
        Rest::Undisturbed
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let left = self.leave();
        left.next.into_iter().for_each(Waker::wake);
    }
}

/// The wakers of a waiter that left, to be woken and dropped without the lock.
#[derive(Debug, Default)]
struct Left {
    next: Option<Waker>,
    _stale: Option<Waker>,
}

impl Turn<'_> {
    fn leave(&self) -> Left {
        let mut shard = self.lines.shards[self.place.shard()].lock();
        self.lines.standing.fetch_sub(1, Ordering::Relaxed);
        let Entry::Occupied(mut entry) = shard.entry(self.place) else { return Left::default() };
        let line = entry.get_mut();
        if let Some(at) = line.position(self.ticket) {
            let own = line.behind.remove(at);
            return Left { next: None, _stale: own.and_then(|own| own.waker) };
        }
        match line.behind.pop_front() {
            Some(mut next) => {
                let woken = next.waker.take();
                let front = std::mem::replace(&mut line.front, next.into());
                Left { next: woken, _stale: front.waker }
            }
            None => Left { next: None, _stale: entry.remove().front.waker },
        }
    }
}

impl Line {
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
