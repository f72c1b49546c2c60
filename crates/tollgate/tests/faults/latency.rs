//! Late replies: a caller gets a correct decision, or a failure by its deadline.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Error, OnFailure, StoreError};
use tollgate_launcher::{Flavour, Proxy};

use crate::setup::{
    LIMITS, MARGIN, Random, at, long_deadline, named, remaining, scope, start, until_decided,
};

/// Replies are up to 8 ms late, and nothing fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jitter_within_the_deadline_changes_nothing() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let proxy = Proxy::start(server.addr()).unwrap();
        let limiter = long_deadline(&proxy.url()).build().unwrap();
        let mut random = Random(7);
        proxy.delay(move || Duration::from_micros(random.below(8_001)));
        let mut tasks = JoinSet::new();
        for text in LIMITS {
            let scope = scope(&limiter, text);
            tasks.spawn(async move {
                // Queued one after the other, and decided in that order.
                let answers: Vec<_> =
                    (0..120).map(|_| scope.check("in order").into_future()).collect();
                for (number, answer) in answers.into_iter().enumerate() {
                    let decision = answer.await.unwrap();
                    assert_eq!(decision.is_allowed(), number < 100, "{text}");
                    assert_eq!(decision.remaining(), 100_u64.saturating_sub(number as u64 + 1));
                    assert!(!decision.is_degraded());
                }
            });
            let limiter = limiter.clone();
            tasks.spawn(async move {
                // From many tasks at once: each of 99 to 0 remains exactly once.
                let scope = named(&limiter, text, text);
                let mut racing = JoinSet::new();
                for _ in 0..120 {
                    let scope = scope.clone();
                    racing.spawn(async move { scope.check("racing").await.unwrap() });
                }
                let decisions = racing.join_all().await;
                let allowed = decisions.iter().filter(|decision| decision.is_allowed());
                let left: HashSet<u64> = allowed.map(|decision| decision.remaining()).collect();
                assert_eq!(left, (0..100).collect(), "{text}");
            });
        }
        tasks.join_all().await;
        let health = limiter.health().unwrap();
        assert_eq!((health.failed, health.last_failure), (0, None), "{flavour}");
    }
}

/// Replies are up to two deadlines late. A reply that is too late is an error in time, and no two allowed checks report
/// the same `remaining`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_around_the_deadline_are_correct_or_an_error_in_time() {
    const DEADLINE: Duration = Duration::from_millis(40);
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let proxy = Proxy::start(server.addr()).unwrap();
        let limiter = long_deadline(&proxy.url()).deadline(DEADLINE).build().unwrap();
        until_decided(&scope(&limiter, LIMITS[0])).await;
        let mut random = Random(11);
        proxy.delay(move || 2 * DEADLINE * random.below(1_001) as u32 / 1_000);
        let mut tasks = JoinSet::new();
        for (number, text) in LIMITS.into_iter().enumerate() {
            for _ in 0..4 {
                let scope = scope(&limiter, text);
                tasks.spawn(async move {
                    let (mut left, mut in_doubt) = (Vec::new(), 0_u64);
                    for _ in 0..40 {
                        let began = Instant::now();
                        let answer = scope.check("a").await;
                        assert!(began.elapsed() < DEADLINE + MARGIN, "{:?}", began.elapsed());
                        match answer {
                            Ok(decision) if decision.is_allowed() => {
                                assert!(!decision.is_degraded());
                                left.push(decision.remaining());
                            }
                            Ok(refused) => assert_eq!(refused.remaining(), 0),
                            Err(Error::Store(
                                StoreError::Timeout { .. } | StoreError::Unreachable { .. },
                            )) => in_doubt += 1,
                            Err(Error::Store(
                                StoreError::BreakerOpen { .. } | StoreError::Overloaded { .. },
                            )) => tokio::time::sleep(Duration::from_millis(10)).await,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    // Decisions for one caller come in order.
                    assert!(left.is_sorted_by(|one, next| one > next), "{left:?}");
                    (number, left, in_doubt)
                });
            }
        }
        let mut all = LIMITS.map(|_| (Vec::new(), 0));
        for (number, left, in_doubt) in tasks.join_all().await {
            all[number].0.extend(left);
            all[number].1 += in_doubt;
        }
        proxy.pass();
        assert!(limiter.health().unwrap().failed > 0);
        let direct = at(&server.url());
        for (text, (left, in_doubt)) in LIMITS.into_iter().zip(all) {
            let allowed = left.len() as u64;
            let different: HashSet<u64> = left.into_iter().collect();
            assert_eq!(different.len() as u64, allowed, "{flavour}, {text}");
            let spent = 100 - remaining(&scope(&direct, text), "a").await;
            assert!((allowed..=allowed + in_doubt).contains(&spent), "{flavour}, {text}");
        }
    }
}

/// The same under the policy `Open`, which decides instead of a late server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_policy_marks_decisions_degraded_when_replies_are_late() {
    const DEADLINE: Duration = Duration::from_millis(40);
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = long_deadline(&proxy.url()).deadline(DEADLINE).on_failure(OnFailure::Open);
    let limiter = limiter.build().unwrap();
    let scope = scope(&limiter, LIMITS[0]);
    until_decided(&scope).await;
    let failed_before = limiter.health().unwrap().failed;
    let mut random = Random(13);
    proxy.delay(move || 2 * DEADLINE * random.below(1_001) as u32 / 1_000);
    let (mut decided, mut degraded) = (0_u64, 0_u64);
    for _ in 0..60 {
        let decision = scope.check("a").await.unwrap();
        match decision.is_degraded() {
            true => degraded += 1,
            false => decided += 1,
        }
        // 60 checks fit in the limit of 100.
        assert!(decision.is_allowed());
    }
    assert_eq!(limiter.health().unwrap().failed, failed_before + degraded);
    let spent = 100 - remaining(&named(&at(&server.url()), LIMITS[0], LIMITS[0]), "a").await;
    assert!((decided..=60).contains(&spent), "{decided} of {spent}");
}
