//! Callers that wait in `acquire` while the server fails.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{AcquireOutcome, OnFailure, Redis, Scope};
use tollgate_launcher::Flavour;

use crate::policy::{Fault, LOCAL, POLICIES};
use crate::setup::{
    LIMITS, MARGIN, PATIENCE, SHORT_DEADLINE, at, named, scope, start, until_decided, with,
};

/// Makes `count` acquires of one key at once. Returns their outcomes in the order of arrival.
async fn acquire_all(
    scope: &Scope,
    count: usize,
    max_wait: Option<Duration>,
) -> Vec<AcquireOutcome> {
    let mut line: Vec<_> = (0..count)
        .map(|_| {
            let acquire = scope.acquire("a");
            let acquire = match max_wait {
                Some(max_wait) => acquire.max_wait(max_wait),
                None => acquire,
            };
            Box::pin(acquire.into_future())
        })
        .collect();
    let all = async {
        // Polled in turn, so that they join the line in order.
        let mut done: Vec<Option<AcquireOutcome>> = (0..count).map(|_| None).collect();
        std::future::poll_fn(|context| {
            for (own, done) in line.iter_mut().zip(&mut done) {
                if done.is_none()
                    && let std::task::Poll::Ready(acquired) = own.as_mut().poll(context)
                {
                    *done = Some(acquired.unwrap());
                }
            }
            match done.iter().all(Option::is_some) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
        done.into_iter().flatten().collect()
    };
    tokio::time::timeout(PATIENCE, all).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_are_admitted_at_once_when_the_policy_is_open() {
    for fault in Fault::ALL {
        let mut server = start(Flavour::Redis);
        let limiter = with(&server.url(), OnFailure::Open);
        let scope = named(&limiter, "scope", "token-bucket capacity=1 refill=1/h");
        until_decided(&scope).await;
        fault.strike(&mut server);
        // The breaker is still closed, so with `max_wait` the acquires in line read the key's state from the server
        // to forecast their wait.
        for max_wait in [Some(PATIENCE), None] {
            let began = Instant::now();
            for acquired in acquire_all(&scope, 8, max_wait).await {
                assert!(acquired.is_admitted(), "{fault:?}, {max_wait:?}: {acquired:?}");
                assert!(acquired.decision().is_degraded());
                assert!(acquired.into_receipt().is_none());
            }
            // Each acquire at the front sends one check, and with `max_wait` reads the key's state before.
            assert!(
                began.elapsed() < 9 * SHORT_DEADLINE + MARGIN,
                "{fault:?}: {:?}",
                began.elapsed()
            );
        }
        assert_eq!(limiter.waiting(), 0);
    }
}

/// The share is 1 unit, and another comes back every 100 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_wait_for_the_local_share_when_the_policy_is_local() {
    for fault in Fault::ALL {
        let mut server = start(Flavour::Redis);
        let limiter = with(&server.url(), LOCAL);
        until_decided(&scope(&limiter, LIMITS[0])).await;
        fault.strike(&mut server);
        for (name, max_wait) in [("one", None), ("two", Some(PATIENCE))] {
            let scope = named(&limiter, name, "token-bucket capacity=2 refill=20/s");
            let began = Instant::now();
            let all = acquire_all(&scope, 5, max_wait).await;
            let took = began.elapsed();
            assert!(all.iter().all(AcquireOutcome::is_admitted), "{fault:?}: {all:?}");
            assert!(all.iter().all(|acquired| acquired.decision().is_degraded()));
            // One is admitted at once, and the other four in 400 ms.
            assert!(took >= Duration::from_millis(400), "{fault:?}: {took:?}");
            assert!(
                took < Duration::from_millis(400) + 6 * SHORT_DEADLINE + MARGIN,
                "{fault:?}: {took:?}"
            );
            let waited: Vec<Duration> = all.iter().map(waited).collect();
            assert!(waited.is_sorted(), "{waited:?}");
        }
        // The next unit is an hour away: one acquire is admitted, and the others give up in time.
        let scope = named(&limiter, "three", "token-bucket capacity=2 refill=2/h");
        let max_wait = Duration::from_millis(200);
        let began = Instant::now();
        let all = acquire_all(&scope, 5, Some(max_wait)).await;
        assert!(began.elapsed() < max_wait + 6 * SHORT_DEADLINE + MARGIN, "{:?}", began.elapsed());
        let admitted = all.iter().filter(|acquired| acquired.is_admitted()).count();
        assert_eq!(admitted, 1, "{fault:?}: {all:?}");
        assert_eq!(limiter.waiting(), 0);
    }
}

/// Asserts that five acquires were admitted in order, decided in this process: the first at once, then one every 50 ms.
fn assert_paced(all: &[AcquireOutcome], took: Duration) {
    assert!(all.iter().all(AcquireOutcome::is_admitted), "{all:?}");
    assert!(all.iter().all(|acquired| acquired.decision().is_degraded()), "{all:?}");
    assert!(took >= Duration::from_millis(4 * 50), "{took:?}");
    assert!(all.iter().map(waited).is_sorted(), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_keep_their_pace_in_an_outage_unless_open_was_set() {
    for fault in Fault::ALL {
        let mut server = start(Flavour::Redis);
        let limiter = Redis::at(&server.url()).unwrap().deadline(SHORT_DEADLINE).build().unwrap();
        let paced = named(&limiter, "paced", "token-bucket capacity=1 refill=20/s");
        until_decided(&paced).await;
        fault.strike(&mut server);
        for max_wait in [None, Some(PATIENCE)] {
            let began = Instant::now();
            let all = acquire_all(&paced, 5, max_wait).await;
            assert_paced(&all, began.elapsed());
        }
        let hourly = named(&limiter, "hourly", "token-bucket capacity=1 refill=1/h");
        assert!(hourly.acquire("a").await.unwrap().is_admitted());
        match hourly.acquire("a").max_wait(PATIENCE).await.unwrap() {
            AcquireOutcome::Refused { decision, .. } => {
                assert_eq!(decision.remaining(), 0, "{fault:?}")
            }
            admitted => panic!("{fault:?}: {admitted:?}"),
        }
        // Checks are decided on the same share.
        let refused = hourly.check("a").await.unwrap();
        assert!(refused.is_degraded() && !refused.is_allowed(), "{fault:?}");
        let all = acquire_all(&hourly.on_failure(OnFailure::Open), 5, None).await;
        assert!(all.iter().all(|acquired| acquired.is_admitted()), "{fault:?}: {all:?}");
        fault.end(&mut server);
        until_decided(&paced).await;
        assert!(!paced.acquire("a").await.unwrap().decision().is_degraded(), "{fault:?}");
    }
}

fn waited(acquired: &AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Admitted { waited, .. } => *waited,
        AcquireOutcome::Refused { .. } => panic!("{acquired:?}"),
    }
}

/// Eight acquires are in line when the server fails. The policy decides each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_is_answered_when_the_server_fails() {
    for (fault, policy) in Fault::ALL.into_iter().flat_map(|fault| POLICIES.map(|it| (fault, it))) {
        let mut server = start(Flavour::Redis);
        let direct = at(&server.url());
        let limiter = with(&server.url(), policy);
        let text = "token-bucket capacity=8 refill=8/800ms";
        named(&direct, "scope", text).check("a").cost(8).await.unwrap();
        let scope = named(&limiter, "scope", text);
        until_decided(&scope).await;
        let mut line = JoinSet::new();
        for number in 0..8 {
            let scope = scope.clone();
            line.spawn(async move {
                match number % 2 {
                    0 => scope.acquire("a").cost(3).await,
                    _ => scope.acquire("a").cost(3).max_wait(PATIENCE).await,
                }
            });
        }
        let began = Instant::now();
        while limiter.waiting() < 8 && began.elapsed() < Duration::from_millis(150) {
            tokio::task::yield_now().await;
        }
        fault.strike(&mut server);
        let all = tokio::time::timeout(PATIENCE, line.join_all()).await.unwrap();
        for acquired in all {
            match (policy, acquired) {
                (OnFailure::Closed, answer) => {
                    // Some may have been admitted before the fault.
                    assert!(answer.is_err() || answer.unwrap().is_admitted());
                }
                (_, answer) => assert!(answer.unwrap().is_admitted(), "{fault:?}, {policy:?}"),
            }
        }
        assert_eq!(limiter.waiting(), 0);
        if policy == OnFailure::Closed {
            assert!(limiter.health().unwrap().failed > 0);
        }
    }
}
