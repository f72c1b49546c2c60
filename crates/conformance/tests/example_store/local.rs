//! The policy `local`, which is the default: what a share begins with when the store fails, and how large it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_conformance::store::{LIMITS, START_US, scope};
use tollgate_limiter::store::Fallback;
use tollgate_limiter::{Decision, Limiter, ManualClock, OnFailure, Scope};

use crate::failures::{FailingStore, failing};

/// A limiter with the default policy, and a limiter in memory that gets the same requests.
struct Pair {
    limiter: Limiter,
    memory: Limiter,
    clock: ManualClock,
    is_failing: Arc<AtomicBool>,
    fallback: Arc<Fallback>,
}

impl Pair {
    fn new() -> Pair {
        let (store, is_failing) = failing(true);
        let clock = ManualClock::at_us(START_US);
        let (limiter, fallback) = on(store, &clock);
        let memory = Limiter::builder().clock(&clock).build();
        Pair { limiter, memory, clock, is_failing, fallback }
    }

    fn fail(&self) {
        self.is_failing.store(true, Ordering::Relaxed);
    }
}

fn on(store: FailingStore, clock: &ManualClock) -> (Limiter, Arc<Fallback>) {
    let mut known = None;
    let builder = Limiter::builder().clock(clock).store(|fallback| {
        known = Some(Arc::clone(fallback));
        Ok(store)
    });
    (builder.unwrap().deadline(Duration::from_secs(30)).build(), known.unwrap())
}

async fn spend(scope: &Scope, cost: u64) -> Decision {
    scope.check("a").cost(cost).await.unwrap()
}

#[tokio::test]
async fn spent_key_stays_spent_and_comes_back_exactly_as_its_limit_says() {
    for text in LIMITS {
        let pair = Pair::new();
        let (own, model) = (scope(&pair.limiter, text), scope(&pair.memory, text));
        for scope in [&own, &model] {
            assert_eq!(spend(scope, 10).await.remaining(), 0);
        }
        pair.clock.advance(Duration::from_millis(2_345));
        pair.fail();
        for _ in 0..3 {
            let refused = spend(&own, 10).await;
            assert!(refused.is_degraded() && !refused.is_allowed(), "{text}");
            let want = spend(&model, 10).await;
            assert_eq!(refused.decided(), want.decided(), "{text}");
            pair.clock.advance(refused.retry_after().unwrap() - Duration::from_micros(1));
            assert!(!spend(&own, 10).await.is_allowed(), "{text}");
            pair.clock.advance(Duration::from_micros(1));
            let (got, want) = (spend(&own, 10).await, spend(&model, 10).await);
            assert!(got.is_allowed(), "{text}");
            assert_eq!(got.decided(), want.decided(), "{text}");
        }
    }
}

/// A sequence of numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// An answer is not the whole state of a key. So the share may remember more spent units than the key has, and never fewer.
#[tokio::test]
async fn key_with_any_history_has_no_more_than_its_limit_would_leave() {
    for text in LIMITS {
        let mut numbers = Numbers(7);
        for case in 0..200 {
            let pair = Pair::new();
            let (own, model) = (scope(&pair.limiter, text), scope(&pair.memory, text));
            let (mut last, mut at_us) = (None, START_US);
            for _ in 0..=numbers.below(8) {
                at_us += numbers.below(25_000_000);
                pair.clock.set_us(at_us);
                let cost = 1 + numbers.below(6);
                let want = spend(&model, cost).await;
                last = Some(spend(&own, cost).await);
                assert_eq!(last.as_ref().unwrap().decided(), want.decided());
            }
            pair.fail();
            let reset_after = last.unwrap().reset_after();
            let mut steps: Vec<u64> = (0..6).map(|_| numbers.below(70_000_000)).collect();
            steps.push(0);
            steps.sort_unstable();
            for step in steps {
                pair.clock.set_us(at_us + step);
                let (got, want) = (own.peek("a").await.unwrap(), model.peek("a").await.unwrap());
                assert!(got.is_degraded());
                assert!(got.remaining() <= want.remaining(), "{text}, case {case}, {step} us");
            }
            let reset_us = u64::try_from(reset_after.as_micros()).unwrap();
            pair.clock.set_us(at_us + reset_us.max(70_000_000));
            let got = own.peek("a").await.unwrap().remaining();
            assert_eq!(got, 10, "{text}, case {case}: all units are back when the store's are");
        }
    }
}

/// `before` units were spent, so that 100 less these remain. All processes have seen that.
#[tokio::test]
async fn shares_together_admit_what_remained_or_one_unit_each() {
    let limits = [
        "fixed-window limit=100 window=366d",
        "sliding-window-log limit=100 window=366d",
        "sliding-window-counter limit=100 window=366d",
        "token-bucket capacity=100 refill=100/366d",
        "leaky-bucket capacity=100 leak=100/366d mode=shaping",
    ];
    for text in limits {
        for (before, processes, want) in
            [(0, 4, 100), (100, 4, 0), (60, 4, 40), (61, 4, 36), (98, 4, 4), (99, 7, 7), (0, 3, 99)]
        {
            let mut admitted = 0;
            for _ in 0..processes {
                let pair = Pair::new();
                pair.fallback.set_live_processes(processes);
                assert_eq!(pair.limiter.live_processes(), Some(processes));
                let own = scope(&pair.limiter, text);
                if before > 0 {
                    assert!(!spend(&own, before).await.is_degraded());
                }
                pair.fail();
                for _ in 0..101 {
                    admitted += u64::from(spend(&own, 1).await.is_allowed());
                }
            }
            assert_eq!(admitted, want, "{text}: {before} spent, {processes} processes");
        }
    }
}

#[tokio::test]
async fn number_of_processes_that_was_set_takes_precedence_over_the_live_ones() {
    for (processes, want) in [(None, 2), (Some(2), 5), (Some(0), 10)] {
        let pair = Pair::new();
        pair.fallback.set_live_processes(5);
        pair.fail();
        let own = scope(&pair.limiter, LIMITS[0]).on_failure(OnFailure::Local { processes });
        assert_eq!(own.peek("a").await.unwrap().remaining(), want, "{processes:?}");
    }
    let pair = Pair::new();
    pair.fail();
    let own = scope(&pair.limiter, LIMITS[0]);
    assert_eq!(own.peek("a").await.unwrap().remaining(), 10, "the store has not counted");
}

/// The number of processes changes while the store fails only if a part of the store still counts them.
#[tokio::test]
async fn share_that_becomes_smaller_or_larger_keeps_what_was_spent_of_it() {
    let pair = Pair::new();
    pair.fail();
    let own = scope(&pair.limiter, "fixed-window limit=12 window=366d");
    assert_eq!(spend(&own, 3).await.remaining(), 9);
    for (processes, want) in [(3, 1), (12, 0), (4, 0), (2, 3), (1, 9)] {
        pair.fallback.set_live_processes(processes);
        assert_eq!(own.peek("a").await.unwrap().remaining(), want, "{processes}");
    }
}

/// Units that were admitted without the store are spent in the next outage too, beside what the store answered since.
#[tokio::test]
async fn larger_one_of_the_stores_and_the_shares_spending_counts() {
    for text in LIMITS {
        let pair = Pair::new();
        let own = scope(&pair.limiter, text);
        pair.fail();
        assert_eq!(spend(&own, 6).await.remaining(), 4, "{text}");
        for (spent, want) in [(1, 4), (7, 2)] {
            pair.is_failing.store(false, Ordering::Relaxed);
            assert!(!spend(&own, spent).await.is_degraded());
            pair.fail();
            assert_eq!(own.peek("a").await.unwrap().remaining(), want, "{text}");
        }
    }
}

#[tokio::test]
async fn every_limit_of_a_joint_check_begins_with_its_own_last_state() {
    let pair = Pair::new();
    let (one, other) = (
        pair.limiter.scope("one", "fixed-window limit=10 window=1d").unwrap(),
        pair.limiter.scope("other", "token-bucket capacity=10 refill=10/d").unwrap(),
    );
    let checks = [one.check("a").cost(4), other.check("b").cost(10)];
    assert!(pair.limiter.check_all(&checks).await.unwrap().is_allowed());
    pair.fail();
    let checks = [one.check("a").cost(6), other.check("b")];
    let refused = pair.limiter.check_all(&checks).await.unwrap();
    assert_eq!((refused.refused_by(), refused.each()[0].remaining()), (Some(1), 6));
    assert!(one.check("a").cost(6).await.unwrap().is_allowed());
    assert!(!one.check("a").await.unwrap().is_allowed());
    assert_eq!(one.peek("never seen").await.unwrap().remaining(), 10);
}

#[tokio::test]
async fn held_units_count_as_spent_and_those_of_a_concurrency_limit_do_not() {
    let pair = Pair::new();
    let window = scope(&pair.limiter, LIMITS[0]);
    let jobs = pair.limiter.scope("jobs", "concurrency limit=10 for=1h").unwrap();
    let held = window.reserve("a").cost(9).await.unwrap().into_hold();
    let job = jobs.reserve("a").cost(9).await.unwrap().into_hold();
    pair.fail();
    assert_eq!(window.peek("a").await.unwrap().remaining(), 1);
    assert_eq!(jobs.peek("a").await.unwrap().remaining(), 10);
    drop((held, job));
}

/// A program may make a scope for each request.
#[tokio::test]
async fn last_state_of_a_key_outlives_the_scope_that_saw_it() {
    let pair = Pair::new();
    assert_eq!(spend(&scope(&pair.limiter, LIMITS[0]), 10).await.remaining(), 0);
    pair.fail();
    let refused = spend(&scope(&pair.limiter, LIMITS[0]), 1).await;
    assert!(refused.is_degraded() && !refused.is_allowed());
}

#[tokio::test]
async fn key_that_was_reset_begins_with_nothing_spent() {
    let pair = Pair::new();
    let own = scope(&pair.limiter, LIMITS[0]);
    assert_eq!(spend(&own, 10).await.remaining(), 0);
    own.reset("a").await.unwrap();
    pair.fail();
    assert_eq!(own.peek("a").await.unwrap().remaining(), 10);
}
