//! The memory store: every key's state in this process, in bounded memory.
//!
//! - `identity`: what a slot remembers of a key
//! - `slot`: a key and its state in 44 bytes; `logs`: the states too large for that
//! - `table`: open addressing, over nine tenths full, growing in place
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
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate_core::{
    Algorithm, Ask, Checked, Decision, Entry, Fill, FixedWindow, LeakyBucket, Limit, Log, Receipt,
    SlidingWindowCounter, SlidingWindowLog, State, TokenBucket, Window, WindowPair,
};

use crate::error::Error;
use budget::Budget;
use identity::{Identify, Identity};
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

/// What a shard may grow to, so that its table grows in microseconds.
const SHARD_BYTES: usize = 32 << 10;

/// Enough that two callers seldom meet, and few enough that an empty store is small.
const SHARDS: RangeInclusive<usize> = 16..=65_536;

/// Of a store that keeps every key.
const SHARDS_WITHOUT_CEILING: usize = 4_096;

/// A limit with a name: what state belongs to, beside its key.
#[derive(Debug)]
pub(crate) struct Scope {
    index: u32,
    salt: u64,
    pub(crate) name: Box<str>,
    pub(crate) limit: Limit,
    /// Shared by the keys that found no room.
    overflow: Mutex<State>,
}

/// Where one key's state is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    identity: Identity,
    /// The bits of the scope's index that the identity does not have.
    scope: u32,
    hash: u64,
    shard: usize,
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
        let (shards, shard_bytes) = match max_bytes {
            Some(max_bytes) => {
                let shards = (max_bytes / SHARD_BYTES).clamp(*SHARDS.start(), *SHARDS.end());
                let shards = shards.next_power_of_two();
                (shards, (max_bytes / shards).min(SHARD_BYTES))
            }
            None => (SHARDS_WITHOUT_CEILING, 0),
        };
        let shard = |_| Apart(Mutex::new(Shard::for_bytes(shard_bytes)));
        let fixed_bytes = size_of::<Apart<Mutex<Shard>>>() + Shard::list_bytes(shard_bytes);
        let fixed_bytes = shards * fixed_bytes;
        Memory {
            shards: (0..shards).map(shard).collect(),
            identify: Identify::new(),
            scopes: RwLock::default(),
            budget: Budget::new(max_bytes, fixed_bytes),
            overflowed: AtomicU64::new(0),
        }
    }

    /// The scope of this name; made with `limit` if there is none yet.
    pub(crate) fn scope(&self, name: &str, limit: Limit) -> Result<Arc<Scope>, Error> {
        let is_named = |scope: &&Arc<Scope>| *scope.name == *name;
        if let Some(scope) = self.scopes.read().iter().find(is_named)
            && scope.limit == limit
        {
            return Ok(Arc::clone(scope));
        }
        let mut scopes = self.scopes.write();
        if let Some(scope) = scopes.iter().find(is_named) {
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
        let salt = self.identify.salt(index);
        let scope = Arc::new(Scope { index, salt, name: name.into(), limit, overflow });
        scopes.push(Arc::clone(&scope));
        Ok(scope)
    }

    /// Decides one request of a key that has state; `None` if it has none.
    ///
    /// Apart from [`check_any`](Self::check_any) so that nothing of it need be in memory: what a
    /// call that might be made returns, or is given, has to be.
    #[inline(always)]
    pub(crate) fn check_known<A: Charged>(
        &self,
        limit: &A,
        place: Place,
        now_us: u64,
        ask: Ask,
    ) -> Option<Checked> {
        let mut shard = self.shard(place).lock();
        let (slot, logs) = shard.slot_mut(place)?;
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, ask);
        Some(A::State::change(slot, logs, &self.budget, check))
    }

    /// Decides one request. A key without state is given one, if there is something to keep and room
    /// for it; without room it shares its scope's overflow state.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_any<A: Charged>(
        &self,
        scope: &Scope,
        limit: &A,
        key: &[u8],
        now_us: u64,
        ask: Ask,
    ) -> Checked {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, ask);
        if let Some((slot, logs)) = shard.slot_mut(place) {
            return A::State::change(slot, logs, &self.budget, check);
        }
        let mut state = A::State::default();
        let answer = check(&mut state);
        if state == A::State::default() {
            return answer;
        }
        if shard.make_room(1, &self.census(now_us)) {
            shard.insert(place, state, &self.budget);
            return answer;
        }
        drop(shard);
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow(scope, check)
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

    /// Runs `act` on a key's state without bringing a new one in. A key without state may be among
    /// those that found no room.
    fn look<S: Kept, T>(&self, scope: &Scope, key: &[u8], act: impl FnOnce(&mut S) -> T) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        if let Some((slot, logs)) = shard.slot_mut(place) {
            return S::change(slot, logs, &self.budget, act);
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
        let mut shard = self.shard(place).lock();
        if let Some(at) = shard.find(place) {
            shard.remove(at, &scope.limit, &self.identify, &self.budget);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let keys = self.shards.iter().map(|shard| shard.0.lock().keys()).sum();
        let overflowed = self.overflowed.load(Ordering::Relaxed);
        Usage { keys, bytes: self.budget.used(), overflowed }
    }

    /// Where a key's state is, or would be. Best asked for before the clock is: the two then
    /// overlap, which saves 2 ns.
    #[inline]
    pub(crate) fn place(&self, scope: &Scope, key: &[u8]) -> Place {
        let identity = self.identify.identity(key, scope.index >> slot::SCOPE_BITS);
        let hash = self.identify.hash(identity, scope.salt);
        let scope = scope.index & ((1 << slot::SCOPE_BITS) - 1);
        // OK because the shift leaves 32 bits. The table takes the lower ones.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        Place { identity, scope, hash, shard }
    }

    #[inline]
    fn shard(&self, place: Place) -> &Mutex<Shard> {
        &self.shards[place.shard].0
    }

    fn census(&self, now_us: u64) -> Census<'_> {
        Census { identify: &self.identify, scopes: &self.scopes, budget: &self.budget, now_us }
    }
}

/// A limit whose keys a slot can keep.
pub(crate) trait Charged: Algorithm<State: Kept> {
    /// Decides one request, and charges it if it is allowed, with no more memory than there is.
    #[inline(always)]
    fn check_within(&self, _: &Budget, state: &mut Self::State, now_us: u64, ask: Ask) -> Checked {
        self.check(state, now_us, ask)
    }
}

impl Charged for FixedWindow {}
impl Charged for SlidingWindowCounter {}
impl Charged for TokenBucket {}
impl Charged for LeakyBucket {}

impl Charged for SlidingWindowLog {
    fn check_within(&self, budget: &Budget, log: &mut Log, now_us: u64, ask: Ask) -> Checked {
        if log.heap_bytes() == 0 {
            let checked = self.check(log, now_us, ask);
            logs::settle(log, budget);
            return checked;
        }
        if self.growth_bytes(log, now_us) > 0 {
            let decision = self.peek(log, now_us, ask);
            if !decision.is_allowed() {
                self.settle(log, now_us);
                return Checked { decision, receipt: None };
            }
            // Always so: a log with memory that is full has charges to make one of.
            logs::reserve(log, self, now_us, budget);
        }
        self.check(log, now_us, ask)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tollgate_core::{Cost, Role};

    use super::*;

    /// What the keys take of the budget, counted anew.
    fn recounted(memory: &Memory) -> usize {
        let shards: usize = memory.shards.iter().map(|shard| shard.0.lock().recounted()).sum();
        let scopes = memory.scopes.read();
        let overflows = scopes.iter().map(|scope| match &*scope.overflow.lock() {
            State::Log(log) => logs::held_bytes(log),
            _ => 0,
        });
        shards + overflows.sum::<usize>()
    }

    /// Logs that are charged, refunded, reset and die, alone and together, at the ceiling and below.
    #[test]
    fn what_is_counted_is_what_is_held() {
        let memory = Memory::new(Some(90_000));
        let limit: Limit = "sliding-window-log limit=40 window=1h".parse().unwrap();
        let scopes = ["one", "other"].map(|name| memory.scope(name, limit).unwrap());
        let Limit::SlidingWindowLog(log) = limit else { return };
        let empty = memory.budget.used();
        let (mut seed, mut now_us) = (1_u64, 1_000_000_000_000_u64);
        let mut fullest = 0;
        for step in 0..30_000_u64 {
            // A step of a generator whose numbers are good enough for a test.
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let random = |below: u64, from: u32| (seed >> from) % below;
            let key = random(300, 20).to_string();
            let scope = &scopes[random(2, 33) as usize];
            let ask = Ask::new(Cost::new(1 + random(3, 40)).unwrap());
            let check = || memory.check_any(scope, &log, key.as_bytes(), now_us, ask);
            match random(16, 50) {
                0 => memory.reset(scope, key.as_bytes()),
                1 => {
                    let receipt = check().receipt;
                    receipt.map(|it| memory.refund(scope, key.as_bytes(), now_us, it));
                }
                2..=5 => {
                    let parts = scopes.each_ref().map(|scope| Part {
                        scope,
                        key: key.as_bytes(),
                        ask,
                        role: if step % 7 == 0 { Role::Shadow } else { Role::Enforced },
                    });
                    memory.together(&parts, now_us);
                }
                _ => _ = check(),
            }
            now_us += random(2_000_000, 30);
            if step % 10_000 == 9_999 {
                now_us += 7_200_000_000;
            }
            assert_eq!(memory.budget.used() - empty, recounted(&memory), "step {step}");
            fullest = fullest.max(memory.budget.used());
        }
        assert!(fullest > 85_000, "{fullest} bytes of 90,000: the ceiling was never near");
    }
}
