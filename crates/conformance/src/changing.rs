//! Decisions under limits that change at random are the algorithms' own, field by field.
//!
//! A name has three limits, and every request uses one of them. The model of a key is its state, and the limit that
//! the state is under. A store may have forgotten a key with nothing spent. A limit with a longer window can show
//! that, so the test follows every version that a key can be.

use std::mem;
use std::ops::{Deref, DerefMut};

use proptest::prelude::*;
use tollgate_core::{
    CarryOver, CombinedDecision, Cost, Entry, Intent, Limit, LimitCheck, LimitDecision,
    MAX_STEP_BACK_US, Role, UnitRequest, check_all,
};
use tollgate_limiter::{Check, Limiter, ManualClock, Receipt, Scope};

use crate::agreement::{Manner, RandomPart};
use crate::store::{Make, block_on, cases, open};
use crate::together::{expected_summary, summary};
use crate::trace::{Step, Walk};
use crate::{any, keys, trace};

/// The number of scopes. The last one has its own name.
const SCOPES: usize = 4;

/// One key of one name, in every version that it can be.
struct ChangingKey {
    versions: Vec<Version>,
}

/// A key, with the limit that decided last.
#[derive(Clone)]
struct Version {
    walk: Walk,
    /// The old limit that the state is still under, if any. It decided instead of the requested limit, with that
    /// limit's size.
    stays_under: Option<Limit>,
}

impl Deref for Version {
    type Target = Walk;

    fn deref(&self) -> &Walk {
        &self.walk
    }
}

impl DerefMut for Version {
    fn deref_mut(&mut self) -> &mut Walk {
        &mut self.walk
    }
}

impl ChangingKey {
    fn new(limit: Limit) -> ChangingKey {
        ChangingKey { versions: vec![Version { walk: Walk::new(limit), stays_under: None }] }
    }

    /// Adds a forgotten version, if in any version nothing of the key is spent, also after a step back of the clock.
    fn may_be_forgotten(&mut self, now_us: u64) {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let is_whole = |version: &Version| {
            let Walk { limit, state, .. } = &version.walk;
            limit.peek(state, then_us, UnitRequest::new(Cost::ONE)).remaining == limit.size()
        };
        let is_fresh = |walk: &Version| walk.state == walk.limit.fresh();
        if self.versions.iter().any(is_whole) && !self.versions.iter().any(is_fresh) {
            let mut forgotten = self.versions[0].clone();
            forgotten.state = forgotten.limit.fresh();
            self.versions.push(forgotten);
        }
    }

    /// Keeps the versions that give this answer, in the state after it, and asserts that there is one.
    fn answered<T: PartialEq + std::fmt::Debug>(
        &mut self,
        answer: &T,
        decide: impl Fn(&mut Version) -> T,
    ) -> Result<(), TestCaseError> {
        let mut expected = Vec::new();
        let mut versions = Vec::new();
        for mut version in self.versions.drain(..) {
            expected.push(decide(&mut version));
            if expected.last() == Some(answer) {
                versions.push(version);
            }
        }
        prop_assert!(!versions.is_empty(), "{answer:?} is not among {expected:?}");
        self.versions = versions;
        Ok(())
    }
}

/// Carries a key's state over to this limit, for a request of this cost.
fn carry_over(version: &mut Version, limit: Limit, now_us: u64, cost: Cost) {
    let old = version.stays_under.take().unwrap_or(version.limit);
    let walk = &mut version.walk;
    (walk.now_us, walk.limit) = (now_us, limit);
    if old == limit {
        return;
    }
    let state = mem::replace(&mut walk.state, limit.fresh());
    // A key with nothing spent has no state to carry over.
    if state != old.fresh() {
        let carried = limit.carry_over(&old, state, now_us, cost);
        version.stays_under = matches!(carried, CarryOver::Stays { .. }).then_some(old);
        (walk.limit, walk.state) = carried.decides(&limit);
    }
}

#[derive(Clone, Debug)]
enum ChangingRequest {
    Check,
    Peek,
    Refund(prop::sample::Index),
    Reset,
    Together(Vec<(prop::sample::Index, prop::sample::Index, Manner)>),
}

fn request() -> impl Strategy<Value = ChangingRequest> {
    let index = any::<prop::sample::Index>;
    let role = prop_oneof![3 => Just(Role::Enforced), 1 => Just(Role::Shadow)];
    let intent = prop_oneof![3 => Just(Intent::Charge), 1 => Just(Intent::Peek)];
    let others = prop::collection::vec((index(), index(), (role, intent)), 0..4);
    prop_oneof![
        8 => Just(ChangingRequest::Check),
        2 => Just(ChangingRequest::Peek),
        2 => index().prop_map(ChangingRequest::Refund),
        1 => Just(ChangingRequest::Reset),
        4 => others.prop_map(ChangingRequest::Together),
    ]
}

struct ChangingLimiter {
    clock: ManualClock,
    limiter: Limiter,
    scopes: Vec<Scope>,
    keys: Vec<Vec<u8>>,
    /// By name, then by key.
    known: [Vec<ChangingKey>; 2],
    receipts: Vec<(usize, usize, Receipt)>,
    now_us: u64,
}

/// Returns the index of a scope's name.
fn name_of(scope: usize) -> usize {
    usize::from(scope == SCOPES - 1)
}

impl ChangingLimiter {
    fn new(make: Make, limits: &[Limit], keys: Vec<Vec<u8>>) -> ChangingLimiter {
        let (clock, limiter) = open(make);
        let name = |index| ["changing", "other"][name_of(index)];
        let scopes: Vec<Scope> = limits
            .iter()
            .enumerate()
            .map(|(index, limit)| limiter.scope(name(index), *limit).unwrap())
            .collect();
        let known = [0, SCOPES - 1]
            .map(|first| keys.iter().map(|_| ChangingKey::new(*scopes[first].limit())).collect());
        let now_us = trace::START_US;
        ChangingLimiter { clock, limiter, scopes, keys, known, receipts: Vec::new(), now_us }
    }

    /// Moves the clock for this key's step. Returns the cost of the request.
    fn aim(&mut self, (scope, key): (usize, usize), step: &Step) -> Option<Cost> {
        let mut walk = self.known[name_of(scope)][key].versions[0].clone();
        carry_over(&mut walk, *self.scopes[scope].limit(), self.now_us, Cost::ONE);
        let cost = walk.aim(step)?;
        self.now_us = walk.now_us;
        self.clock.set_us(self.now_us);
        Some(cost)
    }

    async fn make(
        &mut self,
        (scope, key): (usize, usize),
        cost: Cost,
        request: &ChangingRequest,
    ) -> Result<(), TestCaseError> {
        let now_us = self.now_us;
        self.known.iter_mut().flatten().for_each(|known| known.may_be_forgotten(now_us));
        match request {
            ChangingRequest::Check => self.check((scope, key), cost).await?,
            ChangingRequest::Peek => {
                let requested = &self.scopes[scope];
                let answer = requested.peek(&self.keys[key]).cost(cost.units()).await.unwrap();
                self.known[name_of(scope)][key].answered(answer.decided(), |walk| {
                    let mut copy = walk.clone();
                    carry_over(&mut copy, *requested.limit(), now_us, cost);
                    let decision = copy.limit.peek(&copy.state, now_us, UnitRequest::new(cost));
                    copy.limit.in_place_of(requested.limit(), decision)
                })?;
            }
            ChangingRequest::Refund(which) if !self.receipts.is_empty() => {
                let index = which.index(self.receipts.len());
                self.refund(scope, index).await?;
            }
            ChangingRequest::Refund(_) => {}
            ChangingRequest::Reset => {
                let requested = &self.scopes[scope];
                requested.reset(&self.keys[key]).await.unwrap();
                self.known[name_of(scope)][key] = ChangingKey::new(*requested.limit());
                self.receipts.retain(|it| (name_of(it.0), it.1) != (name_of(scope), key));
            }
            ChangingRequest::Together(others) => self.together((scope, key), cost, others).await?,
        }
        self.known.iter_mut().flatten().for_each(|known| known.may_be_forgotten(now_us));
        self.list((scope, key)).await
    }

    async fn check(
        &mut self,
        (scope, key): (usize, usize),
        cost: Cost,
    ) -> Result<(), TestCaseError> {
        let (now_us, requested) = (self.now_us, &self.scopes[scope]);
        let answer = requested.check(&self.keys[key]).cost(cost.units()).await.unwrap();
        self.known[name_of(scope)][key].answered(answer.decided(), |walk| {
            carry_over(walk, *requested.limit(), now_us, cost);
            let decision = walk.check(cost).decision;
            walk.limit.in_place_of(requested.limit(), decision)
        })?;
        let is_allowed = answer.is_allowed();
        let receipt = answer.into_receipt();
        prop_assert_eq!(is_allowed, receipt.is_some());
        self.receipts.extend(receipt.map(|receipt| (scope, key, receipt)));
        Ok(())
    }

    /// Refunds under any limit of the name that was charged.
    async fn refund(&mut self, scope: usize, index: usize) -> Result<(), TestCaseError> {
        let (charged, key, receipt) = self.receipts.swap_remove(index);
        let scope = if name_of(scope) == name_of(charged) { scope } else { charged };
        let (cost, place) = (receipt.cost(), receipt.place());
        let charge = || tollgate_core::ChargeReceipt::of(cost, place);
        let (now_us, requested) = (self.now_us, &self.scopes[scope]);
        let back = requested.refund(&self.keys[key], receipt).await.unwrap();
        self.known[name_of(scope)][key].answered(&back, |walk| {
            // Under the limit that the state is under.
            walk.walk.now_us = now_us;
            let limit = walk.stays_under.unwrap_or(walk.limit);
            limit.refund(&mut walk.state, now_us, charge())
        })
    }

    /// Compares the listing of a key. A listing changes nothing.
    async fn list(&mut self, (scope, key): (usize, usize)) -> Result<(), TestCaseError> {
        let (now_us, requested) = (self.now_us, &self.scopes[scope]);
        let listed = requested.entries(&self.keys[key]).await.unwrap();
        self.known[name_of(scope)][key].answered(&listed, |walk| {
            let mut copy = walk.clone();
            carry_over(&mut copy, *requested.limit(), now_us, Cost::ONE);
            // Also for a key that stays under a log: the requested limit is not a log, and lists nothing.
            if !matches!(requested.limit(), Limit::SlidingWindowLog(_)) {
                return Vec::new();
            }
            let entries = copy.limit.entries(&copy.state, now_us);
            entries.map(Iterator::collect::<Vec<Entry>>).unwrap_or_default()
        })
    }

    /// Makes a joint check. The other parts cost 1, 2, and so on, and each name and key is taken once.
    async fn together(
        &mut self,
        first: (usize, usize),
        cost: Cost,
        others: &[(prop::sample::Index, prop::sample::Index, Manner)],
    ) -> Result<(), TestCaseError> {
        let mut parts: Vec<RandomPart> = vec![(first, cost, (Role::Enforced, Intent::Charge))];
        for (index, (scope, key, manner)) in others.iter().enumerate() {
            let (scope, key) = (scope.index(SCOPES), key.index(self.keys.len()));
            let is_new =
                |&((other, of), ..): &RandomPart| (name_of(other), of) != (name_of(scope), key);
            if parts.iter().all(is_new) {
                parts.push(((scope, key), Cost::new(index as u64 + 1).unwrap(), *manner));
            }
        }
        let checks: Vec<Check<'_>> = parts
            .iter()
            .map(|&((scope, key), cost, (role, intent))| {
                let (scope, key) = (&self.scopes[scope], &self.keys[key]);
                let check = match intent {
                    Intent::Charge => scope.check(key),
                    Intent::Peek => scope.peek(key),
                }
                .cost(cost.units());
                if role == Role::Shadow { check.shadow() } else { check }
            })
            .collect();
        let answer = self.limiter.check_all(&checks).await.unwrap();
        drop(checks);
        let combined = summary(&answer);
        let each: Vec<LimitDecision> = answer.each().iter().map(|each| *each.decided()).collect();
        prop_assert_eq!(combined, expected_summary(&self.expected(&parts, &each)?));
        for (&((scope, key), ..), decision) in parts.iter().zip(answer.into_each()) {
            self.receipts.extend(decision.into_receipt().map(|receipt| (scope, key, receipt)));
        }
        Ok(())
    }

    /// Combines the expected parts, keeping the versions of each key that explain the answers.
    fn expected(
        &mut self,
        parts: &[RandomPart],
        each: &[LimitDecision],
    ) -> Result<CombinedDecision, TestCaseError> {
        let now_us = self.now_us;
        let enforced =
            parts.iter().zip(each).filter(|((.., (role, _)), _)| *role == Role::Enforced);
        let is_charged = enforced.into_iter().all(|(_, decision)| decision.is_allowed());
        let mut before = Vec::new();
        for (&((scope, key), cost, (_, intent)), decision) in parts.iter().zip(each) {
            let limit = *self.scopes[scope].limit();
            let known = &mut self.known[name_of(scope)][key];
            if intent == Intent::Peek {
                known.answered(decision, |walk| {
                    let mut copy = walk.clone();
                    carry_over(&mut copy, limit, now_us, cost);
                    let decision = copy.limit.peek(&copy.state, now_us, UnitRequest::new(cost));
                    copy.limit.in_place_of(&limit, decision)
                })?;
                let mut seen = known.versions[0].clone();
                carry_over(&mut seen, limit, now_us, cost);
                before.push(seen);
                continue;
            }
            known.versions.iter_mut().for_each(|walk| carry_over(walk, limit, now_us, cost));
            // A joint check makes room for new keys after it has carried over the known ones.
            known.may_be_forgotten(now_us);
            known.answered(decision, |walk| {
                let decision = decide_alone(&mut walk.clone(), cost, is_charged);
                walk.limit.in_place_of(&limit, decision)
            })?;
            before.push(known.versions[0].clone());
            for walk in &mut known.versions {
                decide_alone(walk, cost, is_charged);
            }
        }
        let mut charges: Vec<LimitCheck<'_>> = parts
            .iter()
            .zip(&mut before)
            .map(|((_, cost, (role, intent)), Version { walk: Walk { limit, state, .. }, .. })| {
                LimitCheck::enforced(limit, state, *cost).with(*role, *intent)
            })
            .collect();
        Ok(check_all(&mut charges, now_us))
    }
}

/// Decides one part of a joint check, which is charged or not.
fn decide_alone(walk: &mut Walk, cost: Cost, is_charged: bool) -> LimitDecision {
    let (limit, now_us) = (walk.limit, walk.now_us);
    limit.restart_clock(&mut walk.state, now_us);
    let peeked = walk.limit.peek(&walk.state, walk.now_us, UnitRequest::new(cost));
    if is_charged && peeked.is_allowed() { walk.check(cost).decision } else { peeked }
}

pub fn every_decision_under_changing_limits_equals_the_algorithms(make: Make) {
    assert_decisions(make, prop::sample::subsequence(keys::awkward(), 1..6));
}

/// With one key all parts of a joint check are in the same place, on every store.
pub fn every_decision_on_one_key_under_changing_limits_equals_the_algorithms(make: Make) {
    assert_decisions(make, prop::sample::subsequence(keys::awkward(), 1));
}

fn assert_decisions(make: Make, keys: impl Strategy<Value = Vec<Vec<u8>>>) {
    let index = any::<prop::sample::Index>;
    let requests = (trace::any(), prop::collection::vec((index(), index(), request()), 40));
    let limit =
        any::limit().prop_filter("40 charges stay below 2^53", |limit| limit.size() <= 1 << 47);
    let limits = prop::collection::vec(limit, SCOPES);
    proptest!(cases(128), |(limits in limits, keys in keys, (steps, requests) in requests)| {
        let mut world = ChangingLimiter::new(make, &limits, keys);
        for (step, (scope, key, request)) in steps.iter().zip(&requests) {
            let at = (scope.index(SCOPES), key.index(world.keys.len()));
            let Some(cost) = world.aim(at, step) else { break };
            block_on(world.make(at, cost, request))?;
        }
    });
}
