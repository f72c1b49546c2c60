//! How often waiters ask a store that other processes use about keys with holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::store::{Call, Charge, CheckRequest, JointRequest, KeyState, RemoteStore, Wake};
use tollgate::{Answer, Clock, Decision, Error, Health, JointDecision, Limiter, Scope, StoreError};
use tollgate_core::ChargeReceipt;

use crate::setup::START_US;

/// A store on which another process holds all units of every key. A key is free from its `free_from`-th check on.
#[derive(Debug)]
struct HeldByOthers {
    checks: Arc<AtomicU64>,
    free_from: u64,
}

impl RemoteStore for HeldByOthers {
    fn check(&self, CheckRequest { charge, .. }: CheckRequest) -> Answer<Decision> {
        let nth = 1 + self.checks.fetch_add(1, Ordering::Relaxed);
        let mut stored = None;
        let admitted = charge.decide(&mut stored, START_US);
        Answer::ready(Ok(match nth < self.free_from {
            true => charge.decide(&mut stored, START_US).beside_holds(),
            false => admitted,
        }))
    }

    fn check_all(&self, _: JointRequest) -> Answer<JointDecision> {
        Answer::ready(Err(StoreError::Gone.into()))
    }

    fn refund(&self, _: Charge, _: ChargeReceipt, _: Call, _: Wake) -> Answer<u64> {
        Answer::ready(Ok(0))
    }

    fn reset(&self, _: Charge, _: Call, _: Wake) -> Answer<()> {
        Answer::ready(Ok(()))
    }

    fn state(&self, charge: Charge, _: Call) -> Answer<KeyState> {
        Answer::ready(Ok(charge.key_state(None, START_US)))
    }

    fn health(&self) -> Health {
        Health::new(Vec::new(), StoreError::KINDS.map(|kind| (kind, 0)).into(), None)
    }
}

/// A limit of 1 on such a store, and the number of checks that the store has got.
fn held_by_others(free_from: u64) -> (Scope, Arc<AtomicU64>) {
    let checks = Arc::<AtomicU64>::default();
    let store = HeldByOthers { checks: Arc::clone(&checks), free_from };
    let builder = Limiter::builder().clock(Clock::tokio(START_US)).store(|_| Ok::<_, Error>(store));
    let limiter = builder.unwrap().build();
    (limiter.scope("test", "fixed-window limit=1 window=366d").unwrap(), checks)
}

#[tokio::test(start_paused = true)]
async fn waiter_asks_again_every_pace_about_a_key_that_others_hold() {
    let (scope, checks) = held_by_others(6);
    let began = Instant::now();
    let acquired = scope.acquire("a").await.unwrap();
    assert!(acquired.is_admitted());
    // The sixth check is admitted, after five pauses.
    assert_eq!((began.elapsed(), checks.load(Ordering::Relaxed)), (Duration::from_millis(50), 6));
}

/// Returns the checks in a second while waiters wait for `keys` keys.
async fn checks_a_second(scope: &Scope, checks: &AtomicU64, keys: usize) -> u64 {
    let mut waiters = JoinSet::new();
    for key in 0..keys {
        let scope = scope.clone();
        waiters.spawn(async move { scope.acquire(&key.to_string()).await.map(|_| ()) });
    }
    // The first pauses of the first waiters are shorter, because the others had not come.
    sleep(Duration::from_secs(10)).await;
    let before = checks.load(Ordering::Relaxed);
    sleep(Duration::from_secs(5)).await;
    (checks.load(Ordering::Relaxed) - before) / 5
}

#[tokio::test(start_paused = true)]
async fn waiters_of_many_keys_share_the_checks_of_a_limiter() {
    let (scope, checks) = held_by_others(u64::MAX);
    for (keys, most) in [(1, 100), (50, 5_000), (1_000, 5_000), (5_000, 5_000), (1, 100)] {
        let made = checks_a_second(&scope, &checks, keys).await;
        // tokio's timers round up to 1 ms.
        assert!((most * 9 / 10..=most).contains(&made), "{keys} keys: {made} checks a second");
    }
}
