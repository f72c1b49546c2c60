//! A store's decisions equal the algorithms' own, field by field, for many keys at once.
//!
//! A store may forget a key that has had nothing spent for over 10 s. On a clock that steps back further than
//! that, a forgotten key answers differently. So the test follows every state that a key can be in, and each
//! answer must be right for one of them.

use proptest::prelude::*;
use tollgate_core::{
    CombinedDecision, Cost, Intent, Limit, LimitCheck, MAX_STEP_BACK_US, Role, State, UnitRequest,
    check_all,
};
use tollgate_limiter::{Check, Limiter, ManualClock, Receipt, Scope};

use crate::store::{Make, START_US, block_on, cases, named, open};
use crate::together::{expected_summary, summary};
use crate::trace::{Step, Walk};
use crate::{any, keys, trace};

/// One key of one scope, in every state that it can be in.
struct Known {
    /// The first version was never forgotten.
    versions: Vec<Walk>,
}

impl Known {
    fn new(limit: Limit, now_us: u64) -> Known {
        let mut walk = Walk::new(limit);
        walk.now_us = now_us;
        Known { versions: vec![walk] }
    }

    /// Adds a forgotten version, if in any version nothing of the key is spent at `now_us`.
    fn may_be_forgotten(&mut self, now_us: u64) {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let is_whole = |Walk { limit, state, .. }: &Walk| {
            limit.peek(state, then_us, UnitRequest::new(Cost::ONE)).remaining == limit.size()
        };
        let fresh = self.versions[0].limit.fresh();
        if self.versions.iter().any(is_whole)
            && self.versions.iter().all(|version| version.state != fresh)
        {
            let mut forgotten = self.versions[0].clone();
            forgotten.state = fresh;
            self.versions.push(forgotten);
        }
    }

    /// Keeps the versions that give this answer, and asserts that there is one.
    fn answered<T: PartialEq + std::fmt::Debug>(
        &mut self,
        answer: &T,
        is_steady: bool,
        decide: impl Fn(&mut Walk) -> T,
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
        prop_assert!(!is_steady || versions.len() == expected.len(), "forgotten: {expected:?}");
        self.versions = versions;
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Request {
    Check,
    Peek,
    Reset,
    /// Joint with others, each of a scope and a key.
    Together(Vec<(prop::sample::Index, prop::sample::Index, Manner)>),
}

fn request() -> impl Strategy<Value = Request> {
    let role = prop_oneof![3 => Just(Role::Enforced), 1 => Just(Role::Shadow)];
    let intent = prop_oneof![3 => Just(Intent::Charge), 1 => Just(Intent::Peek)];
    let others = prop::collection::vec(
        (any::<prop::sample::Index>(), any::<prop::sample::Index>(), (role, intent)),
        0..4,
    );
    prop_oneof![
        6 => Just(Request::Check),
        1 => Just(Request::Peek),
        1 => Just(Request::Reset),
        3 => others.prop_map(Request::Together),
    ]
}

struct World {
    clock: ManualClock,
    limiter: Limiter,
    scopes: Vec<Scope>,
    keys: Vec<Vec<u8>>,
    /// By scope, then by key.
    known: Vec<Vec<Known>>,
    now_us: u64,
    latest_us: u64,
    is_steady: bool,
}

impl World {
    fn new(make: Make, limits: &[Limit], keys: Vec<Vec<u8>>) -> World {
        let (clock, limiter) = open(make);
        let scope = |(index, limit): (usize, &Limit)| {
            named(&limiter, &index.to_string(), &limit.to_string())
        };
        let scopes: Vec<Scope> = limits.iter().enumerate().map(scope).collect();
        let now_us = trace::START_US;
        let known = limits
            .iter()
            .map(|&limit| keys.iter().map(|_| Known::new(limit, now_us)).collect())
            .collect();
        World { clock, limiter, scopes, keys, known, now_us, latest_us: now_us, is_steady: true }
    }

    /// Moves the clock for this key's step. Returns the cost of the request.
    fn aim(&mut self, at: (usize, usize), step: &Step) -> Option<Cost> {
        let walk = &mut self.known[at.0][at.1].versions[0];
        walk.now_us = self.now_us;
        let cost = walk.aim(step)?;
        self.now_us = walk.now_us;
        self.latest_us = self.latest_us.max(self.now_us);
        self.is_steady &= self.now_us + MAX_STEP_BACK_US >= self.latest_us;
        Some(cost)
    }

    async fn make(
        &mut self,
        at: (usize, usize),
        cost: Cost,
        request: &Request,
    ) -> Result<(), TestCaseError> {
        let (now_us, is_steady) = (self.now_us, self.is_steady);
        // Also before the request, because a joint check makes room for its new keys first.
        self.known.iter_mut().flatten().for_each(|known| known.may_be_forgotten(now_us));
        let (scope, key) = (&self.scopes[at.0], &self.keys[at.1]);
        let known = &mut self.known[at.0][at.1];
        match request {
            Request::Check => {
                self.clock.set_us(now_us);
                let check = scope.check(key);
                // A check of one unit at the clock's time may have a fast path.
                let answer = match cost {
                    Cost::ONE => check.await.unwrap(),
                    cost => check.cost(cost.units()).at_us(now_us).await.unwrap(),
                };
                known.answered(answer.decided(), is_steady, |walk| {
                    walk.now_us = now_us;
                    walk.check(cost).decision
                })?;
                prop_assert_eq!(answer.is_allowed(), answer.into_receipt().is_some());
            }
            Request::Peek => {
                let answer = scope.peek(key).cost(cost.units()).at_us(now_us).await.unwrap();
                known.answered(answer.decided(), is_steady, |walk| {
                    walk.limit.peek(&walk.state, now_us, UnitRequest::new(cost))
                })?;
            }
            Request::Reset => {
                scope.reset(key).await.unwrap();
                *known = Known::new(*scope.limit(), now_us);
            }
            Request::Together(others) => self.together(at, cost, others).await?,
        }
        self.known.iter_mut().flatten().for_each(|known| known.may_be_forgotten(now_us));
        Ok(())
    }

    /// Makes a joint check. The other parts cost 1, 2, and so on, and each scope and key is taken once.
    async fn together(
        &mut self,
        first: (usize, usize),
        cost: Cost,
        others: &[(prop::sample::Index, prop::sample::Index, Manner)],
    ) -> Result<(), TestCaseError> {
        let mut parts = vec![(first, cost, (Role::Enforced, Intent::Charge))];
        for (index, (scope, key, manner)) in others.iter().enumerate() {
            let at = (scope.index(self.scopes.len()), key.index(self.keys.len()));
            if parts.iter().all(|(other, ..)| *other != at) {
                parts.push((at, Cost::new(index as u64 + 1).unwrap(), *manner));
            }
        }
        let checks: Vec<Check<'_>> = parts
            .iter()
            .map(|&((scope, key), cost, (role, intent))| {
                let (scope, key) = (&self.scopes[scope], &self.keys[key]);
                let check = match intent {
                    Intent::Charge => scope.check(key),
                    Intent::Peek => scope.peek(key),
                };
                let check = check.cost(cost.units()).at_us(self.now_us);
                if role == Role::Shadow { check.shadow() } else { check }
            })
            .collect();
        let answer = self.limiter.check_all(&checks).await.unwrap();
        drop(checks);
        let each: Vec<_> = answer.each().iter().map(|each| *each.decided()).collect();
        let mut states: Vec<State> = parts
            .iter()
            .map(|((scope, key), ..)| self.known[*scope][*key].versions[0].state.clone())
            .collect();
        // On an unsteady clock the answer for each key decides which version it is.
        if !self.is_steady {
            for (index, &((scope, key), cost, (_, intent))) in parts.iter().enumerate() {
                let charged = answer.is_allowed();
                let (now_us, decided) = (self.now_us, each[index]);
                let known = &mut self.known[scope][key];
                known.answered(&decided, false, |walk| {
                    decide_alone(&mut walk.clone(), now_us, cost, intent, charged)
                })?;
                states[index] = known.versions[0].state.clone();
                known.versions.iter_mut().for_each(|walk| {
                    decide_alone(walk, now_us, cost, intent, charged);
                });
            }
        }
        let expected = expect(&parts, &self.scopes, &mut states, self.now_us);
        prop_assert_eq!(&each, &expected.1);
        prop_assert_eq!(summary(&answer), expected_summary(&expected.0));
        if self.is_steady {
            for (index, &((scope, key), cost, (_, intent))) in parts.iter().enumerate() {
                let (now_us, charged) = (self.now_us, answer.is_allowed());
                self.known[scope][key].answered(&each[index], true, |walk| {
                    decide_alone(walk, now_us, cost, intent, charged)
                })?;
            }
        }
        Ok(())
    }
}

/// Decides one part of a joint check, which is charged or not.
fn decide_alone(
    walk: &mut Walk,
    now_us: u64,
    cost: Cost,
    intent: Intent,
    charged: bool,
) -> tollgate_core::LimitDecision {
    walk.now_us = now_us;
    if intent == Intent::Peek {
        return walk.limit.peek(&walk.state, now_us, UnitRequest::new(cost));
    }
    walk.limit.restart_clock(&mut walk.state, now_us);
    let peeked = walk.limit.peek(&walk.state, now_us, UnitRequest::new(cost));
    if charged && peeked.is_allowed() { walk.check(cost).decision } else { peeked }
}

/// A scope and a key by their numbers, the cost, and how the limit takes part.
pub(crate) type RandomPart = ((usize, usize), Cost, Manner);

/// A limit's role and intent in a joint check.
pub(crate) type Manner = (Role, Intent);

fn expect(
    parts: &[RandomPart],
    scopes: &[Scope],
    states: &mut [State],
    now_us: u64,
) -> (CombinedDecision, Vec<tollgate_core::LimitDecision>) {
    let mut charges: Vec<LimitCheck<'_>> = parts
        .iter()
        .zip(states)
        .map(|(((scope, _), cost, (role, intent)), state)| {
            LimitCheck::enforced(scopes[*scope].limit(), state, *cost).with(*role, *intent)
        })
        .collect();
    let together = check_all(&mut charges, now_us);
    (together, charges.iter().map(|charge| *charge.decision().unwrap()).collect())
}

/// The keys of one case, which are similar.
fn some_keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::sample::subsequence(keys::awkward(), 1..8)
}

pub fn every_decision_equals_the_algorithms(make: Make) {
    assert_decisions(make, some_keys());
}

/// With one key all parts of a joint check are in the same place, on every store.
pub fn every_decision_on_one_key_equals_the_algorithms(make: Make) {
    assert_decisions(make, prop::sample::subsequence(keys::awkward(), 1));
}

fn assert_decisions(make: Make, keys: impl Strategy<Value = Vec<Vec<u8>>>) {
    let index = any::<prop::sample::Index>;
    let requests = (trace::any(), prop::collection::vec((index(), index(), request()), 40));
    let limits = prop::collection::vec(any::limit(), 1..4);
    proptest!(cases(128), |(limits in limits, keys in keys, (steps, requests) in requests)| {
        let mut world = World::new(make, &limits, keys);
        for (step, (scope, key, request)) in steps.iter().zip(&requests) {
            let at = (scope.index(world.scopes.len()), key.index(world.keys.len()));
            let Some(cost) = world.aim(at, step) else { break };
            block_on(world.make(at, cost, request))?;
        }
    });
}

/// On a clock that only moves forward, so that a forgotten key decides as one with nothing spent.
pub fn every_refund_equals_the_algorithms(make: Make) {
    let index = any::<prop::sample::Index>;
    let refunds = prop::collection::vec((index(), prop::option::of(index())), 40);
    let limit =
        any::limit().prop_filter("40 charges stay below 2^53", |limit| limit.size() <= 1 << 47);
    proptest!(cases(128), |(limit in limit, keys in some_keys(), steps in trace::forward(), refunds in refunds)| {
        let (clock, limiter) = open(make);
        let scope = limiter.scope("random", limit).unwrap();
        let mut walks: Vec<Walk> = keys.iter().map(|_| Walk::new(limit)).collect();
        let mut receipts: Vec<(usize, Receipt, tollgate_core::ChargeReceipt)> = Vec::new();
        let mut now_us = trace::START_US;
        for (step, (key, refund)) in steps.iter().zip(refunds) {
            let key = key.index(keys.len());
            walks[key].now_us = now_us;
            let Some(cost) = walks[key].aim(step) else { break };
            now_us = walks[key].now_us;
            clock.set_us(now_us);
            if let Some(which) = refund.filter(|_| !receipts.is_empty()) {
                let (key, own, expected) = receipts.swap_remove(which.index(receipts.len()));
                let given_back = block_on(scope.refund(&keys[key], own)).unwrap();
                prop_assert_eq!(given_back, limit.refund(&mut walks[key].state, now_us, expected));
            } else {
                let answer = block_on(scope.check(&keys[key]).cost(cost.units()).into_future()).unwrap();
                let expected = walks[key].check(cost);
                prop_assert_eq!(answer.decided(), &expected.decision);
                let both = (answer.into_receipt(), expected.receipt);
                if let (Some(own), Some(expected)) = both {
                    prop_assert_eq!(own.cost(), expected.cost());
                    receipts.push((key, own, expected));
                }
            }
            let peeked = block_on(scope.peek(&keys[key]).into_future()).unwrap();
            let expected = limit.peek(&walks[key].state, now_us, UnitRequest::new(Cost::ONE));
            prop_assert_eq!(peeked.decided(), &expected);
            let listed = limit.entries(&walks[key].state, now_us);
            let listed: Vec<_> = listed.map(Iterator::collect).unwrap_or_default();
            prop_assert_eq!(block_on(scope.entries(&keys[key])).unwrap(), listed);
        }
    });
}

/// Enough keys that a store grows and forgets keys.
pub fn thousands_of_keys_decide_as_each_would_alone(make: Make) {
    const KEYS: usize = 8_000;
    const S: u64 = 1_000_000;
    let (clock, limiter) = open(make);
    let limits = [
        "fixed-window limit=3 window=7s",
        "sliding-window-log limit=4 window=11s",
        "sliding-window-counter limit=5 window=9s",
        "token-bucket capacity=3 refill=2/7s",
        "leaky-bucket capacity=3 leak=1/3s mode=shaping",
    ];
    let scopes = limits.map(|text| named(&limiter, text, text));
    let keys: Vec<String> =
        (0..KEYS).map(|key| format!("{key:0width$}", width = 1 + key % 24)).collect();
    let mut states: Vec<State> =
        (0..KEYS).map(|key| scopes[key % scopes.len()].limit().fresh()).collect();
    let mut now_us = START_US;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    block_on(async {
        for round in 0..40_u64 {
            // Forward by a little, back by up to 9 s, or forward until nothing is spent.
            now_us = match round % 5 {
                4 => now_us + 40 * S,
                2 => now_us - 9 * S + round,
                _ => now_us + 2 * S + round * 1_001,
            };
            clock.set_us(now_us);
            // 50 at a time: one by one they would take a minute on some stores.
            for _ in 0..30 {
                let requests: Vec<_> = (0..50)
                    .map(|_| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let key = (random % KEYS as u64) as usize;
                        let cost = 1 + (random >> 40) % 3;
                        let scope = &scopes[key % scopes.len()];
                        let ask = UnitRequest::new(Cost::new(cost).unwrap());
                        let expected = scope.limit().check(&mut states[key], now_us, ask).decision;
                        (key, expected, scope.check(&keys[key]).cost(cost).into_future())
                    })
                    .collect();
                for (key, expected, answer) in requests {
                    let decision = answer.await.unwrap();
                    assert_eq!(*decision.decided(), expected, "key {key} in round {round}");
                }
            }
        }
    });
}
