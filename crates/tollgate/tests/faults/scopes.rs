//! Scopes of one limiter with different failure policies and deadlines.

use std::time::{Duration, Instant};

use tollgate::OnFailure::{Closed, Open};
use tollgate::{BreakerState, Check, Error, JointDecision, Limiter, OnFailure, Scope, StoreError};
use tollgate_launcher::{Flavour, Proxy, Server};

use crate::policy::Fault;
use crate::setup::{
    LIMITS, MARGIN, PATIENCE, SHORT_DEADLINE, at, breaker, builder, limited, named, remaining,
    start, store_error, until_decided, with, within,
};

const LOCAL: OnFailure = OnFailure::Local { processes: Some(2) };
const SMALLER: OnFailure = OnFailure::Local { processes: Some(5) };

const MS: Duration = Duration::from_millis(1);

/// A scope of a limit of 100 with this policy.
fn failing(limiter: &Limiter, name: &str, on_failure: OnFailure) -> Scope {
    limited(limiter, name, 100).on_failure(on_failure)
}

/// Returns a limiter with this policy whose server is dead.
fn on_a_dead_server(on_failure: OnFailure) -> (Server, Limiter) {
    let mut server = start(Flavour::Redis);
    server.kill();
    let limiter = with(&server.url(), on_failure);
    (server, limiter)
}

/// Decides several checks together, by `check_all` and by `batch`.
async fn together(limiter: &Limiter, checks: &[Check<'_>]) -> [Result<JointDecision, Error>; 2] {
    let alone = limiter.check_all(checks).await;
    let mut batch = limiter.batch(&[checks]).await.unwrap();
    [alone, batch.remove(0)]
}

fn timed_out_after<T: std::fmt::Debug>(answer: Result<T, Error>) -> Duration {
    match store_error(answer) {
        StoreError::Timeout { after, .. } => after,
        other => panic!("{other:?}"),
    }
}

/// The timeout of a joint check. Repeats it if a busy machine did not send it in time.
async fn together_time_out_after(limiter: &Limiter, checks: &[Check<'_>]) -> Duration {
    loop {
        let began = Instant::now();
        match store_error(limiter.check_all(checks).await) {
            StoreError::Timeout { after, .. } => {
                assert_took(began, after);
                return after;
            }
            StoreError::Overloaded { .. } => assert_took(began, Duration::ZERO),
            other => panic!("{other:?}"),
        }
    }
}

fn assert_took(began: Instant, at_least: Duration) {
    let took = began.elapsed();
    assert!(at_least <= took && took < at_least + MARGIN, "{took:?}, not {at_least:?}");
}

/// Asserts how every kind of request is decided without the server: on a share of this size, or as an
/// error for `None`.
async fn assert_fails(scope: &Scope, key: &str, share: Option<u64>) {
    let own = [scope.check(key)];
    let [alone, batched] = together(scope.limiter(), &own).await;
    let Some(share) = share else {
        store_error(alone);
        store_error(batched);
        store_error(scope.check(key).await);
        store_error(scope.peek(key).await);
        store_error(scope.acquire(key).max_wait(PATIENCE).await);
        return;
    };
    let acquired = scope.acquire(key).max_wait(PATIENCE).await.unwrap();
    assert!(acquired.is_admitted() && acquired.decision().is_degraded());
    for together in [alone, batched].map(Result::unwrap) {
        assert!(together.is_allowed() && together.is_degraded());
        assert_eq!(together.each()[0].limit(), share);
    }
    for decision in [scope.check(key).await.unwrap(), scope.peek(key).await.unwrap()] {
        assert!(decision.is_allowed() && decision.is_degraded());
        assert_eq!(decision.limit(), share);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_of_one_limiter_follow_their_own_policies_and_recover() {
    for (flavour, fault) in Flavour::ALL
        .into_iter()
        .zip(Fault::ALL)
        .chain([(Flavour::Redis, Fault::Frozen), (Flavour::Valkey, Fault::Killed)])
    {
        let mut server = start(flavour);
        let limiter = with(&server.url(), LOCAL);
        let cases = [
            (limited(&limiter, "unset", 100), Some(50)),
            (failing(&limiter, "open", Open), Some(100)),
            (failing(&limiter, "closed", Closed), None),
            (failing(&limiter, "smaller", SMALLER), Some(20)),
        ];
        for outage in 0..2 {
            for (scope, _) in &cases {
                until_decided(scope).await;
            }
            fault.strike(&mut server);
            for (scope, share) in &cases {
                assert_fails(scope, &outage.to_string(), *share).await;
            }
            fault.end(&mut server);
        }
        for (scope, _) in &cases {
            until_decided(scope).await;
        }
    }
}

/// The second acquire in line cannot read the key's state to forecast its wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_follow_their_scopes_failure_policy() {
    for (limiters, own) in [(Open, Closed), (Closed, Open)] {
        let server = start(Flavour::Redis);
        let limiter = with(&server.url(), limiters);
        let scope = named(&limiter, "scope", "token-bucket capacity=1 refill=1/h").on_failure(own);
        until_decided(&scope).await;
        server.freeze();
        let acquire = || scope.acquire("a").max_wait(PATIENCE).into_future();
        let (first, second) = tokio::join!(acquire(), acquire());
        for answer in [first, second] {
            match own {
                Closed => drop(store_error(answer)),
                _ => assert!(answer.unwrap().is_admitted()),
            }
        }
        assert_eq!(limiter.waiting(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scope_handles_of_one_name_each_use_the_policy_set_last() {
    let (_server, limiter) = on_a_dead_server(Open);
    let first = limited(&limiter, "scope", 100);
    let closed = first.clone().on_failure(Closed);
    assert!(first.check("a").await.unwrap().is_degraded());
    store_error(closed.check("a").await);
    assert!(closed.on_failure(LOCAL).on_failure(Open).check("a").await.unwrap().is_degraded());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_check_uses_the_strictest_failure_policy() {
    let by_strictness = [(Open, Some(100)), (LOCAL, Some(50)), (SMALLER, Some(20)), (Closed, None)];
    for limiters in [Open, Closed] {
        let (_server, limiter) = on_a_dead_server(limiters);
        for (rank, &(strict, share)) in by_strictness.iter().enumerate() {
            for &(other, _) in &by_strictness[..=rank] {
                let scopes = [failing(&limiter, "a", strict), failing(&limiter, "b", other)];
                let key = format!("{strict:?} {other:?}");
                for order in [[0, 1], [1, 0]] {
                    let checks = order.map(|at| scopes[at].check(&key));
                    for answer in together(&limiter, &checks).await {
                        let Some(share) = share else {
                            store_error(answer);
                            continue;
                        };
                        let answer = answer.unwrap();
                        assert!(answer.is_allowed(), "{key}");
                        for each in answer.each() {
                            assert!(each.is_degraded());
                            assert_eq!(each.limit(), share, "{key}");
                        }
                    }
                }
            }
        }
    }
}

/// A scope that sets no policy has its limiter's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scope_without_a_policy_uses_its_limiters_in_a_joint_check() {
    for (limiters, own, is_an_error) in
        [(Closed, Open, true), (Open, Closed, true), (Open, Open, false)]
    {
        let (_server, limiter) = on_a_dead_server(limiters);
        let (unset, with_policy) = (limited(&limiter, "unset", 100), failing(&limiter, "own", own));
        for answer in together(&limiter, &[unset.check("a"), with_policy.check("a")]).await {
            assert_eq!(answer.is_err(), is_an_error, "{limiters:?}, {own:?}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_limit_does_not_change_the_failure_policy() {
    let (_server, limiter) = on_a_dead_server(Closed);
    let [open, local, closed] =
        [Open, LOCAL, Closed].map(|policy| failing(&limiter, &format!("{policy:?}"), policy));
    for answer in together(&limiter, &[open.check("a"), closed.check("a").shadow()]).await {
        let answer = answer.unwrap();
        assert!(answer.is_allowed() && answer.is_degraded());
        assert_eq!(answer.each()[0].limit(), 100);
    }
    for answer in together(&limiter, &[open.check("a").shadow(), closed.check("a")]).await {
        store_error(answer);
    }
    for answer in together(&limiter, &[local.check("a").shadow(), open.check("a")]).await {
        assert!(answer.unwrap().each().iter().all(|each| each.limit() == 100));
    }
}

/// Also when the policy of the scope, or of the limiter, is `Closed`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_of_shadow_limits_alone_never_fails() {
    let (_server, limiter) = on_a_dead_server(Closed);
    let [closed, local] = [Closed, LOCAL].map(|own| failing(&limiter, &format!("{own:?}"), own));
    let unset = limited(&limiter, "unset", 100);
    let cases: [(&[&Scope], u64); 4] =
        [(&[&closed], 100), (&[&unset], 100), (&[&closed, &unset], 100), (&[&closed, &local], 50)];
    for (scopes, share) in cases {
        // A cost above the limit would be refused by an enforced limit.
        let checks: Vec<_> = scopes.iter().map(|own| own.check("a").cost(101).shadow()).collect();
        for answer in together(&limiter, &checks).await {
            let answer = answer.unwrap();
            assert!(answer.is_allowed() && answer.is_degraded());
            assert_eq!(answer.remaining(), None);
            for each in answer.each() {
                assert_eq!((each.is_allowed(), each.limit()), (false, share));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_through_a_scope_uses_the_scopes_deadline() {
    let own = 40 * MS;
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = at(&server.url());
        let scope = named(&limiter, "scope", LIMITS[1]).deadline(own);
        until_decided(&scope).await;
        let without_deadline = named(&limiter, "scope", LIMITS[1]);
        let receipt = without_deadline.check("a").await.unwrap().into_receipt();
        server.freeze();
        let began = Instant::now();
        assert_eq!(timed_out_after(scope.check("a").await), own);
        assert_eq!(timed_out_after(scope.peek("a").await), own);
        assert_eq!(timed_out_after(scope.acquire("a").await), own);
        assert_eq!(timed_out_after(scope.refund("a", receipt.unwrap()).await), own);
        assert_eq!(timed_out_after(scope.reset("a").await), own);
        assert_eq!(timed_out_after(scope.entries("a").await), own);
        for answer in together(&limiter, &[scope.check("a"), scope.check("b")]).await {
            assert_eq!(timed_out_after(answer), own);
        }
        // A caller's shorter deadline still counts.
        assert_eq!(timed_out_after(scope.check("a").within(20 * MS).await), 17 * MS);
        assert_took(began, 8 * own + 17 * MS);
        assert_eq!(breaker(&limiter), BreakerState::Closed, "{flavour}");
        server.thaw();
        until_decided(&scope).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joint_check_uses_the_shortest_deadline_of_its_enforced_limits() {
    let server = start(Flavour::Redis);
    let limiter = within(&server.url(), 300 * MS);
    let unset = limited(&limiter, "unset", 100);
    let [short, long] =
        [100, 900].map(|ms| limited(&limiter, &ms.to_string(), 100).deadline(ms * MS));
    until_decided(&unset).await;
    server.freeze();
    for (checks, want) in [
        (vec![short.check("a"), long.check("a")], 100 * MS),
        (vec![long.check("a"), short.check("a"), unset.check("a")], 100 * MS),
        (vec![unset.check("a"), long.check("a")], 300 * MS),
        (vec![long.check("a"), short.check("a").shadow()], 900 * MS),
        (vec![long.check("a").shadow(), short.check("a")], 100 * MS),
    ] {
        assert_eq!(together_time_out_after(&limiter, &checks).await, want);
        server.thaw();
        until_decided(&unset).await;
        server.freeze();
    }
}

/// Also for requests in the queue. A timeout does not fail the other requests of the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_a_batch_each_keep_their_own_deadline() {
    for is_behind_others in [false, true] {
        let server = start(Flavour::Redis);
        let limiter = at(&server.url());
        let [short, long] =
            [100, 600].map(|ms| limited(&limiter, &ms.to_string(), 100).deadline(ms * MS));
        until_decided(&long).await;
        server.freeze();
        let unset = limited(&limiter, "unset", 1_000);
        let others: Vec<_> = match is_behind_others {
            true => (0..300).map(|_| unset.check("a").into_future()).collect(),
            false => Vec::new(),
        };
        let began = Instant::now();
        let requests = [&long, &short, &long, &short].map(|own| [own.check("a")]);
        let answers = limiter.batch(&requests.each_ref().map(|own| &own[..])).await.unwrap();
        assert_took(began, 600 * MS);
        let timeouts: Vec<_> = answers.into_iter().map(timed_out_after).collect();
        assert_eq!(timeouts, [600, 100, 600, 100].map(|ms| ms * MS), "{is_behind_others}");
        server.thaw();
        for other in others {
            assert!(other.await.unwrap().is_allowed());
        }
        assert_eq!(breaker(&limiter), BreakerState::Closed);
    }
}

/// The server answers within the limiter's deadline, so the scope's timeouts do not count against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_scope_deadline_does_not_open_the_breaker() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = at(&proxy.url());
    let unset = limited(&limiter, "unset", 100);
    let short = limited(&limiter, "short", 100).deadline(MS);
    until_decided(&unset).await;
    proxy.delay(|| 50 * MS);
    let mut failed = 0;
    for _ in 0..30 {
        failed += u64::from(short.check("a").await.is_err());
        assert_eq!(breaker(&limiter), BreakerState::Closed);
    }
    assert!(failed > 5, "{failed}");
    assert!(unset.check("a").await.unwrap().is_allowed());
    assert_eq!(breaker(&limiter), BreakerState::Closed);
    assert_eq!(limiter.health().unwrap().failed, failed);
}

/// The breaker stays closed while the server is too slow for the limiter's deadline but not for the scope's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_deadline_may_exceed_its_limiters() {
    let server = start(Flavour::Valkey);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = within(&proxy.url(), SHORT_DEADLINE);
    let unset = limited(&limiter, "unset", 100);
    let long = limited(&limiter, "long", 100).deadline(PATIENCE);
    until_decided(&long).await;
    proxy.delay(|| 3 * SHORT_DEADLINE);
    for left in (88..100).rev() {
        assert_eq!(long.check("a").await.unwrap().remaining(), left);
        assert_eq!(breaker(&limiter), BreakerState::Closed);
    }
    assert_eq!(together_time_out_after(&limiter, &[unset.check("a")]).await, SHORT_DEADLINE);
}

/// The server is frozen for 1.2 s, longer than a batch delays the next one. All checks with the long deadline are
/// answered once, in flight and in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_deadlines_outlast_a_frozen_server_without_delaying_others() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = within(&server.url(), SHORT_DEADLINE);
        let unset = limited(&limiter, "unset", 100);
        let long = limited(&limiter, "long", 1_000).deadline(PATIENCE);
        until_decided(&long).await;
        server.freeze();
        let answers: Vec<_> = (0..300).map(|_| long.check("a").into_future()).collect();
        let frozen = Instant::now();
        let mut took = Vec::new();
        while frozen.elapsed() < Duration::from_millis(1_200) {
            let began = Instant::now();
            store_error(unset.check("a").await);
            took.push(began.elapsed());
        }
        took.sort();
        assert!(took[took.len() / 2] < 4 * SHORT_DEADLINE, "{flavour}: {took:?}");
        assert!(took.iter().all(|it| *it < SHORT_DEADLINE + MARGIN), "{flavour}: {took:?}");
        server.thaw();
        for answer in answers {
            assert!(answer.await.unwrap().is_allowed(), "{flavour}");
        }
        until_decided(&unset).await;
        assert_eq!(remaining(&long, "a").await, 700, "{flavour}");
    }
}

/// Every check has a deadline of 30 s, and the breaker still opens after five batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_scope_deadlines_do_not_keep_the_breaker_from_opening() {
    let server = start(Flavour::Redis);
    let limiter = builder(&server.url()).deadline(SHORT_DEADLINE).build().unwrap();
    let long = limited(&limiter, "long", 100).deadline(PATIENCE);
    until_decided(&long).await;
    server.freeze();
    let began = Instant::now();
    let mut answers = Vec::new();
    while breaker(&limiter) == BreakerState::Closed {
        // Five batches of a second each, two in flight at a time.
        assert!(began.elapsed() < 3 * Duration::from_secs(1) + MARGIN);
        answers.push(long.check("a").into_future());
        tokio::time::sleep(MS).await;
    }
    assert!(matches!(store_error(long.check("a").await), StoreError::BreakerOpen { .. }));
    server.thaw();
    until_decided(&long).await;
}
