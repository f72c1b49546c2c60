//! Checks of one leased limit.

use std::future::IntoFuture;
use std::time::Duration;

use tokio::time::{advance, sleep};
use tollgate::{Error, HoldError, LeaseOptions, OnFailure, Scope, StoreError, TermsError};

use crate::store::{Requests, TestStore};

const BUCKET: &str = "token-bucket capacity=100000 refill=1/10m";

/// Makes a key hot: one check each millisecond, until its lease has units.
async fn warm_up(scope: &Scope, key: &str) {
    for _ in 0..20 {
        assert!(scope.check(key).await.unwrap().is_allowed());
        sleep(Duration::from_millis(1)).await;
    }
    assert!(scope.check(key).await.unwrap().is_leased());
}

async fn remaining(scope: &Scope, key: &str) -> u64 {
    scope.peek(key).await.unwrap().remaining()
}

/// Lets the tasks that are ready run.
async fn settle_down() {
    sleep(Duration::from_millis(5)).await;
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_is_decided_without_the_store_and_every_unit_is_charged_in_the_end() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    let mut leased = 0;
    for _ in 0..2_000 {
        let decision = api.check("a").await.unwrap();
        assert!(decision.is_allowed());
        leased += u64::from(decision.is_leased());
        advance(Duration::from_micros(100)).await;
    }
    let requests = store.requests();
    assert_eq!(requests.checks, 7, "the key was cold");
    assert!(leased > 1_900, "{leased} of 2,000");
    assert!(requests.leases < 60, "{requests:?}");
    let counters = api.limiter().lease_counters();
    assert_eq!((counters.hits, counters.held), (leased, 1));

    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.requests().ends, 1, "an idle lease ends");
    assert_eq!(remaining(&api, "a").await, 98_000);
    assert_eq!(api.limiter().lease_counters().held, 0);
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_seldom_checked_are_not_leased() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    for _ in 0..50 {
        assert!(!api.check("a").await.unwrap().is_leased());
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(store.requests(), Requests { checks: 50, leases: 0, ends: 0 });
}

#[tokio::test(start_paused = true)]
async fn checks_wait_for_one_request_and_are_decided_in_their_order() {
    let store = TestStore::new();
    let api = store.leased("token-bucket capacity=40 refill=1/d");
    for _ in 0..7 {
        assert!(api.check("a").await.unwrap().is_allowed());
    }
    store.hold_answers_back();
    let waiting: Vec<_> = (0..40).map(|_| api.check("a").into_future()).collect();
    settle_down().await;
    assert_eq!(store.requests().leases, 1);
    store.answer();
    let mut allowed = Vec::new();
    let mut decisions = waiting.into_iter();
    allowed.push(decisions.next().unwrap().await.unwrap().is_allowed());
    // The answer brings leased units, which admit some of the checks that wait. The next check sends another request.
    store.answer();
    for decision in decisions {
        store.answer();
        allowed.push(decision.await.unwrap().is_allowed());
    }
    let count = allowed.iter().filter(|is_allowed| **is_allowed).count();
    assert!((2..=33).contains(&count), "{count} allowed");
    let first_refused = allowed.iter().position(|is_allowed| !is_allowed).unwrap();
    assert!(first_refused >= 2, "{allowed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_check_does_not_wait_for_an_answer_that_may_come_after_its_deadline() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    for _ in 0..7 {
        assert!(api.check("a").await.unwrap().is_allowed());
    }
    store.hold_answers_back();
    let _asks = api.check("a").into_future();
    let before = store.requests().checks;
    let hurried = api.check("a").within(Duration::from_millis(8));
    assert!(hurried.await.unwrap().is_allowed());
    assert_eq!(store.requests().checks, before + 1);
}

#[tokio::test(start_paused = true)]
async fn the_units_of_a_caller_that_gives_up_waiting_come_back_to_the_lease() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    for _ in 0..7 {
        assert!(api.check("a").await.unwrap().is_allowed());
    }
    store.hold_answers_back();
    let first = api.check("a").into_future();
    let given_up = api.check("a").cost(3).into_future();
    let last = api.check("a").into_future();
    settle_down().await;
    drop(given_up);
    store.answer();
    assert!(first.await.unwrap().is_allowed());
    assert!(last.await.unwrap().is_allowed());
    store.answer();
    store.answer();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(remaining(&api, "a").await, 100_000 - 9);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_check_that_is_to_be_refunded_gives_its_units_back() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    warm_up(&api, "a").await;
    drop(api.check("a").cost(1).refunded_if_dropped().into_future());
    drop(api.check("a").into_future());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(remaining(&api, "a").await, 100_000 - 22);
}

#[tokio::test(start_paused = true)]
async fn a_leased_decision_is_refunded_until_the_store_was_told_of_it() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    warm_up(&api, "a").await;
    let early = api.check("a").await.unwrap().into_receipt().unwrap();
    let late = api.check("a").await.unwrap().into_receipt().unwrap();
    assert_eq!(api.refund("a", early).await.unwrap(), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(api.refund("a", late).await.unwrap(), 0);
    assert_eq!(remaining(&api, "a").await, 100_000 - 22);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_noticed_when_the_lease_is_used_up_and_the_policy_decides() {
    let store = TestStore::new();
    let api = store.leased(BUCKET).on_failure(OnFailure::Closed);
    warm_up(&api, "a").await;
    store.fail(true);
    let mut hits = 0;
    let error = loop {
        match api.check("a").await {
            Ok(decision) => {
                assert!(decision.is_leased());
                hits += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(hits > 0, "the lease is used up first");
    assert_eq!(error, Error::Store(StoreError::Gone));
    let open = api.clone().on_failure(OnFailure::Open);
    assert!(open.check("a").await.unwrap().is_degraded());
    store.fail(false);
    sleep(Duration::from_millis(50)).await;
    assert!(api.check("a").await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn ending_the_leases_or_dropping_the_limiter_gives_the_unused_units_back() {
    let store = TestStore::new();
    let (one, other) = (store.leased(BUCKET), store.leased(BUCKET));
    warm_up(&one, "a").await;
    warm_up(&other, "a").await;
    let strict = store.limiter().scope("api", BUCKET).unwrap();
    assert!(remaining(&strict, "a").await < 100_000 - 42);
    one.limiter().end_leases().await.unwrap();
    drop(other);
    settle_down().await;
    assert_eq!(remaining(&strict, "a").await, 100_000 - 42);
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_ends_the_lease() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    warm_up(&api, "a").await;
    let smaller = api.limiter().scope("api", "token-bucket capacity=1000 refill=1/d").unwrap();
    let smaller = smaller.leased(LeaseOptions::default()).unwrap();
    assert!(!smaller.check("a").await.unwrap().is_leased());
    settle_down().await;
    assert_eq!(store.requests().ends, 1);
}

#[tokio::test(start_paused = true)]
async fn peeks_reservations_and_acquires_ask_the_store() {
    let store = TestStore::new();
    let api = store.leased(BUCKET);
    warm_up(&api, "a").await;
    let before = store.requests().checks;
    assert!(!api.peek("a").await.unwrap().is_leased());
    assert!(!api.check("a").at_us(1_000_000_000).await.unwrap().is_leased());
    assert_eq!(store.requests().checks, before + 2);
}

#[test]
fn a_limit_that_cannot_be_leased_is_an_error_that_says_why() {
    let limiter = tollgate::Limiter::memory();
    let lease = |limit: &str, options| limiter.scope("api", limit).unwrap().leased(options);
    let shaping = "leaky-bucket capacity=5 leak=1/s mode=shaping";
    let error = |result: Result<Scope, Error>| result.unwrap_err();
    assert_eq!(
        error(lease(shaping, LeaseOptions::default())),
        TermsError::Limit(HoldError::Shaping).into()
    );
    let jobs = "concurrency limit=5 for=1s";
    assert_eq!(
        error(lease(jobs, LeaseOptions::default())),
        TermsError::Limit(HoldError::OnlyHolds).into()
    );
    let short = LeaseOptions { lease_for: Duration::from_millis(1), ..LeaseOptions::default() };
    assert_eq!(error(lease(BUCKET, short)), TermsError::LeaseTime(1_000).into());
    let huge = LeaseOptions { max_share_percent: 101, ..LeaseOptions::default() };
    assert_eq!(error(lease(BUCKET, huge)), TermsError::Share(101).into());
    assert!(!lease(BUCKET, LeaseOptions::default()).unwrap().is_leased(), "in memory");
}
