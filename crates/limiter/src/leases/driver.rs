//! Takes units from leases, sends the requests that open, renew and end them, and handles the answers.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ahash::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, HoldId, LeaseAnswer, Limit, UnitRequest,
};
use tollgate_lease::{
    LeaseCall, LeaseCounters, LeaseEffect, LeaseEnd, LeaseFailure, LeaseReceipt, LeaseTerms,
    LeasedDecision, Now, TakeAnswer,
};

use super::asking::{AskingCheck, WaitOutcome};
use super::clock::LeaseClock;
use super::key::{BorrowedKey, KeyParts, LeaseKey};
use super::shard::{LeaseShard, SHARDS};
use super::ticker::{TickTarget, Ticker};
use super::waiting::WaitingCheck;
use crate::answer::{Answer, UnreadAnswer};
use crate::clock::Clock;
use crate::decision::{Decision, DecisionSource};
use crate::error::{Error, StoreError};
use crate::failure::OnFailure;
use crate::joint::Demand;
use crate::names::Name;
use crate::store::{
    Call, Charge, Fallback, KeyLeaseRequest, RemoteStore, SettlePart, SettleRequest, UnreadPolicy,
    fingerprint,
};

/// The leases of a limiter on a store across the network.
#[derive(Debug)]
pub(crate) struct LeaseDriver {
    store: Arc<dyn RemoteStore>,
    /// Notes what the store answers, for the failure policy `local`.
    fallback: Arc<Fallback>,
    /// How long the store has for a request that no check waits for.
    deadline: Duration,
    /// The caller's clock, if the store decides by it.
    callers_clock: Option<Clock>,
    clock: LeaseClock,
    hasher: RandomState,
    /// Allocated when the first check of a leased scope is decided.
    shards: OnceLock<Box<[Mutex<LeaseShard>]>>,
    ticker: Ticker,
    /// For tasks, which must not keep the leases of a dropped limiter.
    this: Weak<LeaseDriver>,
}

/// A check of a leased scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasedCheck<'c> {
    pub(crate) name: &'c Arc<Name>,
    pub(crate) key: &'c [u8],
    pub(crate) terms: &'c LeaseTerms,
    pub(crate) cost: Cost,
}

/// The answer of a lease to a check.
#[derive(Debug)]
pub(crate) enum Taken {
    Decided(Decision),
    /// The decision comes with the answer to a request.
    Waits(oneshot::Receiver<WaitOutcome>),
    /// Nothing is decided: check the store, as without leases.
    Store,
}

impl LeaseDriver {
    pub(crate) fn new(
        store: &Arc<dyn RemoteStore>,
        fallback: &Arc<Fallback>,
        deadline: Duration,
        callers_clock: Option<&Clock>,
    ) -> Arc<LeaseDriver> {
        Arc::new_cyclic(|this| LeaseDriver {
            store: Arc::clone(store),
            fallback: Arc::clone(fallback),
            deadline,
            callers_clock: callers_clock.cloned(),
            clock: LeaseClock::new(callers_clock),
            hasher: RandomState::new(),
            shards: OnceLock::new(),
            ticker: Ticker::default(),
            this: Weak::clone(this),
        })
    }

    /// Decides a check with the lease of its key, if it can. `call` returns the terms of the check, for the request to the
    /// store that decides it.
    #[inline]
    pub(crate) fn take(
        &self,
        check: LeasedCheck<'_>,
        call: impl FnOnce() -> (Call, UnreadPolicy),
    ) -> Taken {
        let (key, now) = (self.key_of(check.name, check.key), self.now());
        let mut shard = self.shard(key.hash).lock();
        match shard.leases.take(now, &key as &dyn KeyParts, check.terms, check.cost) {
            TakeAnswer::Hit(hit) => {
                drop(shard);
                Taken::Decided(self.hit(&key, now, check.terms, hit))
            }
            TakeAnswer::Refuse(decision) => {
                Taken::Decided(Decision::uncharged(decision, DecisionSource::Leased))
            }
            TakeAnswer::Ask(lease_call) => {
                drop(shard);
                let (asking, outcome) = AskingCheck::new(call());
                self.send(lease_call, Some(asking));
                Taken::Waits(outcome)
            }
            TakeAnswer::Wait => {
                let (asking, outcome) = AskingCheck::new(call());
                let waiting = WaitingCheck { terms: *check.terms, cost: check.cost, asking };
                match shard.waiting.add(&key, waiting) {
                    true => Taken::Waits(outcome),
                    false => Taken::Store,
                }
            }
            TakeAnswer::Changed(end) => {
                drop(shard);
                drop(self.settle(end));
                Taken::Store
            }
            TakeAnswer::Fail | TakeAnswer::Strict => Taken::Store,
        }
    }

    /// Gives back what a decision took from a lease, as far as it can. Returns how many units came back.
    pub(crate) fn give_back(&self, name: &Arc<Name>, key: &[u8], receipt: &ChargeReceipt) -> u64 {
        let ChargePlace::Lease { lease, settlement, .. } = receipt.place() else { return 0 };
        let receipt = LeaseReceipt::of(HoldId(lease), settlement, receipt.cost());
        let (key, now) = (self.key_of(name, key), self.now());
        let mut shard = self.shard(key.hash).lock();
        shard.leases.refund(now, &key as &dyn KeyParts, receipt)
    }

    /// Gives back what a decision took that was never read.
    pub(crate) fn give_back_unread(&self, name: &Arc<Name>, key: &[u8], decision: &Decision) {
        if let Some(receipt) = decision.receipt() {
            let receipt = ChargeReceipt::of(receipt.cost(), receipt.place());
            self.give_back(name, key, &receipt);
        }
    }

    /// Returns what all leases did so far.
    pub(crate) fn counters(&self) -> LeaseCounters {
        let mut sum = LeaseCounters::default();
        for shard in self.shards.get().into_iter().flatten() {
            sum += shard.lock().counters();
        }
        sum
    }

    /// Ends all leases. The answer comes when the store has settled them.
    pub(crate) fn end_all(&self) -> Answer<()> {
        let shards = self.shards.get().into_iter().flatten();
        let ends: Vec<_> = shards.flat_map(|shard| shard.lock().leases.end_all()).collect();
        let answers: Vec<_> = ends.into_iter().map(|end| self.settle(end)).collect();
        if answers.is_empty() {
            return Answer::ready(Ok(()));
        }
        Answer::pending(async move {
            let mut outcome = Ok(());
            for answer in answers {
                outcome = outcome.and(answer.await.map(drop));
            }
            outcome
        })
    }

    pub(super) fn now(&self) -> Now {
        Now { monotonic_us: self.clock.steady_us(), wall_us: self.clock.wall_us() }
    }

    pub(super) fn key_of<'k>(&self, name: &'k Arc<Name>, key: &'k [u8]) -> BorrowedKey<'k> {
        BorrowedKey { name, key, hash: self.hasher.hash_one((name.number(), key)) }
    }

    pub(super) fn shard(&self, hash: u64) -> &Mutex<LeaseShard> {
        let shards = self.shards();
        // The table of the shard uses the highest and the lowest bits.
        &shards[(hash >> 32) as usize % SHARDS]
    }

    fn shards(&self) -> &[Mutex<LeaseShard>] {
        self.shards.get_or_init(|| {
            let shard = |number| Mutex::new(LeaseShard::new(&self.hasher, number));
            (0..SHARDS as u64).map(shard).collect()
        })
    }

    /// Returns the decision of a hit.
    pub(super) fn hit(
        &self,
        key: &BorrowedKey<'_>,
        now: Now,
        terms: &LeaseTerms,
        hit: LeasedDecision,
    ) -> Decision {
        if hit.wakes {
            self.wake_ticker();
        }
        let place = ChargePlace::Lease {
            lease: hit.receipt.lease().0,
            settlement: hit.receipt.settlement(),
            // By then the lease was renewed, or it is over.
            until_us: now.wall_us.saturating_add(terms.lease_for().as_us()),
        };
        let receipt = Some(ChargeReceipt::of(hit.receipt.cost(), place));
        let checked = CheckResult { decision: hit.decision, receipt };
        Decision::of_key(checked, fingerprint(key.name, key.key)).leased()
    }

    #[cold]
    fn wake_ticker(&self) {
        if let Some(task) = self.ticker.wake(&self.this) {
            self.store.spawn(task);
        }
    }

    /// Sends a request about a lease. Its answer is handled even if no caller waits for it any more.
    pub(super) fn send(&self, lease_call: LeaseCall<LeaseKey>, asking: Option<AskingCheck>) {
        let Some(driver) = self.this.upgrade() else { return };
        let LeaseCall { key, terms, sequence, request } = lease_call;
        let call = asking.as_ref().map_or_else(|| self.own_call(), AskingCheck::call);
        let charge = charge(&key, terms.limit(), request.need);
        let late = self.shard(key.hash).lock().waiting.expect(&key, Instant::now() + call.deadline);
        late.into_iter().for_each(|check| check.asking.answer(WaitOutcome::Store));
        let answer =
            self.store.lease(KeyLeaseRequest { charge: charge.clone(), lease: request, call });
        let in_flight = SentLeaseCall { driver, key, charge, sequence, asking, is_answered: false };
        self.store.spawn(Box::pin(async move { in_flight.answered(answer.await) }));
        self.wake_ticker();
    }

    /// Sends the settlement of a lease that ends.
    pub(super) fn settle(
        &self,
        end: LeaseEnd<LeaseKey>,
    ) -> Answer<Vec<tollgate_core::SettleAnswer>> {
        let charge = charge(&end.key, end.terms.limit(), None);
        let part = SettlePart { charge, hold: end.hold, used: end.used };
        let wake = Arc::new(|| ());
        self.store.settle(SettleRequest { parts: vec![part], call: self.own_call(), wake })
    }

    fn own_call(&self) -> Call {
        Call {
            at_us: self.callers_clock.as_ref().map(Clock::now_us),
            deadline: self.deadline,
            on_failure: OnFailure::Closed,
        }
    }

    /// Handles the answer to a request: updates the lease, answers the check that the request decided, and decides the checks
    /// that wait.
    fn answered(
        self: &Arc<Self>,
        key: &LeaseKey,
        charge: &Charge,
        sequence: u64,
        answer: Result<LeaseAnswer, Error>,
        asking: Option<AskingCheck>,
    ) {
        if let Ok(LeaseAnswer { decision, .. }) = &answer {
            self.fallback.note_answer(charge, decision, &self.own_call());
        }
        let now = self.now();
        let mut shard = self.shard(key.hash).lock();
        let outcome = answer.as_ref().map_err(|_| LeaseFailure);
        let effects = shard.leases.replied(now, key as &dyn KeyParts, sequence, outcome);
        if let Some(end) = effects.end {
            drop(self.settle(end));
        }
        if let Some(again) = effects.ask_again {
            drop(shard);
            return self.send(again, asking);
        }
        let (mut outcomes, mut calls) = (Vec::new(), Vec::new());
        for check in shard.waiting.take(key) {
            if check.asking.until() <= Instant::now() {
                outcomes.push((check.asking, WaitOutcome::Store));
                continue;
            }
            match shard.leases.take_again(now, key as &dyn KeyParts, &check.terms, check.cost) {
                TakeAnswer::Hit(hit) => {
                    let decision = self.hit(&key.parts(), now, &check.terms, hit);
                    let decision = self.unread(key, decision);
                    outcomes.push((check.asking, WaitOutcome::Decided(decision)));
                }
                TakeAnswer::Refuse(decision) => {
                    let decision = Decision::uncharged(decision, DecisionSource::Leased);
                    let decision = UnreadAnswer::new(decision, drop);
                    outcomes.push((check.asking, WaitOutcome::Decided(decision)));
                }
                TakeAnswer::Ask(call) => calls.push((call, check.asking)),
                TakeAnswer::Wait => shard.waiting.add_before_request(key, check),
                TakeAnswer::Changed(end) => {
                    drop(self.settle(end));
                    outcomes.push((check.asking, WaitOutcome::Store));
                }
                TakeAnswer::Fail | TakeAnswer::Strict => {
                    outcomes.push((check.asking, WaitOutcome::Store));
                }
            }
        }
        drop(shard);
        if let Some(asking) = asking {
            asking.answer_from(&self.store, charge, answer);
        }
        outcomes.into_iter().for_each(|(check, outcome)| check.answer(outcome));
        calls.into_iter().for_each(|(call, asking)| self.send(call, Some(asking)));
        self.wake_ticker();
    }

    /// Returns a decision that gives its units back to the lease if it is never read.
    fn unread(self: &Arc<Self>, key: &LeaseKey, decision: Decision) -> UnreadAnswer<Decision> {
        let (driver, key) = (Weak::clone(&self.this), key.clone());
        UnreadAnswer::new(decision, move |decision| {
            if let Some(driver) = driver.upgrade() {
                driver.give_back_unread(&key.name, &key.key, &decision);
            }
        })
    }
}

impl TickTarget for LeaseDriver {
    fn tick(self: Arc<Self>) -> Option<Duration> {
        let mut next_us: Option<u64> = None;
        for shard in self.shards.get().into_iter().flatten() {
            let (effects, due_us) = {
                let mut shard = shard.lock();
                (shard.leases.tick(self.now()), shard.leases.next_due())
            };
            for effect in effects {
                match effect {
                    LeaseEffect::Renew(call) => self.send(call, None),
                    LeaseEffect::End(end) => drop(self.settle(end)),
                }
            }
            next_us = next_us.into_iter().chain(due_us).min();
        }
        let now_us = self.now().monotonic_us;
        next_us.map(|us| Duration::from_micros(us.saturating_sub(now_us)))
    }
}

/// Gives all units back: the process has no limiter for them any more.
impl Drop for LeaseDriver {
    fn drop(&mut self) {
        drop(self.end_all());
    }
}

/// A request that was sent, and whose end the leases must learn, whatever happens to it.
struct SentLeaseCall {
    driver: Arc<LeaseDriver>,
    key: LeaseKey,
    charge: Charge,
    sequence: u64,
    asking: Option<AskingCheck>,
    is_answered: bool,
}

impl SentLeaseCall {
    fn answered(mut self, answer: Result<LeaseAnswer, Error>) {
        self.handle(answer);
    }

    fn handle(&mut self, answer: Result<LeaseAnswer, Error>) {
        self.is_answered = true;
        let asking = self.asking.take();
        self.driver.answered(&self.key, &self.charge, self.sequence, answer, asking);
    }
}

/// A runtime that ends drops its tasks. The request is then one that failed.
impl Drop for SentLeaseCall {
    fn drop(&mut self) {
        if !self.is_answered {
            self.handle(Err(StoreError::Gone.into()));
        }
    }
}

/// Returns the charge of a key. Its cost is that of the check that waits, or 1.
fn charge(key: &LeaseKey, limit: &Limit, need: Option<Cost>) -> Charge {
    let request = UnitRequest::new(need.unwrap_or(Cost::ONE));
    Charge::new(Arc::clone(&key.name), &key.key, *limit, Demand::of(request))
}
