//! Checks of several limits, of which some are leased.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::{LeaseOptions, Limiter, Scope};

use crate::store::TestStore;

fn leased(limiter: &Limiter, name: &str, limit: &str) -> Scope {
    limiter.scope(name, limit).unwrap().leased(LeaseOptions::default()).unwrap()
}

/// The units of a key that are neither spent nor leased.
async fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").await.unwrap().remaining()
}

#[tokio::test(start_paused = true)]
async fn a_check_of_leased_limits_needs_no_store_and_charges_all_of_them() {
    let store = TestStore::new();
    let limiter = store.limiter();
    let user = leased(&limiter, "user", "token-bucket capacity=10000 refill=1/d");
    let all = leased(&limiter, "all", "fixed-window limit=50000 window=1d");
    let mut leased = 0;
    for _ in 0..1_000 {
        let joint = limiter.check_all(&[user.check("a"), all.check("a").cost(2)]).await.unwrap();
        assert!(joint.is_allowed());
        leased += usize::from(joint.each().iter().all(tollgate::Decision::is_leased));
        sleep(Duration::from_micros(500)).await;
    }
    assert!(leased > 800, "{leased} of 1,000");
    assert!(store.requests().checks < 100, "{:?}", store.requests());
    limiter.end_leases().await.unwrap();
    assert_eq!((remaining(&user).await, remaining(&all).await), (9_000, 48_000));
}

#[tokio::test(start_paused = true)]
async fn a_leased_hit_comes_back_if_a_strict_limit_refuses() {
    let store = TestStore::new();
    let limiter = store.limiter();
    let user = leased(&limiter, "user", "token-bucket capacity=10000 refill=1/d");
    let all = limiter.scope("all", "fixed-window limit=100 window=1d").unwrap();
    let mut allowed = 0;
    let mut hits = 0;
    for _ in 0..300 {
        let joint = limiter.check_all(&[user.check("a"), all.check("a")]).await.unwrap();
        allowed += u64::from(joint.is_allowed());
        hits += u64::from(joint.each()[0].is_leased());
        assert_eq!(joint.refused_by(), (!joint.is_allowed()).then_some(1));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(allowed, 100);
    assert!(hits > 200, "{hits} of 300");
    limiter.end_leases().await.unwrap();
    assert_eq!((remaining(&user).await, remaining(&all).await), (9_900, 0));
}

#[tokio::test(start_paused = true)]
async fn a_leased_hit_comes_back_if_another_leased_limit_refuses_or_the_store_fails() {
    let store = TestStore::new();
    let limiter = store.limiter();
    let user = leased(&limiter, "user", "token-bucket capacity=10000 refill=1/d");
    let small = leased(&limiter, "small", "token-bucket capacity=200 refill=1/d");
    let strict = limiter.scope("strict", "token-bucket capacity=200 refill=1/d").unwrap();
    let mut allowed = 0;
    for _ in 0..600 {
        let joint = limiter.check_all(&[user.check("a"), small.check("a")]).await.unwrap();
        allowed += u64::from(joint.is_allowed());
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(allowed, 200);
    let both = [user.check("a"), strict.check("a")];
    store.fail(true);
    assert!(limiter.check_all(&both).await.is_err());
    store.fail(false);
    limiter.end_leases().await.unwrap();
    assert_eq!((remaining(&user).await, remaining(&small).await), (9_800, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_uses_leases() {
    let store = TestStore::new();
    let limiter = store.limiter();
    let user = leased(&limiter, "user", "token-bucket capacity=10000 refill=1/d");
    for _ in 0..100 {
        let requests: [&[_]; 2] = [&[user.check("a")], &[user.check("a"), user.peek("b")]];
        for joint in limiter.batch(&requests).await.unwrap() {
            assert!(joint.unwrap().is_allowed());
        }
        sleep(Duration::from_millis(1)).await;
    }
    assert!(limiter.lease_counters().hits > 150, "{:?}", limiter.lease_counters());
    limiter.end_leases().await.unwrap();
    assert_eq!(remaining(&user).await, 9_800);
}
