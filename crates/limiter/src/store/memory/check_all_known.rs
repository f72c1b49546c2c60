//! The fast path of a check of several limits: every key has a state of its own, as in most checks.
//!
//! It visits each slot twice, once to see whether any limit refuses and once to charge, and takes no memory
//! from the heap unless there are many limits. [`MemoryStore::check_all`] tries this path first, and handles all
//! other cases.

use tollgate_core::{
    self as core, Algorithm, CombinedDecision, Intent, KeyClock, Limit, Role, UnitRequest,
};

use super::budget::StoreBudget;
use super::lock::LockGuard;
use super::part::{JointPart, ShortVec};
use super::shard::Shard;
use super::table::SlotPosition;
use super::{KeyPlace, MemoryStore, SlotAlgorithm};
use crate::decision::{Decision, DecisionSource};
use crate::receipt::Fingerprint;

/// The most parts that are compared with one another.
const MAX_PARTS: usize = 16;

impl MemoryStore {
    /// Does the same as [`check_all`](Self::check_all), if the fast path can; otherwise `None`, and nothing has
    /// changed.
    pub(crate) fn check_all_known(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> Option<CombinedDecision> {
        debug_assert!(each.is_empty(), "answers of another check");
        if parts.len() > MAX_PARTS
            || parts.iter().any(|part| part.demand.request.max_wait_us.is_some())
        {
            return None;
        }
        // Pushed one by one to their final place in memory: `collect` would move them.
        let (mut places, mut shards) = (ShortVec::new(), ShortVec::new());
        if !self.locate_distinct(parts, &mut places, &mut shards) {
            return None;
        }
        // Each shard once and in order, so that no two callers can wait for each other.
        shards.sort_unstable();
        shards.dedup();
        let mut locks: ShortVec<LockGuard<'_, Shard>> = ShortVec::new();
        for shard in &shards {
            locks.push(self.shards[*shard].0.lock());
        }
        // All slots are found before any is read: the processor then fetches several at the same time.
        let mut known: ShortVec<(usize, SlotPosition)> = ShortVec::new();
        for place in &places {
            let lock = shards.iter().position(|shard| *shard == place.shard)?;
            known.push((lock, locks[lock].find(*place)?));
        }
        let mut is_refused = false;
        for (part, &(lock, at)) in parts.iter().zip(&known) {
            let peeked = locks[lock].peek_known(at, &part.scope.limit, now_us, part.request());
            let Some(decision) = peeked else {
                each.clear();
                return None;
            };
            is_refused |= part.demand.role == Role::Enforced && !decision.is_allowed();
            each.push(Decision::uncharged(decision, DecisionSource::Store));
        }
        if !is_refused {
            let found = parts.iter().zip(&places).zip(&known);
            for (((part, place), &(lock, at)), decision) in found.zip(&mut *each) {
                if part.demand.intent == Intent::Charge && decision.is_allowed() {
                    let limit = &part.scope.limit;
                    let (shard, fingerprint) = (&mut locks[lock], place.fingerprint());
                    *decision =
                        shard.charge(at, fingerprint, limit, &self.budget, now_us, part.request());
                }
            }
        }
        Some(CombinedDecision::of(parts.iter().zip(&*each).map(decision_part)))
    }

    /// Computes the places of the parts, and their shards; `false` if two parts have the same name and key.
    #[inline]
    fn locate_distinct(
        &self,
        parts: &[JointPart<'_>],
        places: &mut ShortVec<KeyPlace>,
        shards: &mut ShortVec<usize>,
    ) -> bool {
        for part in parts {
            let place = self.place(part.scope, part.key);
            let is_same = |(other, at): (&JointPart<'_>, &KeyPlace)| {
                other.scope.family() == part.scope.family()
                    && at.identity.key() == place.identity.key()
            };
            if parts.iter().zip(&*places).any(is_same) {
                return false;
            }
            shards.push(place.shard);
            places.push(place);
        }
        true
    }
}

fn decision_part((part, decision): (&JointPart<'_>, &Decision)) -> core::DecisionPart {
    let requests_remaining = decision.remaining() / part.request().cost.units();
    core::DecisionPart { role: part.demand.role, decision: *decision.decided(), requests_remaining }
}

impl JointPart<'_> {
    fn request(&self) -> UnitRequest {
        self.demand.request
    }
}

impl Shard {
    /// Decides without charging; `None` if the clock has stepped back, and for a limit whose units are only held.
    #[inline]
    fn peek_known(
        &self,
        at: SlotPosition,
        limit: &Limit,
        now_us: u64,
        request: UnitRequest,
    ) -> Option<core::LimitDecision> {
        if let Limit::Concurrency(_) = limit {
            return None;
        }
        let (slot, logs) = self.slot(at);
        let is_later = now_us >= slot.charged_us(limit, logs);
        is_later.then(|| slot.peek(limit, logs, now_us, request))
    }

    /// Charges a request that a peek has allowed.
    #[inline]
    fn charge(
        &mut self,
        at: SlotPosition,
        fingerprint: Fingerprint,
        limit: &Limit,
        budget: &StoreBudget,
        now_us: u64,
        request: UnitRequest,
    ) -> Decision {
        match limit {
            Limit::FixedWindow(limit) => {
                self.charge_by(at, fingerprint, limit, budget, now_us, request)
            }
            Limit::SlidingWindowLog(limit) => {
                self.charge_by(at, fingerprint, limit, budget, now_us, request)
            }
            Limit::SlidingWindowCounter(limit) => {
                self.charge_by(at, fingerprint, limit, budget, now_us, request)
            }
            Limit::TokenBucket(limit) => {
                self.charge_by(at, fingerprint, limit, budget, now_us, request)
            }
            Limit::LeakyBucket(limit) => {
                self.charge_by(at, fingerprint, limit, budget, now_us, request)
            }
            // Not reached: the peek has returned `None`. A check of this limit is denied.
            Limit::Concurrency(limit) => self.change(at, budget, |clock: &mut KeyClock| {
                Decision::of_key(limit.check(clock, now_us, request), fingerprint)
            }),
        }
    }

    #[inline]
    fn charge_by<A: SlotAlgorithm>(
        &mut self,
        at: SlotPosition,
        fingerprint: Fingerprint,
        limit: &A,
        budget: &StoreBudget,
        now_us: u64,
        request: UnitRequest,
    ) -> Decision {
        // Made inside this closure, so that the decision is not copied: a copy would wait until its words are
        // written.
        let check = |state: &mut A::State| {
            Decision::of_key(limit.check_within(budget, state, now_us, request), fingerprint)
        };
        self.change(at, budget, check)
    }
}
