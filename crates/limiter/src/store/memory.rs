//! The memory store: every key's state in this process, in bounded memory.
//!
//! - `identity`: what a slot remembers of a key
//! - `slot`: a key and its state in 44 bytes; `logs`: the states too large for that
//! - `table`: open addressing, over nine tenths full, growing in place; `regions`: where its slots are
//! - `shard`: a table and its logs, behind one lock; `budget`: the bytes that all shards share
//! - `scopes`: the limits, by name and by the index that a slot has; `reclaim`: indices that are free again
//! - `look`: peeks, refunds and resets
//! - `together`: several limits of one check (`part`); `known`: the same of keys that are all known
//!
//! A check hashes its key, takes one shard's lock and changes one slot. A slot that was last checked
//! under another limit of the same name is carried over to the one asked of. Keys with nothing spent
//! are dropped a few at a time, by whoever brings in a new one. At the byte ceiling nobody's state is
//! dropped to make room: newcomers share their name's overflow state.

mod budget;
mod census;
mod identity;
mod known;
mod lock;
mod logs;
mod look;
mod part;
mod reclaim;
mod regions;
mod scopes;
mod shard;
mod slot;
mod table;
mod together;
mod words;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate_core::store::{FastPath, LogFastPath, LogStorage};
use tollgate_core::{
    Algorithm, Ask, Checked, Cost, FixedWindow, LeakyBucket, Limit, Log, SlidingWindowCounter,
    SlidingWindowLog, TokenBucket,
};

use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::names::Name;
use crate::receipt::Fingerprint;
use budget::Budget;
use census::Census;
use identity::{Identify, Identity};
use lock::Lock;
use logs::Logs;
pub(crate) use part::{Few, Part};
pub(crate) use scopes::Scope;
use scopes::Scopes;
use shard::{Reached, Shard};
use slot::{Kept, Slot, Usual};
use table::Table;

/// What a shard may grow to, so that its table grows in microseconds.
const SHARD_BYTES: usize = 32 << 10;

/// Enough that two callers seldom meet, and few enough that an empty store is small.
const SHARDS: RangeInclusive<usize> = 16..=65_536;

/// Of a store that keeps every key.
const SHARDS_WITHOUT_CEILING: usize = 4_096;

/// Where one key's state is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    identity: Identity,
    /// The bits of the scope's index that the identity does not have.
    scope: u32,
    hash: u64,
    shard: usize,
}

impl Place {
    /// The hash of a key and its name, which no two names share: the fingerprint for receipts is there already.
    #[inline(always)]
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.hash)
    }
}

pub(crate) struct Memory {
    shards: Box<[Apart<Lock<Shard>>]>,
    /// Which bits of a hash say which: the uppermost.
    shard_shift: u32,
    identify: Identify,
    /// Away from what checks of known keys read: those of new ones write to its lock. Who locks it and
    /// a shard locks the shard first.
    scopes: Box<RwLock<Scopes>>,
    /// Held while a scope is made.
    making: Mutex<()>,
    /// The time, to a second, of the last request that was not just a known key's.
    seen_us: AtomicU64,
    budget: Budget,
    overflowed: AtomicU64,
}

/// On a cache line of its own, so that one shard's lock does not slow its neighbour's. Two that a processor fetches
/// together are two shards', and seldom wanted at once.
#[repr(align(64))]
struct Apart<T>(T);

/// On one alone: a check reads all of it.
const _: () = assert!(size_of::<Apart<Lock<Shard>>>() == 64);

/// What the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The keys with state.
    pub keys: usize,
    /// The bytes their state takes, used or not.
    pub bytes: usize,
    /// The checks decided on a name's shared overflow state, for want of room.
    pub overflowed: u64,
    /// How often two entries of a sliding window log were merged, for want of room: the older one's units count as
    /// long as the newer one's.
    pub coarsened: u64,
}

/// How often a memory store at its ceiling had no room, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CeilingCounts {
    /// [`Usage::overflowed`].
    pub overflowed: u64,
    /// [`Usage::coarsened`].
    pub coarsened: u64,
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
        let shard = |_| Apart(Lock::new(Shard::default()));
        let fixed_bytes = shards * size_of::<Apart<Lock<Shard>>>();
        Memory {
            shards: (0..shards).map(shard).collect(),
            // OK because the number of shards is a power of two.
            shard_shift: u64::BITS - shards.ilog2(),
            identify: Identify::new(),
            scopes: Box::default(),
            making: Mutex::default(),
            seen_us: AtomicU64::new(0),
            budget: Budget::new(max_bytes, shard_bytes, fixed_bytes),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Has the memory for so many keys at hand from now on, as far as the ceiling allows; there is none yet. For no more:
    /// shards that get more keys than others grow by a chunk.
    pub(crate) fn make_room_for(&self, keys: usize) {
        let shards = self.shards.len();
        let left = self.budget.left().saturating_sub(shards * Shard::list_bytes(&self.budget));
        let wanted = Table::chunks_of(keys.min(left / size_of::<Slot>()));
        let chunks = wanted.min(left / Table::CHUNK_BYTES);
        if chunks == 0 {
            return;
        }
        regions::fetch(chunks);
        let before = |shard: usize| chunks / shards * shard + chunks % shards * shard / shards;
        for (nth, shard) in self.shards.iter().enumerate() {
            shard.0.lock().grow_by(before(nth + 1) - before(nth), &self.census_at(0));
        }
    }

    /// This limit under this name; a key has one state under all limits of it.
    pub(crate) fn scope(&self, name: &Arc<Name>, limit: Limit) -> Result<Arc<Scope>, Error> {
        self.scope_as_of(name, limit, || self.last_seen_us())
    }

    /// The same for one who knows the time, which is asked for only if others must make room.
    pub(crate) fn scope_as_of(
        &self,
        name: &Arc<Name>,
        limit: Limit,
        now_us: impl FnOnce() -> u64,
    ) -> Result<Arc<Scope>, Error> {
        if let Some(scope) = self.scopes.read().find(name, &limit) {
            return Ok(scope);
        }
        let _making = self.making.lock();
        if let Some(scope) = self.find_or_make(name, limit) {
            return Ok(scope);
        }
        self.reclaim(now_us());
        let count = self.scopes.read().count();
        self.find_or_make(name, limit).ok_or(Error::TooManyLimits { count })
    }

    fn find_or_make(&self, name: &Arc<Name>, limit: Limit) -> Option<Arc<Scope>> {
        let mut scopes = self.scopes.write();
        scopes.find(name, &limit).or_else(|| scopes.make(name, limit, &self.identify))
    }

    /// Decides one request of a key that has state; `None` if it has none.
    ///
    /// Apart from [`check_any`](Self::check_any) so that nothing of it need be in memory: what a
    /// call that might be made returns, or is given, has to be.
    #[inline(always)]
    pub(crate) fn check_known<A: Charged>(
        &self,
        scope: &Scope,
        limit: &A,
        place: Place,
        now_us: u64,
        ask: Ask,
    ) -> Option<Checked> {
        let mut shard = self.shard(place).lock();
        let (slot, logs) = shard.slot_mut(place, |slot| self.hash_within(scope, slot))?;
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, ask);
        Some(A::State::change(slot, logs, &self.budget, check))
    }

    /// Decides a request for one unit, with any delay, at the clock's time: what most are.
    ///
    /// The answer is written where the caller wants it, once for each way out.
    #[inline(always)]
    pub(crate) fn check_one<A: Charged>(
        &self,
        scope: &Scope,
        limit: &A,
        key: &[u8],
        clock: &Clock,
    ) -> Decision {
        let place = self.place(scope, key);
        let now_us = clock.now_us();
        let mut shard = self.shard(place).lock();
        let Some((slot, logs)) = shard.slot_mut(place, |slot| self.hash_within(scope, slot)) else {
            drop(shard);
            let checked = self.check_any(scope, limit, key, now_us, Ask::new(Cost::ONE));
            return Decision::of_key(checked, place.fingerprint());
        };
        if let Some(checked) = limit.check_one_in(slot, logs, now_us) {
            drop(shard);
            return Decision::of_key(checked, place.fingerprint());
        }
        let checked = check_slot(limit, slot, logs, &self.budget, now_us);
        drop(shard);
        Decision::of_key(checked, place.fingerprint())
    }

    /// Decides one request. A key whose state is under another limit of the name has it carried over.
    /// A key without state is given one, if there is something to keep and room for it; without room
    /// it shares its name's overflow state.
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
        let census = self.census(now_us);
        let mut shard = self.shard(place).lock();
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, ask);
        let check_any = |reached: Reached<'_, A::State>| match reached {
            Reached::Own(state) => check(state),
            Reached::Other(limit, state) => {
                let Checked { decision, receipt } = limit.check(state, now_us, ask);
                Checked { decision: limit.in_place_of(&scope.limit, decision), receipt }
            }
        };
        if let Some(brought) = shard.bring(place, scope, &census, ask.cost) {
            return shard.change_brought(brought, &self.budget, check_any);
        }
        let mut state = A::State::default();
        let answer = check(&mut state);
        if state == A::State::default() {
            return answer;
        }
        if shard.make_room(1, &census) {
            shard.insert(place, state, &self.budget);
            return answer;
        }
        drop(shard);
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow(scope, now_us, ask.cost, check_any)
    }

    pub(crate) fn usage(&self) -> Usage {
        let keys = self.shards.iter().map(|shard| shard.0.lock().keys()).sum();
        let CeilingCounts { overflowed, coarsened } = self.ceiling_counts();
        Usage { keys, bytes: self.budget.used(), overflowed, coarsened }
    }

    pub(crate) fn ceiling_counts(&self) -> CeilingCounts {
        let overflowed = self.overflowed.load(Ordering::Relaxed);
        CeilingCounts { overflowed, coarsened: self.budget.coarsened() }
    }

    /// Where a key's state is, or would be. Best asked for before the clock is: the two then
    /// overlap, which saves 2 ns.
    #[inline]
    pub(crate) fn place(&self, scope: &Scope, key: &[u8]) -> Place {
        let key = self.identify.identity(key);
        let hash = self.identify.hash(key, scope.salt);
        // OK because the shift leaves 16 bits or fewer. The table takes the others.
        let shard = (hash >> self.shard_shift) as usize;
        Place { identity: key.with_scope(scope.mark), scope: scope.mark.in_slot, hash, shard }
    }

    /// The hash of a slot's key, if it is of this scope; of others one would have to look for theirs.
    fn hash_within(&self, scope: &Scope, slot: &Slot) -> Option<u64> {
        (slot.scope() == scope.index).then(|| slot.salted_hash(&self.identify, scope.salt))
    }

    #[inline]
    fn shard(&self, place: Place) -> &Lock<Shard> {
        &self.shards[place.shard].0
    }

    fn census(&self, now_us: u64) -> Census<'_> {
        // Written seldom, so that those who bring in keys do not meet here.
        if now_us.abs_diff(self.last_seen_us()) >= 1_000_000 {
            self.seen_us.store(now_us, Ordering::Relaxed);
        }
        self.census_at(now_us)
    }

    fn last_seen_us(&self) -> u64 {
        self.seen_us.load(Ordering::Relaxed)
    }

    fn census_at(&self, now_us: u64) -> Census<'_> {
        Census { identify: &self.identify, scopes: &self.scopes, budget: &self.budget, now_us }
    }
}

/// Decides a request for one unit of the key in a slot, by the long way.
// Never: in the caller it would take registers from the short way.
#[inline(never)]
fn check_slot<A: Charged>(
    limit: &A,
    slot: &mut Slot,
    logs: &mut Logs,
    budget: &Budget,
    now_us: u64,
) -> Checked {
    if let Some(refused) = limit.refuse_one_in(slot, now_us) {
        return refused;
    }
    let ask = Ask::new(Cost::ONE);
    let check = |state: &mut A::State| limit.check_within(budget, state, now_us, ask);
    A::State::change(slot, logs, budget, check)
}

/// A limit whose keys a slot can keep.
pub(crate) trait Charged: FastPath<State: Kept, Usual: Usual> {
    /// Decides one request, and charges it if it is allowed, with no more memory than there is.
    #[inline(always)]
    fn check_within(&self, _: &Budget, state: &mut Self::State, now_us: u64, ask: Ask) -> Checked {
        self.check(state, now_us, ask)
    }

    /// Refuses a request for one unit of the key in a slot, if that is simple.
    #[inline(always)]
    fn refuse_one_in(&self, _: &Slot, _now_us: u64) -> Option<Checked> {
        None
    }

    /// Decides a request for one unit of the key in a slot, if that is simple.
    #[inline(always)]
    fn check_one_in(&self, slot: &mut Slot, _: &mut Logs, now_us: u64) -> Option<Checked> {
        slot.try_change(|state| self.check_one(state, now_us))
    }
}

impl Charged for FixedWindow {}
impl Charged for SlidingWindowCounter {}
impl Charged for TokenBucket {}
impl Charged for LeakyBucket {}

impl Charged for SlidingWindowLog {
    #[inline(always)]
    fn check_one_in(&self, slot: &mut Slot, logs: &mut Logs, now_us: u64) -> Option<Checked> {
        if let Some(checked) = slot.try_change(|few| self.check_one(few, now_us)) {
            return Some(checked);
        }
        self.check_one_more(logs.get_mut(slot.state())?, now_us)
    }

    #[inline(always)]
    fn refuse_one_in(&self, slot: &Slot, now_us: u64) -> Option<Checked> {
        self.refuse_one(logs::few(slot.state())?, now_us)
    }

    fn check_within(&self, budget: &Budget, log: &mut Log, now_us: u64, ask: Ask) -> Checked {
        if log.is_full() {
            // First, as on a new clock others may leave.
            self.settle(log, now_us);
            if self.growth_bytes(log, now_us, ask.cost) > 0 {
                let decision = self.peek(log, now_us, ask);
                if !decision.is_allowed() {
                    return Checked { decision, receipt: None };
                }
                logs::reserve(log, self, now_us, ask.cost, budget);
            }
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
mod tests;
