//! How a limiter decides by its failure policy while its server is down, and that the server decides again afterwards.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Decision, Limiter, ManualClock, OnFailure, Redis, StoreError};
use tollgate_launcher::{Flavour, Server};

use crate::setup::{
    LIMITS, MARGIN, PATIENCE, SHORT_DEADLINE, at, long_deadline, named, remaining, scope, start,
    store_error, until_decided, with,
};

pub(crate) const LOCAL: OnFailure = OnFailure::Local { processes: Some(2) };
pub(crate) const POLICIES: [OnFailure; 3] = [OnFailure::Open, OnFailure::Closed, LOCAL];

/// A failure of a server, which can be ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Killed,
    Frozen,
}

impl Fault {
    pub(crate) const ALL: [Fault; 2] = [Fault::Killed, Fault::Frozen];

    pub(crate) fn strike(self, server: &mut Server) {
        match self {
            Fault::Killed => server.kill(),
            Fault::Frozen => server.freeze(),
        }
    }

    pub(crate) fn end(self, server: &mut Server) {
        match self {
            Fault::Killed => server.restart().unwrap(),
            Fault::Frozen => server.thaw(),
        }
    }
}

/// Returns every flavour with every fault.
fn faults() -> impl Iterator<Item = (Flavour, Fault)> {
    Flavour::ALL.into_iter().flat_map(|flavour| Fault::ALL.map(|fault| (flavour, fault)))
}

/// Returns a limiter whose server is dead.
fn on_a_dead_server(on_failure: OnFailure) -> (Server, Limiter) {
    let mut server = start(Flavour::Redis);
    server.kill();
    let limiter = with(&server.url(), on_failure);
    (server, limiter)
}

fn parts(decision: &Decision) -> (bool, u64, u64, Option<Duration>, Duration) {
    let (limit, remaining) = (decision.limit(), decision.remaining());
    (decision.is_allowed(), limit, remaining, decision.retry_after(), decision.delay())
}

fn assert_degraded(decision: Decision) {
    assert!(decision.is_degraded() && !decision.is_cached(), "{decision:?}");
    assert!(decision.into_receipt().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_decides_as_if_nothing_were_spent() {
    for (flavour, fault) in faults() {
        let mut server = start(flavour);
        let limiter = with(&server.url(), OnFailure::Open);
        for text in LIMITS {
            let direct = at(&server.url());
            scope(&direct, text).check("a").cost(60).await.unwrap();
        }
        until_decided(&scope(&limiter, LIMITS[0])).await;
        fault.strike(&mut server);
        for text in LIMITS {
            let (own, fresh) = (scope(&limiter, text), scope(&Limiter::memory(), text));
            // Twice the same: nothing is charged.
            for _ in 0..2 {
                let decision = own.check("a").cost(70).await.unwrap();
                assert_eq!(parts(&decision), (true, 100, 30, None, Duration::ZERO), "{text}");
                assert_degraded(decision);
            }
            let peeked = own.peek("a").cost(70).await.unwrap();
            assert_eq!(parts(&peeked), parts(&fresh.peek("a").cost(70).now().unwrap()), "{text}");
            assert_eq!((peeked.remaining(), peeked.reset_after()), (100, Duration::ZERO));
            assert_degraded(peeked);
            // A cost above the limit is refused.
            let too_much = own.check("a").cost(101).await.unwrap();
            assert_eq!(parts(&too_much), (false, 100, 100, None, Duration::ZERO), "{text}");
            assert_degraded(too_much);
        }
    }
}

/// A check or a peek of a key.
type MakeCheck = for<'a> fn(&'a tollgate::Scope, &'a str) -> tollgate::Check<'a>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_decides_several_limits_as_if_nothing_were_spent() {
    let (_server, limiter) = on_a_dead_server(OnFailure::Open);
    let memory = Limiter::memory();
    let checked = |limiter: &Limiter| {
        let (one, two) = (named(limiter, "one", LIMITS[0]), named(limiter, "two", LIMITS[3]));
        (one, two)
    };
    let (one, two) = checked(&limiter);
    let all = [([10, 20], true), ([10, 101], false), ([101, 10], false)];
    // The first part as a check, and as a peek.
    let makers: [MakeCheck; 2] = [|scope, key| scope.check(key), |scope, key| scope.peek(key)];
    let all = all.into_iter().flat_map(|it| makers.map(|make| (it, make)));
    for (nth, ((costs, is_allowed), make)) in all.enumerate() {
        // A new key each time, because the memory limiter charges and an open one does not.
        let key = nth.to_string();
        let (own_one, own_two) = checked(&memory);
        let checks = [make(&own_one, &key).cost(costs[0]), own_two.check(&key).cost(costs[1])];
        let want = memory.check_all_now(&checks).unwrap();
        let checks = [make(&one, "a").cost(costs[0]), two.check("a").cost(costs[1])];
        let alone = limiter.check_all(&checks).await.unwrap();
        let batch = limiter.batch(&[&checks, &checks]).await.unwrap();
        for got in batch.into_iter().map(Result::unwrap).chain([alone]) {
            assert_eq!(got.is_allowed(), is_allowed);
            assert!(got.is_degraded());
            assert_eq!(got.verdict(), want.verdict());
            assert_eq!(got.remaining(), want.remaining(), "{costs:?}");
            assert_eq!(got.refused_by(), want.refused_by());
            for (got, want) in got.into_each().into_iter().zip(want.each()) {
                assert_eq!(parts(&got), parts(want), "{costs:?}");
                assert_degraded(got);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_policy_fails_every_check_peek_and_acquire() {
    for (flavour, fault) in faults() {
        let mut server = start(flavour);
        let limiter = with(&server.url(), OnFailure::Closed);
        let scope = named(&limiter, "scope", LIMITS[0]);
        until_decided(&scope).await;
        fault.strike(&mut server);
        let began = Instant::now();
        for _ in 0..3 {
            store_error(scope.check("a").await);
            store_error(scope.peek("a").await);
            store_error(limiter.check_all(&[scope.check("a"), scope.check("b")]).await);
            store_error(limiter.check_all(&[scope.check("a"), scope.peek("b")]).await);
            let batch = limiter.batch(&[&[scope.check("a")], &[scope.check("b")]]).await.unwrap();
            assert_eq!(batch.len(), 2);
            batch.into_iter().for_each(|answer| drop(store_error(answer)));
            store_error(scope.acquire("a").await);
            store_error(scope.acquire("a").max_wait(PATIENCE).await);
        }
        assert!(began.elapsed() < 21 * SHORT_DEADLINE + MARGIN, "{flavour}, {fault:?}");
        assert_eq!(limiter.waiting(), 0);
    }
}

/// Two processes have a share of 50 each of a limit of 100. Together they admit exactly 100 of 160 concurrent checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_shares_add_up_to_the_limit() {
    for (flavour, fault) in faults() {
        let mut server = start(flavour);
        let limiters = [with(&server.url(), LOCAL), with(&server.url(), LOCAL)];
        for limiter in &limiters {
            until_decided(&scope(limiter, LIMITS[0])).await;
        }
        fault.strike(&mut server);
        for text in LIMITS {
            let mut tasks = JoinSet::new();
            for limiter in &limiters {
                let scope = scope(limiter, text);
                for _ in 0..80 {
                    let scope = scope.clone();
                    tasks.spawn(async move { scope.check("a").await.unwrap() });
                }
            }
            let mut allowed = 0;
            for decision in tasks.join_all().await {
                assert_eq!(decision.limit(), 50);
                allowed += usize::from(decision.is_allowed());
                assert_degraded(decision);
            }
            assert_eq!(allowed, 100, "{flavour}, {fault:?}, {text}");
        }
    }
}

/// Compares every field with the decisions of a memory limiter that has the same clock and the share as its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_decides_like_a_memory_limiter_of_its_share() {
    let mut server = start(Flavour::Redis);
    server.kill();
    for (text, share) in [
        ("fixed-window limit=10 window=1m", "fixed-window limit=5 window=1m"),
        ("sliding-window-log limit=10 window=1m", "sliding-window-log limit=5 window=1m"),
        ("sliding-window-counter limit=11 window=1m", "sliding-window-counter limit=5 window=1m"),
        ("token-bucket capacity=10 refill=1/s", "token-bucket capacity=5 refill=1/2s"),
        (
            "leaky-bucket capacity=10 leak=1/s mode=policing",
            "leaky-bucket capacity=5 leak=1/2s mode=policing",
        ),
        (
            "leaky-bucket capacity=10 leak=1/s mode=shaping",
            "leaky-bucket capacity=5 leak=1/2s mode=shaping",
        ),
    ] {
        let clock = ManualClock::at_us(1_700_000_000_000_000);
        let local = long_deadline(&server.url()).on_failure(LOCAL).clock(&clock).build().unwrap();
        let memory = Limiter::builder().clock(&clock).build();
        let (own, model) = (named(&local, "scope", text), named(&memory, "scope", share));
        for step in 0..60_u64 {
            let cost = 1 + step % 3;
            let got = own.check("a").cost(cost).await.unwrap();
            let want = model.check("a").cost(cost).now().unwrap();
            assert_eq!(got.decided(), want.decided(), "{text}, step {step}");
            assert_degraded(got);
            let got = own.peek("a").cost(cost).await.unwrap();
            let want = model.peek("a").cost(cost).now().unwrap();
            assert_eq!(got.decided(), want.decided(), "{text}, step {step}");
            clock.advance(Duration::from_micros(1_234_567 * (step % 4)));
        }
        // A cost above the share, though not above the limit.
        let never = own.check("a").cost(6).await.unwrap();
        assert_eq!((never.is_allowed(), never.retry_after()), (false, None), "{text}");
    }
}

/// Units spent in one outage are still spent in the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_counters_persist_between_outages() {
    let mut server = start(Flavour::Valkey);
    let limiter = long_deadline(&server.url()).on_failure(LOCAL).build().unwrap();
    for (outage, spent) in [10, 15, 20].into_iter().enumerate() {
        until_decided(&scope(&limiter, LIMITS[0])).await;
        for text in LIMITS {
            let decision = scope(&limiter, text).check("a").await.unwrap();
            // The server has no charges of the outages, and forgets its own when it is killed.
            let why = limiter.health();
            assert_eq!((decision.is_degraded(), decision.remaining()), (false, 99), "{why:?}");
        }
        server.kill();
        for text in LIMITS {
            let decision = scope(&limiter, text).check("a").cost(spent).await.unwrap();
            assert!(decision.is_allowed());
            // The first time, half of the 99 units that remain are left. Later the share has spent more than that.
            assert_eq!(decision.remaining(), [39, 24, 4][outage], "{text}");
            assert_degraded(decision);
        }
        server.restart().unwrap();
    }
    server.kill();
    for text in LIMITS {
        let refused = scope(&limiter, text).check("a").cost(5).await.unwrap();
        assert!(!refused.is_allowed() && refused.is_degraded(), "{text}");
        assert!(scope(&limiter, text).check("a").cost(4).await.unwrap().is_allowed(), "{text}");
    }
}

/// At the ceiling new keys share one state, so a client that invents keys gains at most one limit more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_counters_stay_within_max_bytes() {
    const MAX_BYTES: usize = 1 << 20;
    let mut server = start(Flavour::Redis);
    server.kill();
    let limiter = Redis::at(&server.url()).unwrap().max_bytes(MAX_BYTES);
    let limiter = limiter.on_failure(LOCAL).build().unwrap();
    let scope = named(&limiter, "scope", "fixed-window limit=2 window=366d");
    let mut allowed = 0;
    for key in 0..100_000_u32 {
        allowed += usize::from(scope.check(&key.to_le_bytes()).await.unwrap().is_allowed());
    }
    // A key takes at least 16 bytes for its fingerprint and 8 for what it has spent.
    assert!(allowed <= MAX_BYTES / 24, "{allowed}");
    // No state is dropped to make room.
    assert!(!scope.check(&0_u32.to_le_bytes()).await.unwrap().is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_charges_all_limits_of_a_check_or_none() {
    let (_server, limiter) = on_a_dead_server(LOCAL);
    for text in LIMITS {
        let wide = named(&limiter, &format!("wide {text}"), text);
        let narrow =
            named(&limiter, &format!("narrow {text}"), "fixed-window limit=10 window=366d");
        let checks = [wide.check("a").cost(3), narrow.check("a")];
        for _ in 0..2 {
            let together = limiter.check_all(&checks).await.unwrap();
            assert!(together.is_allowed() && together.is_degraded(), "{text}");
        }
        let batch = limiter.batch(&[&checks[..]; 5]).await.unwrap();
        let batch: Vec<_> = batch.into_iter().map(Result::unwrap).collect();
        let allowed: Vec<bool> = batch.iter().map(|together| together.is_allowed()).collect();
        assert_eq!(allowed, [true, true, true, false, false], "{text}");
        assert_eq!(batch[3].refused_by(), Some(1), "{text}");
        assert!(batch.iter().all(|together| together.is_degraded()));
        // The narrow share of 5 is spent, and 5 times 3 of the wide share of 50: the refused requests charged nothing.
        assert_eq!(remaining(&narrow, "a").await, 0, "{text}");
        assert_eq!(remaining(&wide, "a").await, 35, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_peek_in_a_joint_check_can_refuse_and_is_not_charged() {
    let (_server, limiter) = on_a_dead_server(LOCAL);
    for text in LIMITS {
        let [seen, charged] = ["seen", "charged"].map(|it| {
            let name = format!("{it} {text}");
            named(&limiter, &name, text)
        });
        seen.check("a").cost(20).await.unwrap();
        for (cost, refused_by, left) in [(30, None, [30, 40]), (31, Some(0), [30, 40])] {
            let checks = [seen.peek("a").cost(cost), charged.check("a").cost(10)];
            let together = limiter.check_all(&checks).await.unwrap();
            assert_eq!(together.refused_by(), refused_by, "{text}");
            let remaining: Vec<u64> = together.each().iter().map(Decision::remaining).collect();
            assert_eq!(remaining, left, "{text}");
            together.into_each().into_iter().for_each(assert_degraded);
        }
        assert_eq!(remaining(&seen, "a").await, 30, "{text}");
        assert_eq!(remaining(&charged, "a").await, 40, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_counters_are_separate_for_each_scope_and_key() {
    let (_server, limiter) = on_a_dead_server(LOCAL);
    let scopes = ["one", "two"].map(|name| named(&limiter, name, LIMITS[0]));
    let other = named(&limiter, "three", "fixed-window limit=80 window=366d");
    for scope in &scopes {
        assert_eq!(scope.check("a").cost(50).await.unwrap().remaining(), 0);
        assert_eq!(scope.check("b").cost(20).await.unwrap().remaining(), 30);
        assert!(!scope.check("a").await.unwrap().is_allowed());
    }
    assert_eq!(other.check("a").cost(40).await.unwrap().remaining(), 0);
    // Another scope of the same name has the same counters.
    let again = named(&limiter, "two", LIMITS[0]);
    assert_eq!(remaining(&again, "b").await, 30);
}

/// These cannot be decided without the server, so they are errors under every policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_resets_and_listings_fail_under_every_policy() {
    for (flavour, fault) in faults() {
        let mut server = start(flavour);
        let direct = scope(&at(&server.url()), LIMITS[1]);
        let mut cases = Vec::new();
        for (number, policy) in POLICIES.into_iter().enumerate() {
            let scope = scope(&with(&server.url(), policy), LIMITS[1]);
            let key = number.to_string();
            // On the limiter with the long deadline, because this charge must not fail.
            let receipt = direct.check(&key).cost(7).await.unwrap().into_receipt().unwrap();
            until_decided(&scope).await;
            cases.push((scope, key, receipt));
        }
        fault.strike(&mut server);
        for (scope, key, receipt) in cases {
            let failed = || scope.limiter().health().unwrap().failed;
            let (began, before) = (Instant::now(), failed());
            store_error(scope.refund(&key, receipt).await);
            store_error(scope.reset(&key).await);
            store_error(scope.entries(&key).await);
            assert!(began.elapsed() < 3 * SHORT_DEADLINE + MARGIN, "{flavour}, {fault:?}");
            assert_eq!(failed(), before + 3);
        }
    }
}

/// No caller has to do anything for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_decides_again_when_it_is_back() {
    for (flavour, fault) in faults() {
        let mut server = start(flavour);
        let scopes = POLICIES.map(|policy| scope(&with(&server.url(), policy), LIMITS[0]));
        for _ in 0..2 {
            for scope in &scopes {
                until_decided(scope).await;
            }
            fault.strike(&mut server);
            for scope in &scopes {
                // Enough to open the breaker.
                for _ in 0..7 {
                    assert!(scope.check("a").await.map_or(true, |decision| decision.is_degraded()));
                }
            }
            fault.end(&mut server);
            for scope in &scopes {
                until_decided(scope).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_decisions_are_not_degraded() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for policy in POLICIES {
            let limiter = long_deadline(&server.url()).on_failure(policy).build().unwrap();
            for text in LIMITS {
                let scope = scope(&limiter, text);
                let mut tasks = JoinSet::new();
                for number in 0..110 {
                    let scope = scope.clone();
                    let key = format!("{policy:?}");
                    tasks.spawn(async move {
                        match number % 2 {
                            0 => scope.check(&key).cost(2).await.unwrap(),
                            _ => scope.peek(&key).await.unwrap(),
                        }
                    });
                }
                for decision in tasks.join_all().await {
                    assert!(!decision.is_degraded(), "{flavour}, {text}");
                    assert_eq!(decision.limit(), 100);
                }
                assert_eq!(remaining(&scope, &format!("{policy:?}")).await, 0);
            }
            let health = limiter.health().unwrap();
            assert_eq!((health.failed, health.last_failure), (0, None));
        }
    }
}

/// The deny cache answers for its second, also while the server is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remembered_refusals_are_returned_without_the_server() {
    for policy in POLICIES {
        let mut server = start(Flavour::Redis);
        let limiter = long_deadline(&server.url()).on_failure(policy).build().unwrap();
        let scope = named(&limiter, "scope", LIMITS[0]);
        scope.check("a").cost(100).await.unwrap();
        let began = Instant::now();
        assert!(!scope.check("a").await.unwrap().is_allowed());
        let refused = Instant::now();
        server.kill();
        let mut cached = 0;
        loop {
            let answer = scope.check("a").await;
            // The second counts from before the refused check was sent.
            let is_fresh = began.elapsed() < Duration::from_millis(999);
            match answer {
                Ok(decision) if decision.is_cached() => {
                    assert!(!decision.is_allowed() && !decision.is_degraded());
                    cached += 1;
                }
                _ => {
                    assert!(!is_fresh, "{policy:?}, after {:?}: {answer:?}", began.elapsed());
                    break;
                }
            }
            assert!(refused.elapsed() < MARGIN, "{policy:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(cached > 0 || began.elapsed() > Duration::from_secs(1), "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_counts_every_failure_and_names_the_last() {
    for policy in POLICIES {
        let mut server = start(Flavour::Redis);
        let deadline = Duration::from_millis(500);
        let limiter =
            long_deadline(&server.url()).deadline(deadline).on_failure(policy).build().unwrap();
        let scope = scope(&limiter, LIMITS[1]);
        until_decided(&scope).await;
        let failed = || limiter.health().unwrap().failed;
        let before = failed();
        server.freeze();
        let _ = scope.check("a").await;
        assert_eq!(failed(), before + 1, "{policy:?}");
        let last = limiter.health().unwrap().last_failure;
        let by_kind = limiter.health().unwrap().failed_by_kind;
        assert_eq!(by_kind.iter().find(|(kind, _)| *kind == "timeout").unwrap().1, 1);
        let name = server.url();
        let timeout = StoreError::Timeout { server: name.clone(), after: deadline };
        assert!(last.as_ref().is_some_and(|last| same(last, &timeout)), "{last:?}");
        server.kill();
        let mut want = failed();
        for round in 0..3 {
            let _ = scope.check("a").await;
            let _ = scope.peek("a").await;
            let _ = limiter.check_all(&[scope.check("a"), scope.check("b")]).await;
            let _ = limiter.batch(&[&[scope.check("a")], &[scope.check("b")]]).await;
            let _ = scope.reset("a").await;
            let _ = scope.entries("a").await;
            let _ = scope.acquire("b").await;
            want += 8;
            assert_eq!(failed(), want, "{policy:?}, round {round}");
        }
        let by_kind = limiter.health().unwrap().failed_by_kind;
        assert_eq!(by_kind.iter().map(|(_, count)| count).sum::<u64>(), want, "{by_kind:?}");
        let last = limiter.health().unwrap().last_failure.unwrap();
        // On a slow machine the last failure may have been that of the probe.
        let is_named =
            matches!(last, StoreError::BreakerOpen { .. } | StoreError::Unreachable { .. });
        let text = last.to_string();
        assert!(is_named && text.contains(&server.addr().to_string()), "{text}");
        assert!(text.contains("no connection"), "{text}");
    }
}

/// Whether both are timeouts of the same server after the same time.
fn same(got: &StoreError, want: &StoreError) -> bool {
    match (got, want) {
        (
            StoreError::Timeout { server: got, after },
            StoreError::Timeout { server: want, after: wanted },
        ) => after == wanted && want.contains(got.trim_start_matches("redis://")),
        _ => false,
    }
}

/// The share refills by this process's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_share_refills_during_an_outage() {
    let (_server, limiter) = on_a_dead_server(LOCAL);
    let scope = named(&limiter, "scope", "token-bucket capacity=2 refill=20/s");
    assert!(scope.check("a").await.unwrap().is_allowed());
    let began = Instant::now();
    while !scope.check("a").await.unwrap().is_allowed() {
        assert!(began.elapsed() < Duration::from_millis(100) + MARGIN);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
