//! Tests of what the store holds, and for which keys.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use tollgate_core::{
    ChargeReceipt, CombinedDecision, Cost, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse,
    Holds, Intent, Reservation, ReserveAnswer, Retry, Role, Verdict,
};

use super::held::{HeldKey, HeldKeys, MAX_EXAMINED_HOLDS, MAX_EXAMINED_KEYS};
use super::*;
use crate::joint::{Demand, HoldTerms};
use crate::receipt::Receipt;

/// A full hour, in 2001.
const NOW_US: u64 = 1_000_000_800_000_000;
const S: u64 = 1_000_000;

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Returns the same name for the same text in all tests; each test has its own stores.
fn named(text: &str) -> Arc<Name> {
    static NAMES: LazyLock<Mutex<HashMap<String, Arc<Name>>>> = LazyLock::new(Mutex::default);
    let made = || Arc::new(Name::new(text, []));
    Arc::clone(NAMES.lock().entry(text.to_owned()).or_insert_with(made))
}

fn request(units: u64) -> UnitRequest {
    UnitRequest::new(Cost::new(units).unwrap())
}

/// Checks as a limiter does when the cost or the time is set.
fn check(
    memory: &MemoryStore,
    scope: &MemoryScope,
    key: &str,
    now_us: u64,
    request: UnitRequest,
) -> CheckResult {
    fn decide<A: SlotAlgorithm>(
        (memory, scope): (&MemoryStore, &MemoryScope),
        limit: &A,
        key: &[u8],
        now_us: u64,
        request: UnitRequest,
    ) -> CheckResult {
        let place = memory.place(scope, key);
        let known = memory.check_known(scope, limit, place, now_us, request);
        known.unwrap_or_else(|| memory.check_any(scope, limit, key, now_us, request))
    }
    let (at, key) = ((memory, scope), key.as_bytes());
    match &scope.limit {
        Limit::FixedWindow(limit) => decide(at, limit, key, now_us, request),
        Limit::SlidingWindowLog(limit) => decide(at, limit, key, now_us, request),
        Limit::SlidingWindowCounter(limit) => decide(at, limit, key, now_us, request),
        Limit::TokenBucket(limit) => decide(at, limit, key, now_us, request),
        Limit::LeakyBucket(limit) => decide(at, limit, key, now_us, request),
        Limit::Concurrency(_) => panic!("a concurrency limit is reserved, not checked"),
    }
}

/// Returns the terms of a hold with an id of its own.
fn hold_terms(hold_for_us: u64) -> HoldTerms {
    static IDS: AtomicU64 = AtomicU64::new(0);
    let id = HoldId(IDS.fetch_add(1, Ordering::Relaxed));
    HoldTerms { id, hold_for: HoldTime::from_us(hold_for_us).unwrap() }
}

fn reserve(
    memory: &MemoryStore,
    scope: &MemoryScope,
    key: &str,
    now_us: u64,
    units: u64,
    hold_for_us: u64,
) -> ReserveAnswer {
    let HoldTerms { id, hold_for } = hold_terms(hold_for_us);
    let reservation = Reservation { id, cost: Cost::new(units).unwrap(), hold_for };
    memory.reserve(scope, key.as_bytes(), now_us, reservation).unwrap()
}

fn refund(
    memory: &MemoryStore,
    scope: &MemoryScope,
    key: &str,
    now_us: u64,
    charge: ChargeReceipt,
) -> u64 {
    let key = key.as_bytes();
    let receipt = Receipt::new(charge, memory.place(scope, key).fingerprint());
    memory.refund(scope, key, now_us, receipt).unwrap()
}

fn remaining(memory: &MemoryStore, scope: &MemoryScope, key: &str, now_us: u64) -> u64 {
    memory.peek(scope, key.as_bytes(), now_us, request(1)).remaining
}

/// Computes the bytes in use anew.
fn recounted(memory: &MemoryStore) -> usize {
    let shards: usize =
        memory.shards.iter().map(|shard| shard.0.lock().recounted(&memory.budget)).sum();
    let scopes = memory.scopes.read();
    let overflows =
        scopes.families().map(|family| logs::state_bytes(&family.overflow.lock().state));
    shards + overflows.sum::<usize>()
}

/// Returns how many logs are outside their slots.
fn logs(memory: &MemoryStore) -> usize {
    memory.shards.iter().map(|shard| shard.0.lock().logs()).sum()
}

/// Charges, refunds, resets and expires keys under these limits of two names, alone and together, at the
/// ceiling and below it.
fn assert_budget_while_keys_come_and_go(limits: &[&str]) {
    let memory = MemoryStore::new(Some(90_000));
    let scopes = ["one", "other"].map(|name| {
        let scope = |text: &&str| memory.scope(&named(name), limit(text)).unwrap();
        limits.iter().map(scope).collect::<Vec<_>>()
    });
    let empty = memory.budget.used();
    let (mut seed, mut now_us) = (1_u64, 1_000_000_000_000_u64);
    let mut fullest = 0;
    let mut holds: Vec<(usize, String, HoldReference)> = Vec::new();
    for step in 0..30_000_u64 {
        // A step of a random number generator that is good enough for a test.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = |below: u64, from: u32| (seed >> from) % below;
        let key = random(300, 20).to_string();
        let scope = |name: usize| &scopes[name][random(limits.len() as u64, 25) as usize];
        let chosen = scope(random(2, 33) as usize);
        let request = request(1 + random(3, 40));
        match random(16, 50) {
            0 => memory.reset(chosen, key.as_bytes()),
            1 => {
                let receipt = check(&memory, chosen, &key, now_us, request).receipt;
                receipt.map(|it| refund(&memory, chosen, &key, now_us, it));
            }
            2..=5 => {
                let is_held =
                    |name: usize| (step + name as u64).is_multiple_of(6) && step % 5 != name as u64;
                let parts = [0, 1].map(|name| JointPart {
                    scope: scope(name),
                    key: key.as_bytes(),
                    demand: Demand {
                        request,
                        role: if step % 7 == 0 { Role::Shadow } else { Role::Enforced },
                        intent: if step % 5 == name as u64 { Intent::Peek } else { Intent::Charge },
                        hold: is_held(name).then(|| hold_terms(S)),
                    },
                });
                let answer = memory.reserve_all(&parts, now_us, &mut Vec::new());
                let held = answer.holds.into_iter().enumerate();
                holds.extend(held.filter_map(|(name, hold)| Some((name, key.clone(), hold?))));
            }
            8 if holds.len() > 1 => {
                let at = random(holds.len() as u64 - 1, 10) as usize;
                let (one, other) = (&holds[at], &holds[at + 1]);
                let growth = HoldGrowth {
                    more: Cost::new(random(3, 40)).ok(),
                    hold_for: HoldTime::from_us(S).unwrap(),
                };
                let [one, other] = [one, other].map(|(name, key, hold)| HoldPart {
                    scope: scope(*name),
                    key: key.as_bytes(),
                    hold: *hold,
                });
                // The references of extended holds stay good.
                memory.extend_all(&[(one, growth), (other, growth)], now_us);
                if step % 2 == 0 {
                    let used = HoldUse { units: random(5, 40), is_last: true };
                    memory.settle_all(&[(one, used), (other, used)], now_us);
                }
            }
            6 => {
                let name = random(2, 33) as usize;
                let reserved = reserve(&memory, scope(name), &key, now_us, 1 + random(3, 40), S);
                holds.extend(reserved.hold.map(|hold| (name, key.clone(), hold)));
            }
            7 if !holds.is_empty() => {
                let (name, key, hold) = holds.swap_remove(random(holds.len() as u64, 10) as usize);
                let used = HoldUse { units: random(5, 40), is_last: true };
                memory.settle(scope(name), key.as_bytes(), now_us, hold, used);
            }
            _ => _ = check(&memory, chosen, &key, now_us, request),
        }
        now_us += random(2_000_000, 30);
        if step % 10_000 == 9_999 {
            now_us += 7_200_000_000;
        }
        assert_eq!(memory.budget.used() - empty, recounted(&memory), "step {step}");
        fullest = fullest.max(memory.budget.used());
    }
    assert!(fullest > 85_000, "{fullest} bytes of 90,000: the ceiling was never near");
    drop(scopes);
    memory.reclaim(now_us);
    assert_eq!(memory.budget.used() - empty, recounted(&memory), "after the limits were dropped");
    memory.reclaim(now_us + 10_000 * S);
    assert_eq!(memory.usage().keys, 0, "nothing is spent any more");
    assert_eq!(logs(&memory), 0, "without a key");
    assert_eq!(memory.budget.used() - empty, recounted(&memory), "after the keys expired");
    assert_eq!(memory.scopes.read().count(), 0);
}

#[test]
fn budget_equals_the_bytes_held() {
    assert_budget_while_keys_come_and_go(&["sliding-window-log limit=40 window=1h"]);
}

#[test]
fn budget_equals_the_bytes_held_when_keys_change_between_logs_and_other_limits() {
    assert_budget_while_keys_come_and_go(&[
        "sliding-window-log limit=40 window=1h",
        "sliding-window-log limit=40 window=1h",
        "sliding-window-log limit=60 window=2h",
        "sliding-window-log limit=40 window=1h",
        "token-bucket capacity=40 refill=40/h",
        "sliding-window-log limit=40 window=1h",
        "sliding-window-log limit=60 window=2h",
        "fixed-window limit=40 window=1h",
    ]);
}

#[test]
fn make_room_for_allocates_enough_for_the_keys() {
    let memory = MemoryStore::new(Some(64 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    let empty = memory.budget.used();
    memory.make_room_for(0);
    assert_eq!(memory.budget.used(), empty);
    memory.make_room_for(100_000);
    let with_room = memory.budget.used();
    assert_eq!(with_room - empty, recounted(&memory));
    // The lists of chunks are excluded: they have room for all keys under the ceiling.
    let lists = memory.shards.len() * Shard::list_bytes(&memory.budget);
    assert!((44..50).contains(&((with_room - empty - lists) / 100_000)), "{with_room} bytes");
    // Few enough that none of the 2,048 shards gets too many.
    for key in 0..20_000 {
        check(&memory, &scope, &key.to_string(), NOW_US, request(1));
    }
    assert_eq!(
        memory.usage(),
        Usage { keys: 20_000, bytes: with_room, overflowed: 0, coarsened: 0 }
    );
}

#[test]
fn make_room_for_stops_at_the_ceiling() {
    let memory = MemoryStore::new(Some(1 << 20));
    memory.make_room_for(usize::MAX);
    assert!((950_000..=1 << 20).contains(&memory.budget.used()), "{}", memory.budget.used());
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    check(&memory, &scope, "a", NOW_US, request(1));
    assert_eq!(memory.usage().keys, 1);
}

/// Keys without room share one state under all limits of their name.
#[test]
fn overflow_state_is_carried_over_to_another_limit() {
    let memory = MemoryStore::new(Some(0));
    let scope = |text| memory.scope(&named("api"), limit(text)).unwrap();
    let window = scope("fixed-window limit=10 window=1h");
    let log = scope("sliding-window-log limit=10 window=1h");
    let bucket = scope("token-bucket capacity=10 refill=1/h");
    let empty = memory.budget.used();
    for (scope, units, left) in
        [(&window, 3, 7), (&log, 1, 6), (&log, 1, 5), (&bucket, 1, 4), (&log, 1, 3)]
    {
        let key = format!("key {left}");
        let CheckResult { decision, receipt } = check(&memory, scope, &key, NOW_US, request(units));
        assert_eq!(decision.remaining, left, "{}", scope.limit);
        assert_eq!(remaining(&memory, &window, "any", NOW_US), left, "{}", scope.limit);
        assert_eq!(receipt.unwrap().cost().units(), units);
        assert_eq!(memory.budget.used() - empty, recounted(&memory), "{}", scope.limit);
    }
    let part = |scope, key| JointPart { scope, key, demand: Demand::of(request(1)) };
    let (combined, each) = check_all(&memory, &[part(&bucket, b"a"), part(&window, b"b")], NOW_US);
    assert!(combined.verdict.is_allowed());
    let outcome = each.iter().map(|each| (each.remaining(), each.receipt().is_some()));
    assert_eq!(outcome.collect::<Vec<_>>(), [(1, true), (1, false)], "one charge of both costs");
    assert_eq!(memory.usage().keys, 0);
}

fn peek<'a>(scope: &'a MemoryScope, key: &'a str, units: u64) -> JointPart<'a> {
    let demand = Demand { intent: Intent::Peek, ..Demand::of(request(units)) };
    JointPart { scope, key: key.as_bytes(), demand }
}

fn charge<'a>(scope: &'a MemoryScope, key: &'a str, units: u64) -> JointPart<'a> {
    JointPart { scope, key: key.as_bytes(), demand: Demand::of(request(units)) }
}

fn check_all(
    memory: &MemoryStore,
    parts: &[JointPart<'_>],
    now_us: u64,
) -> (CombinedDecision, Vec<Decision>) {
    let mut each = Vec::new();
    let combined = memory.check_all(parts, now_us, &mut each);
    (combined, each)
}

fn outcome(memory: &MemoryStore, parts: &[JointPart<'_>]) -> (bool, Vec<u64>) {
    let (combined, each) = check_all(memory, parts, NOW_US);
    let left = each.iter().map(Decision::remaining).collect();
    (combined.verdict.is_allowed(), left)
}

/// Two stores get the same requests, and one of them never uses the fast path. Most requests use it once
/// their keys have state.
#[test]
fn fast_path_decides_like_the_slow_path() {
    let limits = [
        "fixed-window limit=30 window=1s",
        "sliding-window-log limit=20 window=1s",
        "sliding-window-counter limit=30 window=1s",
        "token-bucket capacity=20 refill=9/s",
        "leaky-bucket capacity=20 leak=9/s mode=policing",
        "leaky-bucket capacity=20 leak=9/s mode=shaping",
    ];
    let stores = [(); 2].map(|()| MemoryStore::new(None));
    let names = ["a", "b", "c", "d", "e", "f"];
    let scopes = [0, 1].map(|store| {
        let scope = |(name, text)| stores[store].scope(&named(name), limit(text)).unwrap();
        names.into_iter().zip(limits).map(scope).collect::<Vec<_>>()
    });
    let (mut seed, mut now_us, mut short, mut refused) = (1_u64, NOW_US, 0, 0);
    for step in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = |below: u64, from: u32| (seed >> from) % below;
        let keys = [random(3, 20).to_string(), random(3, 24).to_string()];
        let part = |store: usize, nth: u32| JointPart {
            scope: &scopes[store][random(6, 30 + nth) as usize],
            key: keys[nth as usize % 2].as_bytes(),
            demand: Demand {
                request: UnitRequest {
                    max_wait_us: (random(20, 12) == 0).then_some(100_000),
                    ..request(1 + random(3, 40 + nth))
                },
                role: if random(8, 44 + nth) == 0 { Role::Shadow } else { Role::Enforced },
                intent: if random(6, 50 + nth) == 0 { Intent::Peek } else { Intent::Charge },
                hold: None,
            },
        };
        let count = 1 + random(4, 60) as u32;
        let [own, other] = [0, 1].map(|store| (0..count).map(|nth| part(store, nth)).collect());
        let (own, other): (Vec<JointPart<'_>>, Vec<JointPart<'_>>) = (own, other);
        let (mut answer, mut wanted) = (Vec::new(), Vec::new());
        let decided = stores[0].check_all_known(&own, now_us, &mut answer);
        short += usize::from(decided.is_some());
        let decided = decided.unwrap_or_else(|| stores[0].check_all_any(&own, now_us, &mut answer));
        refused += usize::from(!decided.verdict.is_allowed());
        assert_eq!(decided, stores[1].check_all_any(&other, now_us, &mut wanted), "step {step}");
        // All but the fingerprints of the keys, which differ between stores.
        let outcome = |decision: &Decision| {
            let charge = decision.receipt().map(|receipt| (receipt.cost(), receipt.place()));
            (*decision.decided(), charge)
        };
        assert!(answer.iter().map(outcome).eq(wanted.iter().map(outcome)), "step {step}");
        now_us += random(40_000, 16);
        now_us -= [0, 5_000_000, 30_000_000][random(400, 8).saturating_sub(397) as usize];
    }
    assert!((8_000..16_000).contains(&short) && refused > 4_000, "{short}, {refused}");
}

#[test]
fn peeks_add_no_keys() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    assert_eq!(
        outcome(&memory, &[peek(&scope, "a", 6), peek(&scope, "b", 6)]),
        (true, vec![10, 10])
    );
    assert_eq!(memory.usage().keys, 0);
    assert_eq!(
        outcome(&memory, &[peek(&scope, "a", 6), charge(&scope, "b", 6)]),
        (true, vec![10, 4])
    );
    // A charge next to a peek that refuses adds no key either.
    let refused = [peek(&scope, "b", 6), charge(&scope, "c", 1)];
    assert_eq!(outcome(&memory, &refused), (false, vec![4, 10]));
    assert_eq!((memory.usage().keys, memory.usage().overflowed), (1, 0));
}

/// As in a single peek, a key without state may use the overflow state.
#[test]
fn peeks_read_the_overflow_state_separately() {
    for text in ["fixed-window limit=10 window=1h", "sliding-window-log limit=10 window=1h"] {
        let memory = MemoryStore::new(Some(0));
        let scope = memory.scope(&named("api"), limit(text)).unwrap();
        let other =
            memory.scope(&named("api"), limit("token-bucket capacity=10 refill=1/h")).unwrap();
        check(&memory, &scope, "a", NOW_US, request(3));
        let peeks = [peek(&scope, "b", 4), peek(&scope, "c", 5), peek(&other, "d", 6)];
        assert_eq!(outcome(&memory, &peeks), (true, vec![7, 7, 7]), "{text}");
        assert_eq!(memory.usage().overflowed, 1, "{text}: peeks are not counted");
        // Peeks are decided before the charge, and do not see it.
        let both = [charge(&scope, "e", 2), peek(&scope, "b", 7), peek(&other, "d", 7)];
        assert_eq!(outcome(&memory, &both), (true, vec![5, 7, 7]), "{text}");
        let refused = [charge(&scope, "e", 2), peek(&scope, "b", 6)];
        assert_eq!(outcome(&memory, &refused), (false, vec![5, 5]), "{text}");
        assert_eq!(remaining(&memory, &scope, "a", NOW_US), 5, "{text}");
        assert_eq!(scope.family.overflow.lock().limit, scope.limit, "{text}");
    }
}

#[test]
fn peek_under_another_limit_does_not_carry_the_key_over() {
    let memory = MemoryStore::new(Some(1 << 20));
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=10 window=1h")).unwrap();
    let other = memory.scope(&named("api"), window(8)).unwrap();
    check(&memory, &log, "a", NOW_US, request(3));
    let (empty, peeks) = (memory.budget.used(), [peek(&other, "a", 6), charge(&other, "b", 1)]);
    assert_eq!(outcome(&memory, &peeks), (false, vec![5, 8]));
    assert_eq!(memory.usage().keys, 1);
    assert_eq!(memory.budget.used(), empty);
    let peeks = [peek(&other, "a", 5), charge(&other, "b", 1)];
    assert_eq!(outcome(&memory, &peeks), (true, vec![5, 7]));
    assert_eq!(limit_of(&memory, &log, "a"), Some(log.limit));
    assert_eq!(remaining(&memory, &log, "a", NOW_US), 7);
}

/// Each of a log's units is listed, refunded and expired to the microsecond: up to three in the slot, and more outside.
#[test]
fn small_log_is_kept_in_its_slot_and_returns_there() {
    const HOUR_US: u64 = 3_600 * S;
    let memory = MemoryStore::new(None);
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=10 window=1h")).unwrap();
    for round in 1..4 {
        let start_us = NOW_US + round * 2 * HOUR_US;
        for (nth, elsewhere) in [0, 0, 0, 1].into_iter().enumerate() {
            let now_us = start_us + nth as u64;
            let receipt = check(&memory, &log, "a", now_us, request(1)).receipt.unwrap();
            assert_eq!(refund(&memory, &log, "a", now_us, receipt), 1);
            check(&memory, &log, "a", now_us, request(1));
            assert_eq!(logs(&memory), elsewhere, "after {nth}");
            let listed = memory.entries(&log, b"a", now_us);
            let times_us: Vec<u64> = listed.iter().map(|entry| entry.at_us).collect();
            assert_eq!(times_us, (start_us..=now_us).collect::<Vec<_>>());
        }
        assert_eq!(remaining(&memory, &log, "a", start_us + HOUR_US - 1), 6);
        assert_eq!(remaining(&memory, &log, "a", start_us + HOUR_US), 7);
    }
}

/// The memory is reused when the key is busy again, and given to other keys when there is no other memory.
#[test]
fn memory_of_a_log_that_returned_to_its_slot_is_reused() {
    let memory = MemoryStore::new(Some(1 << 20));
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=99 window=1h")).unwrap();
    let spare = || memory.shards.iter().map(|shard| shard.0.lock().spare_bytes()).sum::<usize>();
    let mut now_us = NOW_US;
    let mut used = Vec::new();
    for _ in 0..3 {
        (0..20).for_each(|nth| _ = check(&memory, &log, "a", now_us + nth, request(1)));
        assert_eq!((logs(&memory), spare()), (1, 0));
        used.push(memory.budget.used());
        now_us += 3_600 * S + 20;
        check(&memory, &log, "a", now_us, request(1));
        assert_eq!((logs(&memory), spare() > 0), (0, true));
        assert_eq!(memory.entries(&log, b"a", now_us).len(), 1);
    }
    assert_eq!(used, [used[0]; 3]);
    let window = memory.scope(&named("window"), window(10)).unwrap();
    for key in 0..40_000 {
        check(&memory, &window, &key.to_string(), now_us, request(1));
    }
    assert!(memory.usage().overflowed > 0 && spare() == 0, "{} bytes spare", spare());
    assert_eq!(memory.entries(&log, b"a", now_us).len(), 1);
}

/// Without memory, the two newest entries are merged before the decision is made, and no others.
#[test]
fn log_decisions_stay_correct_when_entries_are_merged_at_the_ceiling() {
    let memory = MemoryStore::new(Some(200_000));
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=99 window=1h")).unwrap();
    (1..=4).for_each(|nth| _ = check(&memory, &log, "a", NOW_US + nth * S, request(1)));
    let window = memory.scope(&named("window"), window(10)).unwrap();
    for key in 0.. {
        check(&memory, &window, &key.to_string(), NOW_US + 4 * S, request(1));
        if memory.usage().overflowed > 0 {
            break;
        }
    }
    while memory.budget.take(64) {}
    for nth in 5..=12 {
        let now_us = NOW_US + nth * S;
        let outcome = check(&memory, &log, "a", now_us, request(1)).decision;
        assert_eq!(
            memory.peek(&log, b"a", now_us, request(1)).first_back_us,
            outcome.first_back_us
        );
        assert_eq!(outcome.first_back_us, NOW_US + S + 3_600 * S - now_us, "after {nth}");
    }
    assert_eq!(memory.entries(&log, b"a", NOW_US + 12 * S).len(), 4);
}

/// A charge makes room for its entry first, or merges the two newest.
#[test]
fn peek_at_a_log_takes_no_memory_and_merges_no_entries() {
    let memory = MemoryStore::new(Some(1 << 20));
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=99 window=1h")).unwrap();
    for nth in 1..=40 {
        check(&memory, &log, "a", NOW_US + nth, request(1));
        let used = memory.budget.used();
        assert_eq!(outcome(&memory, &[peek(&log, "a", 1)]), (true, vec![99 - nth]));
        assert_eq!(memory.budget.used(), used, "after {nth}");
    }
    assert_eq!(memory.entries(&log, b"a", NOW_US + 40).len(), 40);
}

/// Returns the limit that a key's state is under.
fn limit_of(memory: &MemoryStore, scope: &MemoryScope, key: &str) -> Option<Limit> {
    let place = memory.place(scope, key.as_bytes());
    let found = memory.shard(place).lock().find_any(place, scope, &memory.scopes)?;
    Some(found.1.unwrap_or(scope.limit))
}

fn window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, std::time::Duration::from_secs(3_600)).unwrap())
}

const MORE_THAN_MAX_SCOPES: u64 = 40_000;

#[test]
fn limits_of_one_name_can_be_replaced_for_ever() {
    let memory = MemoryStore::new(Some(8 << 20));
    let held = memory.scope(&named("api"), window(2_000_000)).unwrap();
    for nth in 1..=MORE_THAN_MAX_SCOPES {
        let scope = memory.scope(&named("api"), window(1_000_000 + nth)).unwrap();
        // One key that all limits share, and one key of each limit's own.
        let decision = check(&memory, &scope, "all", NOW_US, request(1)).decision;
        assert_eq!(decision.remaining, 1_000_000, "{nth}");
        check(&memory, &scope, &nth.to_string(), NOW_US, request(nth));
    }
    assert_eq!(remaining(&memory, &held, "all", NOW_US), 2_000_000 - MORE_THAN_MAX_SCOPES);
    for nth in 1..=MORE_THAN_MAX_SCOPES {
        assert_eq!(remaining(&memory, &held, &nth.to_string(), NOW_US), 2_000_000 - nth);
    }
}

/// The largest limit is kept, so that what was spent stays spent.
#[test]
fn charges_stay_spent_when_all_limits_of_a_name_are_dropped() {
    let memory = MemoryStore::new(Some(8 << 20));
    for nth in 1..=MORE_THAN_MAX_SCOPES {
        let scope = memory.scope(&named("api"), window(1_000_000 - nth)).unwrap();
        check(&memory, &scope, &nth.to_string(), NOW_US, request(nth));
    }
    let scope = memory.scope(&named("api"), window(2_000_000)).unwrap();
    for nth in 1..=MORE_THAN_MAX_SCOPES {
        assert_eq!(remaining(&memory, &scope, &nth.to_string(), NOW_US), 2_000_000 - nth);
    }
}

#[test]
fn names_can_be_replaced_for_ever_when_nothing_is_spent_under_them() {
    let memory = MemoryStore::new(Some(8 << 20));
    let held: Vec<_> = (0..100)
        .map(|nth| memory.scope(&named(&format!("held {nth}")), window(10)).unwrap())
        .collect();
    let mut now_us = NOW_US;
    for nth in 0..MORE_THAN_MAX_SCOPES {
        let scope = memory.scope(&named(&nth.to_string()), limit("fixed-window limit=9 window=1s"));
        assert!(check(&memory, &scope.unwrap(), "a", now_us, request(9)).decision.is_allowed());
        // Keys from more than 11 s ago are dead.
        now_us += S / 1_000;
        let held = &held[nth as usize % held.len()];
        assert_eq!(remaining(&memory, held, "a", now_us), 10);
    }
    for (nth, scope) in held.iter().enumerate() {
        let again = memory.scope(&named(&format!("held {nth}")), window(10)).unwrap();
        assert!(Arc::ptr_eq(scope, &again), "a limit in use keeps its scope");
    }
}

#[test]
fn name_is_kept_until_nothing_is_spent_under_it() {
    const ALL: u32 = identity::MAX_SCOPE + 1;
    let memory = MemoryStore::new(Some(8 << 20));
    let count = ALL as usize;
    for nth in 0..ALL {
        let scope = memory.scope(&named(&nth.to_string()), window(9)).unwrap();
        check(&memory, &scope, "a", NOW_US, request(4));
    }
    let one_more = |now_us| memory.scope_as_of(&named("one more"), window(9), || now_us);
    assert_eq!(one_more(NOW_US + S).unwrap_err(), Error::TooManyLimits { count });
    let known = memory.scope(&named("77"), window(9)).unwrap();
    assert_eq!(remaining(&memory, &known, "a", NOW_US), 5);
    let whole_us = NOW_US + 3_600 * S;
    assert_eq!(
        one_more(whole_us).unwrap_err(),
        Error::TooManyLimits { count },
        "too early by 10 s"
    );
    let new = one_more(whole_us + 10 * S).unwrap();
    assert_eq!(memory.usage().keys, 1, "only the key of the limit in use is left");
    assert_eq!(limit_of(&memory, &known, "a"), Some(window(9)));
    assert_eq!(limit_of(&memory, &new, "a"), None);
    assert_eq!(memory.scopes.read().count(), 2);
}

#[test]
fn keys_of_a_dropped_limit_move_to_the_smallest_limit_with_room() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = |size| memory.scope(&named("api"), window(size)).unwrap();
    let held = [10, 100, 1_000].map(scope);
    for (key, size) in [("tiny", 5), ("small", 10), ("middling", 50), ("huge", 5_000)] {
        check(&memory, &scope(size), key, NOW_US, request(4));
    }
    memory.reclaim(NOW_US);
    for (key, size) in [("tiny", 10), ("small", 10), ("middling", 100), ("huge", 1_000)] {
        assert_eq!(limit_of(&memory, &held[0], key), Some(window(size)), "{key}");
        assert_eq!(remaining(&memory, &held[2], key, NOW_US), 996, "{key}");
    }
    assert_eq!(memory.scopes.read().count(), 3);
}

#[test]
fn name_is_kept_while_its_overflow_state_counts() {
    let memory = MemoryStore::new(Some(0));
    let text = "sliding-window-log limit=10 window=1h";
    for _ in 0..3 {
        check(&memory, &memory.scope(&named("api"), limit(text)).unwrap(), "a", NOW_US, request(2));
        memory.reclaim(NOW_US + S);
    }
    let scope = memory.scope(&named("api"), limit(text)).unwrap();
    assert_eq!(remaining(&memory, &scope, "b", NOW_US), 4);
    drop(scope);
    memory.reclaim(NOW_US + 3_700 * S);
    assert_eq!(memory.scopes.read().count(), 0);
    let scope = memory.scope(&named("api"), limit(text)).unwrap();
    assert_eq!(remaining(&memory, &scope, "b", NOW_US), 10);
}

/// The time that the store recorded last may be long ago; later charges must keep their own times.
#[test]
fn key_of_a_dropped_limit_is_carried_over_at_its_own_time() {
    let log = "sliding-window-log limit=10 window=1h";
    for (old, new) in [
        ("fixed-window limit=10 window=1h", log),
        ("sliding-window-counter limit=10 window=1h", log),
        ("token-bucket capacity=10 refill=1/1000h", log),
        (log, "fixed-window limit=10 window=1h"),
    ] {
        let memory = MemoryStore::new(Some(1 << 20));
        let held = memory.scope(&named("api"), limit(new)).unwrap();
        for _ in 0..2 {
            check(
                &memory,
                &memory.scope(&named("api"), limit(old)).unwrap(),
                "a",
                NOW_US,
                request(2),
            );
        }
        memory.reclaim(NOW_US - 1_800 * S);
        assert_eq!(limit_of(&memory, &held, "a"), Some(held.limit), "{old}");
        assert_eq!(remaining(&memory, &held, "a", NOW_US + 3_599 * S), 6, "{old}");
        assert_eq!(remaining(&memory, &held, "a", NOW_US + 3_600 * S), 10, "{old}");
    }
}

/// The time of a replayed trace may go back to when the keys had something spent.
#[test]
fn store_that_keeps_every_key_removes_none_when_a_limit_is_dropped() {
    let memory = MemoryStore::new(None);
    let held = memory.scope(&named("api"), window(10)).unwrap();
    check(&memory, &memory.scope(&named("api"), window(9)).unwrap(), "a", NOW_US, request(4));
    check(&memory, &memory.scope(&named("other"), window(9)).unwrap(), "a", NOW_US, request(4));
    memory.reclaim(NOW_US + 100_000 * S);
    assert_eq!(memory.usage().keys, 2);
    assert_eq!(remaining(&memory, &held, "a", NOW_US), 6);
    let other = memory.scope(&named("other"), window(9)).unwrap();
    assert_eq!(remaining(&memory, &other, "a", NOW_US), 5);
}

#[test]
fn log_is_charged_the_cost_and_nothing_for_a_refusal() {
    let memory = MemoryStore::new(None);
    let log = memory.scope(&named("api"), limit("sliding-window-log limit=10 window=1m")).unwrap();
    for (cost, left) in [(1, 9), (1, 8), (3, 5), (6, 5), (6, 5), (1, 4), (4, 0), (1, 0)] {
        check(&memory, &log, "a", NOW_US, request(cost));
        assert_eq!(remaining(&memory, &log, "a", NOW_US), left, "after {cost}");
    }
}

/// Some threads check under limits that they hold, others under limits that come and go.
#[test]
fn reclaim_loses_no_charge_when_threads_check_at_the_same_time() {
    const TURNS: u64 = 12_000;
    let memory = MemoryStore::new(Some(1 << 20));
    let held = memory.scope(&named("api"), window(1_000_000)).unwrap();
    let keys = ["a", "b", "c", "a key that is longer than most"];
    let spend = &|thread: u64| {
        for turn in 0..TURNS {
            let key = keys[(turn % 4) as usize];
            // Large enough for all that is spent, so that all of it is carried over.
            let other =
                || memory.scope(&named("api"), window(1_000_001 + thread * TURNS + turn)).unwrap();
            let scope = if thread.is_multiple_of(2) { Arc::clone(&held) } else { other() };
            assert!(check(&memory, &scope, key, NOW_US, request(1)).decision.is_allowed());
            if turn % 4_000 == 3_999 {
                let _making = memory.making.lock();
                memory.reclaim(NOW_US);
            }
        }
    };
    thread::scope(|threads| {
        let running: Vec<_> = (0..4).map(|thread| threads.spawn(move || spend(thread))).collect();
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
    for key in keys {
        assert_eq!(remaining(&memory, &held, key, NOW_US), 1_000_000 - TURNS, "{key}");
    }
    assert_eq!(memory.usage().keys, 4);
}

/// Returns how many keys have holds, in all shards.
fn held(memory: &MemoryStore) -> usize {
    memory.shards.iter().map(|shard| shard.0.lock().held_count()).sum()
}

fn settle(
    memory: &MemoryStore,
    scope: &MemoryScope,
    key: &str,
    now_us: u64,
    hold: ReserveAnswer,
    units: u64,
) {
    let used = HoldUse { units, is_last: true };
    memory.settle(scope, key.as_bytes(), now_us, hold.hold.unwrap(), used);
}

#[test]
fn key_with_holds_has_no_slot_and_returns_to_the_table_with_its_last_settlement() {
    for text in ["fixed-window limit=10 window=1h", "sliding-window-log limit=10 window=1h"] {
        let memory = MemoryStore::new(Some(1 << 20));
        let scope = memory.scope(&named("api"), limit(text)).unwrap();
        check(&memory, &scope, "a", NOW_US, request(1));
        for nth in 1..=4 {
            check(&memory, &scope, "a", NOW_US + nth, request(1));
        }
        let (empty, now_us) = (recounted(&memory), NOW_US + 10);
        let first = reserve(&memory, &scope, "a", now_us, 2, S);
        let second = reserve(&memory, &scope, "a", now_us, 1, S);
        assert_eq!((held(&memory), memory.usage().keys), (1, 1), "{text}");
        assert_eq!(limit_of(&memory, &scope, "a"), None, "{text}: it has no slot");
        assert!(recounted(&memory) > empty, "{text}");
        settle(&memory, &scope, "a", now_us, first, 0);
        assert_eq!(held(&memory), 1, "{text}");
        settle(&memory, &scope, "a", now_us, second, 0);
        assert_eq!((held(&memory), memory.usage().keys), (0, 1), "{text}");
        assert_eq!(limit_of(&memory, &scope, "a"), Some(limit(text)), "{text}");
        assert_eq!(recounted(&memory), empty, "{text}: all of its memory came back");
        assert_eq!(remaining(&memory, &scope, "a", now_us), 5, "{text}");
    }
}

#[test]
fn check_moves_a_key_back_when_its_last_hold_has_expired() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    reserve(&memory, &scope, "a", NOW_US, 2, S);
    check(&memory, &scope, "a", NOW_US + S - 1, request(1));
    assert_eq!(held(&memory), 1);
    let decision = check(&memory, &scope, "a", NOW_US + S, request(1)).decision;
    assert_eq!((held(&memory), decision.remaining), (0, 6));
}

#[test]
fn reservation_at_the_ceiling_is_refused_until_a_hold_expires() {
    let memory = MemoryStore::new(Some(200_000));
    let scope = memory.scope(&named("api"), limit("fixed-window limit=10 window=1s")).unwrap();
    let mut admitted = 0_u64;
    let refused = loop {
        let key = admitted.to_string();
        let answer = reserve(&memory, &scope, &key, NOW_US, 1, 5 * S);
        if answer.hold.is_none() {
            break answer;
        }
        admitted += 1;
        assert!(memory.budget.used() <= 200_000);
    };
    assert!(admitted > 100, "{admitted} keys with holds");
    assert_eq!(refused.decision.retry_after_us(), Some(5 * S));
    assert_eq!(refused.decision.remaining, 10);
    // A key with a hold may have more, as long as its list need not grow.
    assert!(reserve(&memory, &scope, "0", NOW_US, 1, 5 * S).hold.is_some());
    // Dead keys give their memory to new holds: 5 s until they expire, a window, and a step back of 10 s.
    let later_us = NOW_US + 17 * S;
    let is_admitted = |nth: &u64| {
        reserve(&memory, &scope, &format!("later {nth}"), later_us, 1, S).hold.is_some()
    };
    // More than fit, because a reservation removes the dead keys of its own shard only.
    let later = (0..20 * admitted).filter(is_admitted).count() as u64;
    assert!(10 * later > 9 * admitted, "{later} of {admitted}");
    assert!(memory.budget.used() <= 200_000);
}

/// Reserves one unit of `key` under both scopes.
fn reserve_both(
    memory: &MemoryStore,
    scopes: [(&MemoryScope, Role); 2],
    key: &str,
    now_us: u64,
) -> (CombinedDecision, usize) {
    let parts = scopes.map(|(scope, role)| JointPart {
        scope,
        key: key.as_bytes(),
        demand: Demand { role, hold: Some(hold_terms(5 * S)), ..Demand::of(request(1)) },
    });
    let answer = memory.reserve_all(&parts, now_us, &mut Vec::new());
    (answer.combined, answer.holds.iter().flatten().count())
}

#[test]
fn reservation_of_several_limits_at_the_ceiling_is_refused_and_holds_nothing() {
    let memory = MemoryStore::new(Some(200_000));
    let scope =
        |name| memory.scope(&named(name), limit("fixed-window limit=10 window=1s")).unwrap();
    let (one, other) = (scope("one"), scope("other"));
    let both = [(&*one, Role::Enforced), (&*other, Role::Enforced)];
    let mut admitted = 0_u64;
    let refused = loop {
        let (combined, held) = reserve_both(&memory, both, &admitted.to_string(), NOW_US);
        if held == 0 {
            break combined;
        }
        assert_eq!(held, 2);
        admitted += 1;
        assert!(memory.budget.used() <= 200_000);
    };
    assert!(admitted > 50, "{admitted} keys with holds");
    assert_eq!(refused.verdict, Verdict::Denied { retry: Retry::AfterUs(5 * S) });
    assert_eq!(held(&memory) as u64, 2 * admitted);
    // The list of holds has 4 places at first. A shadow whose list cannot grow refuses nothing.
    for _ in 1..4 {
        assert!(reserve(&memory, &other, "0", NOW_US, 1, 5 * S).hold.is_some());
    }
    assert!(memory.budget.take(memory.budget.left()));
    let shadow = [(&*one, Role::Enforced), (&*other, Role::Shadow)];
    let (combined, held) = reserve_both(&memory, shadow, "0", NOW_US);
    assert_eq!((combined.verdict.is_allowed(), held), (true, 1));
    let (combined, held) = reserve_both(&memory, both, "0", NOW_US);
    assert_eq!((combined.verdict.is_allowed(), held), (false, 0));
    assert_eq!(remaining(&memory, &one, "0", NOW_US), 8);
}

#[test]
fn dead_keys_with_holds_are_removed_when_their_number_has_doubled() {
    let memory = MemoryStore::new(Some(64 << 20));
    let scope = memory.scope(&named("api"), limit("fixed-window limit=10 window=1s")).unwrap();
    for nth in 0..400_000_u64 {
        // Dead after 12 s, in which 12,000 others come.
        reserve(&memory, &scope, &nth.to_string(), NOW_US + nth * 1_000, 1, S);
    }
    assert!(held(&memory) < 50_000, "{} keys", held(&memory));
    memory.reclaim(NOW_US + 500 * S);
    assert_eq!((held(&memory), recounted(&memory)), (0, 0));
}

#[test]
fn store_that_keeps_every_key_keeps_those_with_holds() {
    let memory = MemoryStore::new(None);
    let scope = memory.scope(&named("api"), limit("fixed-window limit=10 window=1s")).unwrap();
    for nth in 0..100_000_u64 {
        reserve(&memory, &scope, &nth.to_string(), NOW_US + nth * S, 1, S);
    }
    assert_eq!(memory.usage().keys, 100_000);
}

#[test]
fn dropped_limit_stays_while_its_key_has_a_hold() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    check(&memory, &scope, "a", NOW_US, request(1));
    let hold = reserve(&memory, &scope, "a", NOW_US, 4, S);
    drop(scope);
    memory.reclaim(NOW_US + S);
    assert_eq!(memory.scopes.read().count(), 1);
    let scope = memory.scope(&named("api"), window(20)).unwrap();
    assert_eq!(remaining(&memory, &scope, "a", NOW_US), 15);
    settle(&memory, &scope, "a", NOW_US, hold, 0);
    assert_eq!(limit_of(&memory, &scope, "a"), Some(window(10)), "it is not carried over");
    assert_eq!(remaining(&memory, &scope, "a", NOW_US), 19);
    drop(scope);
    memory.reclaim(NOW_US + 4_000 * S);
    assert_eq!(memory.scopes.read().count(), 0);
}

#[test]
fn reset_forgets_holds_and_gives_their_memory_back() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    let empty = memory.budget.used();
    reserve(&memory, &scope, "a", NOW_US, 4, S);
    memory.reset(&scope, b"a");
    assert_eq!((memory.budget.used(), memory.usage().keys), (empty, 0));
    assert_eq!(remaining(&memory, &scope, "a", NOW_US), 10);
}

#[test]
fn refused_reservation_leaves_no_trace() {
    let memory = MemoryStore::new(Some(1 << 20));
    let scope = memory.scope(&named("api"), window(10)).unwrap();
    let empty = memory.budget.used();
    assert!(reserve(&memory, &scope, "a", NOW_US, 11, S).hold.is_none());
    assert_eq!((memory.budget.used(), memory.usage().keys), (empty, 0));
    check(&memory, &scope, "a", NOW_US, request(1));
    let empty = memory.budget.used();
    assert!(reserve(&memory, &scope, "a", NOW_US, 10, S).hold.is_none());
    assert_eq!((memory.budget.used(), held(&memory)), (empty, 0));
}

/// Keys with this many holds each, all expired long before `LATER_US`.
fn dead_held_keys(
    keys: u64,
    holds_each: u64,
    scope: &Arc<MemoryScope>,
    budget: &StoreBudget,
) -> HeldKeys {
    let mut held = HeldKeys::default();
    for nth in 0..keys {
        let (mut state, mut holds) = (scope.limit.fresh(), Holds::default());
        for id in 0..holds_each {
            let hold_for = HoldTime::try_from(Duration::from_secs(1 + nth)).unwrap();
            let reservation = Reservation { id: HoldId(id), cost: Cost::ONE, hold_for };
            scope.limit.reserve(&mut state, &mut holds, NOW_US, reservation).unwrap();
        }
        let key = HeldKey { scope: Arc::clone(scope), state, holds };
        assert!(budget.take(key.bytes()));
        held.insert((scope.family(), KeyIdentity([nth, nth])), key);
    }
    held
}

/// A refusal for lack of memory examines few keys, however many there are. The next one continues there.
#[test]
fn search_for_dead_keys_without_memory_for_a_hold_is_bounded_and_continues() {
    for (keys, holds_each, most) in
        [(1_000, 1, MAX_EXAMINED_KEYS), (100, 64, MAX_EXAMINED_HOLDS / 64)]
    {
        let memory = MemoryStore::new(Some(64 << 20));
        let scope =
            memory.scope(&named("api"), limit("fixed-window limit=1000 window=1s")).unwrap();
        let (budget, empty) = (&memory.budget, memory.budget.used());
        let mut held = dead_held_keys(keys, holds_each, &scope, budget);
        // Nothing is dead yet. The first call sees the first keys, and the second one the next.
        assert_eq!(held.remove_some_dead(&[], NOW_US, budget), Some(NOW_US + S));
        let next_us = NOW_US + (most as u64 + 1) * S;
        assert_eq!(held.remove_some_dead(&[], NOW_US, budget), Some(next_us));
        let later_us = NOW_US + 2_000 * S;
        let excepted = (scope.family(), KeyIdentity([0, 0]));
        for call in 1.. {
            let before = held.count();
            assert_eq!(held.remove_some_dead(&[excepted], later_us, budget), None);
            let removed = before - held.count();
            assert!(removed <= most, "{removed} keys in one call");
            if held.count() == 1 {
                assert!(call <= keys as usize / most + 2, "{call} calls");
                break;
            }
        }
        assert_eq!(held.remove_some_dead(&[], later_us, budget), None);
        assert_eq!((held.count(), budget.used()), (0, empty));
    }
}
