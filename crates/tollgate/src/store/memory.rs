//! The memory store: every key's state in this process, in bounded memory.
//!
//! - `identity`: what a slot remembers of a key
//! - `slot`: a key's state as four words; `logs`: the states too large for that
//! - `table`: open addressing, nine tenths full, growing by an eighth
//! - `shard`: a table and its logs, behind one lock; `budget`: the bytes that all shards share
//! - `together`: several limits of one check
//!
//! A check hashes its key, takes one shard's lock and changes one slot. Keys with nothing spent are
//! dropped a few at a time, by whoever brings in a new one. At the byte ceiling nobody's state is
//! dropped to make room: newcomers share their scope's overflow state.

mod budget;
mod identity;
mod logs;
mod shard;
mod slot;
mod table;
mod together;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate_core::{
    Algorithm, Ask, Checked, Decision, Entry, Fill, Limit, Log, Receipt, State, Window, WindowPair,
};

use crate::error::Error;
use budget::Budget;
use identity::{Identify, Identity};
use logs::within_budget;
use shard::{Census, Shard};
use slot::Kept;
pub(crate) use together::Part;

/// Runs the same expression on the algorithm inside a limit, as its own type.
macro_rules! each {
    ($limit:expr, $algorithm:ident => $body:expr) => {
        match $limit {
            Limit::FixedWindow($algorithm) => $body,
            Limit::SlidingWindowLog($algorithm) => $body,
            Limit::SlidingWindowCounter($algorithm) => $body,
            Limit::TokenBucket($algorithm) => $body,
            Limit::LeakyBucket($algorithm) => $body,
        }
    };
}

/// Enough that two callers seldom meet, and that the largest table grows in microseconds.
const SHARDS: usize = 1_024;

/// A limit with a name: what state belongs to, beside its key.
#[derive(Debug)]
pub(crate) struct Scope {
    index: u32,
    pub(crate) name: Box<str>,
    pub(crate) limit: Limit,
    /// Shared by the keys that found no room.
    overflow: Mutex<State>,
}

/// Where one key's state is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    scope: u32,
    identity: Identity,
    hash: u64,
}

impl Place {
    fn shard(self) -> usize {
        // OK because the shift leaves 32 bits. The table takes the lower ones.
        (self.hash >> 32) as usize % SHARDS
    }
}

pub(crate) struct Memory {
    shards: Box<[Apart<Mutex<Shard>>]>,
    identify: Identify,
    scopes: RwLock<Vec<Arc<Scope>>>,
    budget: Budget,
    overflowed: AtomicU64,
}

/// On cache lines of its own, so that one shard's lock does not slow its neighbour's.
#[repr(align(128))]
struct Apart<T>(T);

/// What the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The keys with state.
    pub keys: usize,
    /// The bytes their state takes, used or not.
    pub bytes: usize,
    /// The checks decided on a scope's shared overflow state, for want of room.
    pub overflowed: u64,
}

impl Memory {
    /// A store of at most `max_bytes`; without that, of every key there ever was.
    pub(crate) fn new(max_bytes: Option<usize>) -> Memory {
        let fixed_bytes = SHARDS * size_of::<Apart<Mutex<Shard>>>();
        Memory {
            shards: (0..SHARDS).map(|_| Apart(Mutex::default())).collect(),
            identify: Identify::new(),
            scopes: RwLock::default(),
            budget: Budget::new(max_bytes, fixed_bytes),
            overflowed: AtomicU64::new(0),
        }
    }

    /// The scope of this name; made with `limit` if there is none yet.
    pub(crate) fn scope(&self, name: &str, limit: Limit) -> Result<Arc<Scope>, Error> {
        let mut scopes = self.scopes.write();
        if let Some(scope) = scopes.iter().find(|scope| *scope.name == *name) {
            if scope.limit == limit {
                return Ok(Arc::clone(scope));
            }
            let (name, existing) = (name.to_owned(), scope.limit.to_string());
            return Err(Error::NameTaken { name, existing });
        }
        let count = scopes.len();
        let index = u32::try_from(count).ok().filter(|&index| index <= slot::MAX_SCOPE);
        let index = index.ok_or(Error::TooManyLimits { count })?;
        let overflow = Mutex::new(limit.fresh());
        let scope = Arc::new(Scope { index, name: name.into(), limit, overflow });
        scopes.push(Arc::clone(&scope));
        Ok(scope)
    }

    /// Decides one request and charges it if it is allowed.
    #[inline]
    pub(crate) fn check(&self, scope: &Scope, key: &[u8], now_us: u64, ask: Ask) -> Checked {
        match &scope.limit {
            Limit::FixedWindow(limit) => {
                self.charge(scope, key, now_us, |state| limit.check(state, now_us, ask))
            }
            Limit::SlidingWindowCounter(limit) => {
                self.charge(scope, key, now_us, |state| limit.check(state, now_us, ask))
            }
            Limit::TokenBucket(limit) => {
                self.charge(scope, key, now_us, |state| limit.check(state, now_us, ask))
            }
            Limit::LeakyBucket(limit) => {
                self.charge(scope, key, now_us, |state| limit.check(state, now_us, ask))
            }
            Limit::SlidingWindowLog(limit) => self.charge(scope, key, now_us, |log| {
                let check = |log: &mut Log| limit.check(log, now_us, ask);
                within_budget(log, limit, (now_us, ask), &self.budget, check)
            }),
        }
    }

    /// Decides one request and charges nothing.
    pub(crate) fn peek(&self, scope: &Scope, key: &[u8], now_us: u64, ask: Ask) -> Decision {
        each!(&scope.limit, limit => {
            self.look(scope, key, |state| limit.peek(state, now_us, ask))
        })
    }

    /// Gives back what of a charge still counts.
    pub(crate) fn refund(&self, scope: &Scope, key: &[u8], now_us: u64, receipt: Receipt) -> u64 {
        each!(&scope.limit, limit => {
            self.look(scope, key, |state| limit.refund(state, now_us, receipt))
        })
    }

    /// A copy of a key's state.
    pub(crate) fn state(&self, scope: &Scope, key: &[u8]) -> State {
        match &scope.limit {
            Limit::FixedWindow(_) => self.look(scope, key, |own: &mut Window| (*own).into()),
            Limit::SlidingWindowCounter(_) => {
                self.look(scope, key, |own: &mut WindowPair| (*own).into())
            }
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                self.look(scope, key, |own: &mut Fill| (*own).into())
            }
            Limit::SlidingWindowLog(_) => self.look(scope, key, |own: &mut Log| own.clone().into()),
        }
    }

    /// The charges of a key that count, oldest first; none unless the limit is a log.
    pub(crate) fn entries(&self, scope: &Scope, key: &[u8], now_us: u64) -> Vec<Entry> {
        match &scope.limit {
            Limit::SlidingWindowLog(limit) => {
                self.look(scope, key, |log: &mut Log| limit.entries(log, now_us).collect())
            }
            _ => Vec::new(),
        }
    }

    /// Runs `check` on a key's state, and keeps what it makes of it. On a key without state it runs
    /// on a fresh one, and again on the overflow state if there is something to keep and no room.
    #[inline]
    fn charge<S: Kept, T>(
        &self,
        scope: &Scope,
        key: &[u8],
        now_us: u64,
        check: impl Fn(&mut S) -> T,
    ) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shards[place.shard()].0.lock();
        if let Some(at) = shard.find(place) {
            return shard.change(at, check);
        }
        let mut state = S::default();
        let answer = check(&mut state);
        if state == S::default() {
            return answer;
        }
        if shard.make_room(1, &scope.limit, &self.census(now_us)) {
            shard.insert(place, state);
            return answer;
        }
        drop(shard);
        self.budget.give_back(state.heap_bytes());
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow(scope, check)
    }

    /// Runs `act` on a key's state without bringing a new one in. A key without state may be among
    /// those that found no room.
    fn look<S: Kept, T>(&self, scope: &Scope, key: &[u8], act: impl FnOnce(&mut S) -> T) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shards[place.shard()].0.lock();
        if let Some(at) = shard.find(place) {
            return shard.change(at, act);
        }
        drop(shard);
        self.overflow(scope, act)
    }

    fn overflow<S: Kept, T>(&self, scope: &Scope, act: impl FnOnce(&mut S) -> T) -> T {
        match S::of(&mut scope.overflow.lock()) {
            Some(overflow) => act(overflow),
            // Not reached: the overflow state is made by the scope's own limit.
            None => act(&mut S::default()),
        }
    }

    /// Forgets a key.
    pub(crate) fn reset(&self, scope: &Scope, key: &[u8]) {
        let place = self.place(scope, key);
        let mut shard = self.shards[place.shard()].0.lock();
        if let Some(at) = shard.find(place) {
            shard.remove(at, &scope.limit, &self.budget);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let keys = self.shards.iter().map(|shard| shard.0.lock().keys()).sum();
        let overflowed = self.overflowed.load(Ordering::Relaxed);
        Usage { keys, bytes: self.budget.used(), overflowed }
    }

    #[inline]
    fn place(&self, scope: &Scope, key: &[u8]) -> Place {
        let identity = self.identify.identity(key);
        let hash = self.identify.hash(scope.index, identity);
        Place { scope: scope.index, identity, hash }
    }

    fn census(&self, now_us: u64) -> Census<'_> {
        Census { identify: &self.identify, scopes: &self.scopes, budget: &self.budget, now_us }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
