//! The memory store: the state of every key in this process, in bounded memory.
//!
//! - `identity`: how a slot identifies its key
//! - `slot`: a key and its state in 44 bytes; `logs`: states that are too large for a slot
//! - `table`: a hash table with open addressing, over nine tenths full, that grows in place; `regions`: the
//!   memory of its slots
//! - `shard`: a table and its logs, behind one lock; `budget`: the bytes that all shards share
//! - `scopes`: the limits, by name and by the index that a slot holds; `reclaim`: frees the indices of
//!   dropped limits
//! - `held`: the keys with holds, which have no slot
//! - `access`: peeks, refunds, resets, and the operations on a hold; `settle_all`: the operations on several holds
//! - `check_all`: a check or a reservation of several limits (`part`); `check_all_known`: the fast path of a check, for
//!   keys that all have state; `locked_shards`: the locks of such a request
//!
//! A check hashes its key, takes one shard's lock and changes one slot. If the slot was last checked under
//! another limit of the same name, its state is carried over to the limit of this check.
//!
//! A key is dead when nothing is spent or held any more, even if the clock steps back by 10 s. Dead keys are removed, a
//! few with each new key. At the byte ceiling no live key is evicted: new keys share the overflow state of their name.

mod access;
mod budget;
mod check_all;
mod check_all_known;
mod held;
mod identity;
mod lock;
mod locked_shards;
mod logs;
mod part;
mod reclaim;
mod regions;
mod scopes;
mod settle_all;
mod shard;
mod slot;
mod table;
mod view;
mod words;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate_core::store::{FastPath, LogFastPath, LogStorage};
use tollgate_core::{
    Algorithm, CheckResult, Cost, FixedWindow, LeakyBucket, Limit, Log, SlidingWindowCounter,
    SlidingWindowLog, TokenBucket, UnitRequest,
};

use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::Error;
use crate::names::Name;
use crate::receipt::Fingerprint;
use budget::StoreBudget;
use identity::{KeyHasher, KeyIdentity};
use lock::Lock;
use logs::Logs;
pub(crate) use part::{JointPart, ShortVec};
pub(crate) use scopes::MemoryScope;
use scopes::Scopes;
pub(crate) use settle_all::HoldPart;
use shard::{Shard, StateAccess};
use slot::{InlineState, Slot, SlotState};
use table::SlotTable;
use view::StoreView;

/// The planned bytes of a shard: few, so that its table grows in microseconds. Shards grow larger without a ceiling,
/// and under a ceiling of more than 2 GiB, where the number of shards is at its maximum.
const SHARD_BYTES: usize = 32 << 10;

/// The number of shards: enough that two callers seldom contend for one, and few enough that an empty store is
/// small.
const SHARDS: RangeInclusive<usize> = 16..=65_536;

/// The number of shards in a store without a ceiling.
const SHARDS_WITHOUT_CEILING: usize = 4_096;

/// Where a key's state is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlace {
    identity: KeyIdentity,
    /// The bits of the scope's index that are not in the identity.
    scope: u32,
    hash: u64,
    shard: usize,
}

impl KeyPlace {
    /// Returns the fingerprint for receipts: the hash of a key and its name, which is computed already. No
    /// two names share hashes.
    #[inline(always)]
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.hash)
    }
}

/// A memory store, with the clock that it decides at.
#[derive(Debug)]
pub(crate) struct MemoryBackend {
    pub(crate) memory: MemoryStore,
    pub(crate) clock: Clock,
}

pub(crate) struct MemoryStore {
    shards: Box<[CacheAligned<Lock<Shard>>]>,
    /// How far a hash is shifted to leave its uppermost bits, which are the shard's index.
    shard_shift: u32,
    identify: KeyHasher,
    /// Boxed, away from the fields that checks of known keys read, because checks of new keys write to its
    /// lock. Lock order: a shard first, then this.
    scopes: Box<RwLock<Scopes>>,
    /// Held while a scope is made.
    making: Mutex<()>,
    /// The time of the last request that did not take the fast path of a known key, accurate to a second.
    seen_us: AtomicU64,
    budget: StoreBudget,
    overflowed: AtomicU64,
}

/// Aligned to a cache line of its own, so that one shard's lock does not slow down its neighbour's. A processor
/// may fetch two neighbouring cache lines at once. They belong to two shards, which are seldom used at the same
/// time.
#[repr(align(64))]
struct CacheAligned<T>(T);

/// A shard fits one line: a check reads all of it.
const _: () = assert!(size_of::<CacheAligned<Lock<Shard>>>() == 64);

/// The keys and bytes that the memory store holds, and how often it had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of keys with state.
    pub keys: usize,
    /// The bytes that are allocated for their state, used or not.
    pub bytes: usize,
    /// The number of checks that were decided on a name's shared overflow state, because the ceiling left no
    /// room.
    pub overflowed: u64,
    /// How often two entries of a sliding window log were merged, because the ceiling left no room: the older
    /// entry's units then count as long as the newer entry's.
    pub coarsened: u64,
}

/// How often a memory store had no room at its ceiling, since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CeilingCounts {
    /// The same as [`Usage::overflowed`].
    pub overflowed: u64,
    /// The same as [`Usage::coarsened`].
    pub coarsened: u64,
}

impl MemoryStore {
    /// Returns a store of at most `max_bytes`; `None` keeps every key.
    pub(crate) fn new(max_bytes: Option<usize>) -> MemoryStore {
        let (shards, shard_bytes) = match max_bytes {
            Some(max_bytes) => {
                let shards = (max_bytes / SHARD_BYTES).clamp(*SHARDS.start(), *SHARDS.end());
                let shards = shards.next_power_of_two();
                (shards, (max_bytes / shards).min(SHARD_BYTES))
            }
            None => (SHARDS_WITHOUT_CEILING, 0),
        };
        let shard = |_| CacheAligned(Lock::new(Shard::default()));
        let fixed_bytes = shards * size_of::<CacheAligned<Lock<Shard>>>();
        MemoryStore {
            shards: (0..shards).map(shard).collect(),
            // OK because the number of shards is a power of two.
            shard_shift: u64::BITS - shards.ilog2(),
            identify: KeyHasher::new(),
            scopes: Box::default(),
            making: Mutex::default(),
            seen_us: AtomicU64::new(0),
            budget: StoreBudget::new(max_bytes, shard_bytes, fixed_bytes),
            overflowed: AtomicU64::new(0),
        }
    }

    /// Allocates the memory for `keys` keys in an empty store, as far as the ceiling allows. Shards that get
    /// more keys than others still grow by a chunk.
    pub(crate) fn make_room_for(&self, keys: usize) {
        let shards = self.shards.len();
        let left = self.budget.left().saturating_sub(shards * Shard::list_bytes(&self.budget));
        let wanted = SlotTable::chunks_of(keys.min(left / size_of::<Slot>()));
        let chunks = wanted.min(left / SlotTable::CHUNK_BYTES);
        if chunks == 0 {
            return;
        }
        regions::fetch(chunks);
        let before = |shard: usize| chunks / shards * shard + chunks % shards * shard / shards;
        for (nth, shard) in self.shards.iter().enumerate() {
            shard.0.lock().grow_by(before(nth + 1) - before(nth), &self.view_at(0));
        }
    }

    /// Returns this limit under this name. A key has one state under all limits of a name.
    pub(crate) fn scope(&self, name: &Arc<Name>, limit: Limit) -> Result<Arc<MemoryScope>, Error> {
        self.scope_as_of(name, limit, || self.last_seen_us())
    }

    /// Does the same for a caller that knows the time. `now_us` is called only if dropped limits must make room.
    pub(crate) fn scope_as_of(
        &self,
        name: &Arc<Name>,
        limit: Limit,
        now_us: impl FnOnce() -> u64,
    ) -> Result<Arc<MemoryScope>, Error> {
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

    fn find_or_make(&self, name: &Arc<Name>, limit: Limit) -> Option<Arc<MemoryScope>> {
        let mut scopes = self.scopes.write();
        scopes.find(name, &limit).or_else(|| scopes.make(name, limit, &self.identify))
    }

    /// Decides one request of a key that has state; `None` if the key has no state.
    ///
    /// Separate from [`check_any`](Self::check_any), so that values stay in registers: with a call to `check_any`
    /// in this function, its arguments and results would have to be in memory.
    #[inline(always)]
    pub(crate) fn check_known<A: SlotAlgorithm>(
        &self,
        scope: &MemoryScope,
        limit: &A,
        place: KeyPlace,
        now_us: u64,
        request: UnitRequest,
    ) -> Option<CheckResult> {
        let mut shard = self.shard(place).lock();
        let (slot, logs) = shard.slot_mut(place, |slot| self.hash_within(scope, slot))?;
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, request);
        Some(A::State::change(slot, logs, &self.budget, check))
    }

    /// Decides a request of one unit that accepts any delay, at the clock's time. Most requests are of this kind.
    ///
    /// The decision is written once on each path, directly to where the caller wants it.
    #[inline(always)]
    pub(crate) fn check_one<A: SlotAlgorithm>(
        &self,
        scope: &MemoryScope,
        limit: &A,
        key: &[u8],
        clock: &Clock,
    ) -> Decision {
        let place = self.place(scope, key);
        let now_us = clock.now_us();
        let mut shard = self.shard(place).lock();
        let Some((slot, logs)) = shard.slot_mut(place, |slot| self.hash_within(scope, slot)) else {
            drop(shard);
            let checked = self.check_any(scope, limit, key, now_us, UnitRequest::new(Cost::ONE));
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

    /// Decides one request. If the key's state is under another limit of the name, the state is first carried over. A
    /// key without state gets one if the request changes the state and there is room for it. Without room, the key
    /// shares its name's overflow state.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_any<A: SlotAlgorithm>(
        &self,
        scope: &MemoryScope,
        limit: &A,
        key: &[u8],
        now_us: u64,
        request: UnitRequest,
    ) -> CheckResult {
        let place = self.place(scope, key);
        let view = self.view(now_us);
        let mut shard = self.shard(place).lock();
        let check = |state: &mut A::State| limit.check_within(&self.budget, state, now_us, request);
        let check_any = |reached: StateAccess<'_, A::State>| match reached {
            StateAccess::Own(state) => check(state),
            StateAccess::Other(limit, state) => {
                let CheckResult { decision, receipt } = limit.check(state, now_us, request);
                CheckResult { decision: limit.in_place_of(&scope.limit, decision), receipt }
            }
            StateAccess::Held(held, view) => held.check(scope, view, request),
        };
        if let Some(held) = shard.held_key_mut(place, scope) {
            let answer = check_any(StateAccess::Held(held, &view));
            shard.release(place, scope, &view);
            return answer;
        }
        if let Some(carried) = shard.carry_over(place, scope, &view, request.cost) {
            return shard.change_found(carried, &self.budget, check_any);
        }
        let mut state = A::State::default();
        let answer = check(&mut state);
        if state == A::State::default() {
            return answer;
        }
        if shard.make_room(1, &view) {
            shard.insert(place, state, &self.budget);
            return answer;
        }
        drop(shard);
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        self.overflow(scope, now_us, request.cost, check_any)
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

    /// Returns where a key's state is, or would be. Best called before the clock is read: the two then
    /// overlap, which saves 2 ns.
    #[inline]
    pub(crate) fn place(&self, scope: &MemoryScope, key: &[u8]) -> KeyPlace {
        let key = self.identify.identity(key);
        let hash = self.identify.hash(key, scope.salt);
        // OK because the shift leaves 16 bits or fewer. The table uses the other bits.
        let shard = (hash >> self.shard_shift) as usize;
        KeyPlace { identity: key.with_scope(scope.mark), scope: scope.mark.in_slot, hash, shard }
    }

    /// Returns the hash of a slot's key; `None` if the slot is in another scope, whose salt would have to be looked
    /// up.
    fn hash_within(&self, scope: &MemoryScope, slot: &Slot) -> Option<u64> {
        (slot.scope() == scope.index).then(|| slot.salted_hash(&self.identify, scope.salt))
    }

    #[inline]
    fn shard(&self, place: KeyPlace) -> &Lock<Shard> {
        &self.shards[place.shard].0
    }

    fn view(&self, now_us: u64) -> StoreView<'_> {
        // Written seldom, so that checks of new keys do not contend for it.
        if now_us.abs_diff(self.last_seen_us()) >= 1_000_000 {
            self.seen_us.store(now_us, Ordering::Relaxed);
        }
        self.view_at(now_us)
    }

    fn last_seen_us(&self) -> u64 {
        self.seen_us.load(Ordering::Relaxed)
    }

    fn view_at(&self, now_us: u64) -> StoreView<'_> {
        StoreView { identify: &self.identify, scopes: &self.scopes, budget: &self.budget, now_us }
    }
}

/// Decides a request of one unit for the key in a slot, on the slow path.
// Never inlined: in the caller it would take registers from the fast path.
#[inline(never)]
fn check_slot<A: SlotAlgorithm>(
    limit: &A,
    slot: &mut Slot,
    logs: &mut Logs,
    budget: &StoreBudget,
    now_us: u64,
) -> CheckResult {
    if let Some(refused) = limit.refuse_one_in(slot, now_us) {
        return refused;
    }
    let request = UnitRequest::new(Cost::ONE);
    let check = |state: &mut A::State| limit.check_within(budget, state, now_us, request);
    A::State::change(slot, logs, budget, check)
}

/// An algorithm whose state a slot can hold.
pub(crate) trait SlotAlgorithm: FastPath<State: SlotState, FastState: InlineState> {
    /// Decides one request, and charges it if it is allowed, without taking more memory than the budget
    /// allows.
    #[inline(always)]
    fn check_within(
        &self,
        _: &StoreBudget,
        state: &mut Self::State,
        now_us: u64,
        request: UnitRequest,
    ) -> CheckResult {
        self.check(state, now_us, request)
    }

    /// Refuses a request of one unit for the key in a slot; `None` unless the fast path can refuse it.
    #[inline(always)]
    fn refuse_one_in(&self, _: &Slot, _now_us: u64) -> Option<CheckResult> {
        None
    }

    /// Decides a request of one unit for the key in a slot; `None` unless the fast path can decide it.
    #[inline(always)]
    fn check_one_in(&self, slot: &mut Slot, _: &mut Logs, now_us: u64) -> Option<CheckResult> {
        slot.try_change(|state| self.check_one(state, now_us))
    }
}

impl SlotAlgorithm for FixedWindow {}
impl SlotAlgorithm for SlidingWindowCounter {}
impl SlotAlgorithm for TokenBucket {}
impl SlotAlgorithm for LeakyBucket {}

impl SlotAlgorithm for SlidingWindowLog {
    #[inline(always)]
    fn check_one_in(&self, slot: &mut Slot, logs: &mut Logs, now_us: u64) -> Option<CheckResult> {
        if let Some(checked) = slot.try_change(|few| self.check_one(few, now_us)) {
            return Some(checked);
        }
        self.check_one_in_log(logs.get_mut(slot.state())?, now_us)
    }

    #[inline(always)]
    fn refuse_one_in(&self, slot: &Slot, now_us: u64) -> Option<CheckResult> {
        self.refuse_one(logs::three_unit_log(slot.state())?, now_us)
    }

    fn check_within(
        &self,
        budget: &StoreBudget,
        log: &mut Log,
        now_us: u64,
        request: UnitRequest,
    ) -> CheckResult {
        if log.is_full() {
            // First, because entries may expire at the new time.
            self.restart_clock(log, now_us);
            if self.growth_bytes(log, now_us, request.cost) > 0 {
                let decision = self.peek(log, now_us, request);
                if !decision.is_allowed() {
                    return CheckResult { decision, receipt: None };
                }
                logs::reserve(log, self, now_us, request.cost, budget);
            }
        }
        self.check(log, now_us, request)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
