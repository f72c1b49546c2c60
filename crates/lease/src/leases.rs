//! The leases of many keys, in bounded memory.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};

use tollgate_core::{Cost, HoldReference, HoldUse, LeaseAnswer};

use crate::counters::LeaseCounters;
use crate::due_times::DueTimes;
use crate::hot_keys::{HotKey, HotKeys};
use crate::lease::{AfterReply, Attention, Lease, SequencedRequest, Shared, TakeStep, Turn};
use crate::messages::{
    LeaseCall, LeaseEffect, LeaseEnd, LeaseFailure, LeaseReceipt, LeasedDecision, ReplyEffects,
    TakeAnswer, TakeOneOfSeveral,
};
use crate::random::RandomNumbers;
use crate::recent_demand::RecentDemand;
use crate::terms::LeaseTerms;
use crate::time::Now;

/// How much a table of leases can grow. The memory is bounded by it and by the size of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// The most keys with leases. Further keys are checked by the store until one of these is idle.
    pub leases: u32,
    /// The keys without leases whose checks are counted, to find the hot ones.
    pub counted_keys: u32,
}

impl Default for TableSize {
    fn default() -> TableSize {
        TableSize { leases: 1_024, counted_keys: 4_096 }
    }
}

/// The leases of one process, or of one shard of its keys.
///
/// A key is whatever identifies the state on the store: the scope and the key in it. The driver uses the same
/// [`LeaseTerms`] for a key as long as its limit does not change. A check on other terms ends the lease of its key, and
/// is not leased.
#[derive(Debug)]
pub struct Leases<K, S = RandomState> {
    slots_by_key: HashMap<K, u32, S>,
    slots: Vec<Option<LeaseSlot<K>>>,
    free_slots: Vec<u32>,
    due: DueTimes,
    hot_keys: HotKeys,
    shared: Shared,
    max_leases: usize,
}

#[derive(Debug)]
struct LeaseSlot<K> {
    key: K,
    lease: Lease,
    /// The time under which it is among the due ones.
    due_us: u64,
}

impl<K: Clone + Eq + Hash> Leases<K> {
    /// Makes a table without leases. The seed must differ between processes, and between the tables of a process: the
    /// ids of leases come from it.
    pub fn new(size: TableSize, seed: u64) -> Leases<K> {
        Leases::with_hasher(size, seed, RandomState::new())
    }
}

impl<K: Clone + Eq + Hash, S: BuildHasher> Leases<K, S> {
    /// Makes a table without leases that hashes keys in this way. Clients choose keys, so the hash must not let them
    /// choose keys that collide.
    pub fn with_hasher(size: TableSize, seed: u64, hasher: S) -> Leases<K, S> {
        Leases {
            slots_by_key: HashMap::with_hasher(hasher),
            slots: Vec::new(),
            free_slots: Vec::new(),
            due: DueTimes::default(),
            hot_keys: HotKeys::new(size.counted_keys as usize),
            shared: Shared {
                counters: LeaseCounters::default(),
                numbers: RandomNumbers::new(seed),
                sequence: 0,
            },
            max_leases: size.leases as usize,
        }
    }

    /// Decides a check from the lease of its key, or says what to do with it. A hit takes one lookup, and allocates
    /// nothing unless it makes a renewal due earlier.
    #[inline]
    pub fn take<Q>(&mut self, now: Now, key: &Q, terms: &LeaseTerms, cost: Cost) -> TakeAnswer<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        self.take_in_turn(now, key, terms, cost, Turn::First)
    }

    /// Decides a check that has waited for a request to be answered. It waits again only if the store gave all that the
    /// request wanted, and more is needed: then the next request is for the units of all checks that wait.
    pub fn take_again<Q>(
        &mut self,
        now: Now,
        key: &Q,
        terms: &LeaseTerms,
        cost: Cost,
    ) -> TakeAnswer<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        match self.slots_by_key.get(key) {
            Some(&slot) => self.take_from(slot, now, terms, cost, Turn::AfterReply),
            None => TakeAnswer::Strict,
        }
    }

    /// Decides one limit of a check of several from the lease of its key. If it cannot, the store decides it together with
    /// the other limits.
    pub fn take_one_of_several<Q>(
        &mut self,
        now: Now,
        key: &Q,
        terms: &LeaseTerms,
        cost: Cost,
    ) -> TakeOneOfSeveral<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        match self.take_in_turn(now, key, terms, cost, Turn::OneOfSeveral) {
            TakeAnswer::Hit(hit) => TakeOneOfSeveral::Hit(hit),
            TakeAnswer::Refuse(decision) => TakeOneOfSeveral::Refuse(decision),
            TakeAnswer::Ask(call) => TakeOneOfSeveral::Store(Some(call)),
            TakeAnswer::Changed(end) => TakeOneOfSeveral::Changed(end),
            TakeAnswer::Wait | TakeAnswer::Fail | TakeAnswer::Strict => {
                TakeOneOfSeveral::Store(None)
            }
        }
    }

    #[inline]
    fn take_in_turn<Q>(
        &mut self,
        now: Now,
        key: &Q,
        terms: &LeaseTerms,
        cost: Cost,
        turn: Turn,
    ) -> TakeAnswer<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        match self.slots_by_key.get(key) {
            Some(&slot) => self.take_from(slot, now, terms, cost, turn),
            None => self.count(now, key, terms, cost, turn),
        }
    }

    #[inline]
    fn take_from(
        &mut self,
        slot: u32,
        now: Now,
        terms: &LeaseTerms,
        cost: Cost,
        turn: Turn,
    ) -> TakeAnswer<K> {
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else {
            return TakeAnswer::Strict;
        };
        if entry.lease.terms() != terms {
            return match self.end_changed(slot) {
                Some(end) => TakeAnswer::Changed(end),
                None => TakeAnswer::Strict,
            };
        }
        if cost.units() > terms.max_unused() {
            return TakeAnswer::Strict;
        }
        match entry.lease.take(now, cost, turn, &mut self.shared) {
            TakeStep::Hit { decision, receipt, renewal_us } => {
                let wakes = renewal_us.is_some_and(|due_us| self.schedule_by(slot, due_us));
                TakeAnswer::Hit(LeasedDecision { decision, receipt, wakes })
            }
            TakeStep::Ask(numbered) => {
                let call = call(entry, numbered);
                self.schedule(slot, now);
                TakeAnswer::Ask(call)
            }
            TakeStep::Wait => TakeAnswer::Wait,
            TakeStep::Refuse(decision) => TakeAnswer::Refuse(decision),
            TakeStep::Fail => TakeAnswer::Fail,
        }
    }

    /// Ends a lease, because the limit of its key has changed.
    #[cold]
    fn end_changed(&mut self, slot: u32) -> Option<LeaseEnd<K>> {
        let entry = self.slots.get_mut(slot as usize)?.as_mut()?;
        let end = entry.lease.end(&mut self.shared).map(|ended| end(entry, ended));
        self.remove(slot);
        end
    }

    /// Counts a check of a key without a lease. A hot key gets one.
    #[cold]
    fn count<Q>(
        &mut self,
        now: Now,
        key: &Q,
        terms: &LeaseTerms,
        cost: Cost,
        turn: Turn,
    ) -> TakeAnswer<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        if cost.units() > terms.max_unused() {
            return TakeAnswer::Strict;
        }
        let hash = self.slots_by_key.hasher().hash_one(key);
        let lease_us = terms.lease_for().as_us();
        let hot = self.hot_keys.count(hash, now.monotonic_us, cost.units(), lease_us);
        let Some(HotKey { since_us, units }) = hot else { return TakeAnswer::Strict };
        if self.slots_by_key.len() >= self.max_leases {
            return TakeAnswer::Strict;
        }
        // The check that follows counts its own units.
        let demand = RecentDemand::since(since_us, units.saturating_sub(cost.units()));
        let slot = self.insert(key.to_owned(), Lease::new(now, *terms, demand));
        self.take_from(slot, now, terms, cost, turn)
    }

    /// Takes the answer to a [`LeaseCall`] into account: of the store, or that it failed. Answers to other requests than
    /// the latest one for the key change nothing.
    ///
    /// Unless the check is to be asked again, the driver then answers the check of the request with the decision in the
    /// answer, and calls [`take_again`](Self::take_again) for each check that waits.
    pub fn replied<Q>(
        &mut self,
        now: Now,
        key: &Q,
        sequence: u64,
        outcome: Result<&LeaseAnswer, LeaseFailure>,
    ) -> ReplyEffects<K>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let Some(&slot) = self.slots_by_key.get(key) else { return ReplyEffects::NONE };
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else {
            return ReplyEffects::NONE;
        };
        let effects = match entry.lease.replied(now, sequence, outcome, &mut self.shared) {
            AfterReply::Ignored => return ReplyEffects::NONE,
            AfterReply::Done => ReplyEffects::NONE,
            AfterReply::AskAgain(ended, numbered) => ReplyEffects {
                end: Some(end(entry, ended)),
                ask_again: Some(call(entry, numbered)),
            },
        };
        self.schedule(slot, now);
        effects
    }

    /// Gives the units of a hit back, because another limit refused the request, or because the caller refunds it.
    /// Returns how many units came back: none, once a settlement was sent that may have them, or the lease is over.
    pub fn refund<Q>(&mut self, now: Now, key: &Q, receipt: LeaseReceipt) -> u64
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ToOwned<Owned = K> + ?Sized,
    {
        let Some(&slot) = self.slots_by_key.get(key) else { return 0 };
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else { return 0 };
        entry.lease.refund(now, &receipt, &mut self.shared)
    }

    /// Returns when [`tick`](Self::tick) is to be called, on the monotonic clock. It can become earlier by a hit that
    /// [`wakes`](LeasedDecision::wakes), by [`TakeAnswer::Ask`] and by [`replied`](Self::replied).
    pub fn next_due(&self) -> Option<u64> {
        self.due.first_us()
    }

    /// Renews the leases that are due, and ends the idle ones.
    pub fn tick(&mut self, now: Now) -> Vec<LeaseEffect<K>> {
        let mut effects = Vec::new();
        while let Some(slot) = self.due.take_due(now.monotonic_us) {
            self.attend(slot, now, &mut effects);
        }
        effects
    }

    fn attend(&mut self, slot: u32, now: Now, effects: &mut Vec<LeaseEffect<K>>) {
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else { return };
        match entry.lease.attend(now, &mut self.shared) {
            Attention::Nothing => {}
            Attention::Renew(numbered) => effects.push(LeaseEffect::Renew(call(entry, numbered))),
            Attention::Shrink(ended, numbered) => {
                effects.push(LeaseEffect::End(end(entry, ended)));
                effects.push(LeaseEffect::Renew(call(entry, numbered)));
            }
            Attention::Leave(ended) => {
                effects.extend(ended.map(|ended| LeaseEffect::End(end(entry, ended))));
                self.remove(slot);
                return;
            }
        }
        self.schedule(slot, now);
    }

    /// Ends the leases of the keys that `is_ended` selects, because their limit has changed. The settlements are to be
    /// sent.
    pub fn end_where(&mut self, mut is_ended: impl FnMut(&K) -> bool) -> Vec<LeaseEnd<K>> {
        let mut ends = Vec::new();
        for slot in 0..self.slots.len() {
            let Some(Some(entry)) = self.slots.get_mut(slot) else { continue };
            if !is_ended(&entry.key) {
                continue;
            }
            ends.extend(entry.lease.end(&mut self.shared).map(|ended| end(entry, ended)));
            // OK because there are at most as many slots as a u32 says.
            self.remove(slot as u32);
        }
        ends
    }

    /// Ends all leases, because the process shuts down. The settlements are to be sent.
    pub fn end_all(&mut self) -> Vec<LeaseEnd<K>> {
        self.end_where(|_| true)
    }

    /// Returns the counters of this table.
    pub fn counters(&self) -> LeaseCounters {
        let open = self.slots.iter().flatten().filter(|entry| entry.lease.is_open());
        LeaseCounters { held: open.count() as u64, ..self.shared.counters }
    }

    /// How many keys have a place in the table.
    pub fn len(&self) -> usize {
        self.slots_by_key.len()
    }

    /// Whether no key has a place in the table.
    pub fn is_empty(&self) -> bool {
        self.slots_by_key.is_empty()
    }

    fn insert(&mut self, key: K, lease: Lease) -> u32 {
        let due_us = lease.due_us();
        let entry = LeaseSlot { key: key.clone(), lease, due_us };
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                // OK because the number of leases is given as a u32.
                (self.slots.len() - 1) as u32
            }
        };
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(entry);
        }
        self.slots_by_key.insert(key, slot);
        self.due.insert(due_us, slot);
        slot
    }

    fn remove(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.slots_by_key.remove(&entry.key);
        self.due.remove(entry.due_us, slot);
        self.free_slots.push(slot);
    }

    /// Brings the due time of a lease up to date, after something has changed.
    fn schedule(&mut self, slot: u32, now: Now) {
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else { return };
        self.due.remove(entry.due_us, slot);
        // Later than now, so that a call of `tick` attends to each lease once.
        entry.due_us = entry.lease.due_us().max(now.monotonic_us.saturating_add(1));
        self.due.insert(entry.due_us, slot);
    }

    /// Makes a lease due at `due_us` at the latest. Returns whether the first lease is due earlier now.
    #[cold]
    fn schedule_by(&mut self, slot: u32, due_us: u64) -> bool {
        let first_us = self.due.first_us();
        let Some(Some(entry)) = self.slots.get_mut(slot as usize) else { return false };
        if entry.due_us <= due_us {
            return false;
        }
        self.due.remove(entry.due_us, slot);
        entry.due_us = due_us;
        self.due.insert(due_us, slot);
        first_us.is_none_or(|first_us| due_us < first_us)
    }
}

fn call<K: Clone>(entry: &LeaseSlot<K>, numbered: SequencedRequest) -> LeaseCall<K> {
    LeaseCall {
        key: entry.key.clone(),
        terms: *entry.lease.terms(),
        sequence: numbered.sequence,
        request: numbered.request,
    }
}

fn end<K: Clone>(entry: &LeaseSlot<K>, (hold, used): (HoldReference, HoldUse)) -> LeaseEnd<K> {
    LeaseEnd { key: entry.key.clone(), terms: *entry.lease.terms(), hold, used }
}
