//! Who waits for which key, in order.
//!
//! A key that somebody acquires has a line: one at the front, who asks the store and rests until it
//! is worth asking again, and those behind, who are parked without a timer of their own. Whoever
//! leaves the front, served or not, wakes the next. A line without anybody in it is dropped.
//!
//! No waker is woken or dropped under a shard's lock: either may drop a task, and with it a place
//! in a line of the same shard.

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

/// Enough that acquires of different keys seldom meet.
const SHARDS: usize = 64;

/// The most that wait behind one key's front. A forecast walks them, up to 30 ns each: 0.12 ms.
const MAX_BEHIND: usize = 4_096;

/// Every line of a limiter.
pub(crate) struct Lines {
    shards: [Mutex<HashMap<Place, Line, RandomState>>; SHARDS],
    fingerprint: SipHasher13,
    tickets: AtomicU64,
    /// Everybody in a line.
    standing: AtomicUsize,
    max_waiting: usize,
}

/// Which line: the scope's name, and a keyed fingerprint of 128 bits of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The number of the name. A caller in line holds the scope, and that the name.
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
    /// In the order they came, so by rising ticket.
    behind: VecDeque<Behind>,
}

/// What one in line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// A line is of one name, under which there may be several limits.
    pub(crate) limit: Limit,
    pub(crate) cost: Cost,
}

#[derive(Debug)]
struct Front {
    want: Want,
    /// When it asks again; 0 while it has not been told to wait.
    due_us: u64,
    /// Somebody gave units back since it last asked.
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

    /// How many stand in lines, the fronts included.
    pub(crate) fn waiting(&self) -> usize {
        let in_shard = |lines: &Mutex<HashMap<_, Line, _>>| {
            lines.lock().values().map(|line| 1 + line.behind.len()).sum::<usize>()
        };
        self.shards.iter().map(in_shard).sum()
    }

    /// Takes the last place in the line of a key, under the name with this number.
    pub(crate) fn join(
        &self,
        name: u64,
        key: &[u8],
        want: Want,
    ) -> Result<(Turn<'_>, Standing), Error> {
        let place = self.place(name, key);
        let mut shard = self.shards[place.shard()].lock();
        // Drawn under the lock, so that tickets rise along every line.
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

    /// Lets the key's front ask again at once: units came back that it did not know of.
    pub(crate) fn nudge(&self, name: u64, key: &[u8]) {
        // A front that asked before the units came back was counted before it asked, and the
        // store's lock orders the two.
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

/// A place in a line. Dropping it leaves the line, and wakes the next if it was the front.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    lines: &'a Lines,
    place: Place,
    ticket: u64,
}

/// Where one stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// At the front: ask.
    Front,
    /// Behind others: wait to be woken.
    Behind,
    /// Behind a front that cannot go before the deadline.
    TooLate {
        /// When the front asks again.
        due_us: u64,
    },
}

/// Whether the front may rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Until it is due, or woken.
    Undisturbed,
    /// Not at all: units came back since it asked.
    Nudged,
}

impl Turn<'_> {
    /// Where this one stands; if behind, `waker` is woken when that changes.
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

    /// What those ahead ask for, the front first.
    pub(crate) fn wants_ahead(&self) -> Vec<Want> {
        let shard = self.lines.shards[self.place.shard()].lock();
        let Some(line) = shard.get(&self.place) else { return Vec::new() };
        let Some(at) = line.position(self.ticket) else { return Vec::new() };
        let behind = line.behind.iter().take(at).map(|ahead| ahead.want);
        std::iter::once(line.front.want).chain(behind).collect()
    }

    /// Whether there is room for one more to wait; asked by a front that found nobody before it.
    pub(crate) fn has_room(&self) -> Result<(), Error> {
        let standing = self.lines.standing.load(Ordering::Relaxed);
        if standing > self.lines.max_waiting {
            return Err(Error::TooManyWaiting { waiting: standing - 1 });
        }
        Ok(())
    }

    /// The front says that it asks again at `due_us`. Those whose deadline is before that are woken,
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

/// What a place leaves behind, to be woken and dropped without the lock.
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
    /// Where among those behind; `None` for the front.
    fn position(&self, ticket: u64) -> Option<usize> {
        self.behind.binary_search_by_key(&ticket, |behind| behind.ticket).ok()
    }
}

/// Keeps a waker; returns the one that it replaces.
fn remember(kept: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match kept {
        Some(same) if same.will_wake(waker) => None,
        _ => kept.replace(waker.clone()),
    }
}
