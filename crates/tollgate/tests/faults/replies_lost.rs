//! A charge whose reply is lost is never sent again, and its caller gets an answer in time.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Error, OnFailure, StoreError};
use tollgate_launcher::{Flavour, Proxy};

use crate::setup::{
    LIMITS, MARGIN, PATIENCE, Random, at, long_deadline, named, remaining, scope, scripts_run,
    start, until, until_decided,
};

const DEADLINE: Duration = Duration::from_millis(400);

/// How a reply is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Swallowed,
    CutBefore,
    CutWithin,
}

impl Loss {
    const ALL: [Loss; 3] = [Loss::Swallowed, Loss::CutBefore, Loss::CutWithin];

    fn lose_next_reply(self, proxy: &Proxy) {
        match self {
            Loss::Swallowed => proxy.drop_replies(1),
            Loss::CutBefore => proxy.cut_after_request(1),
            Loss::CutWithin => proxy.cut_mid_reply(1),
        }
    }
}

/// Under every failure policy. The next check is decided on a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_is_charged_once_when_its_reply_is_lost() {
    let losses = Flavour::ALL.into_iter().flat_map(|flavour| Loss::ALL.map(|it| (flavour, it)));
    let mut tasks = JoinSet::new();
    for (flavour, loss) in losses {
        tasks.spawn(lose_replies_one_by_one(flavour, loss));
    }
    tasks.join_all().await;
}

async fn lose_replies_one_by_one(flavour: Flavour, loss: Loss) {
    let server = start(flavour);
    let proxy = Proxy::start(server.addr()).unwrap();
    let policies = [OnFailure::Closed, OnFailure::Open, OnFailure::Local { processes: Some(2) }];
    let mut charged = Vec::new();
    for policy in policies {
        let limiter =
            long_deadline(&proxy.url()).deadline(DEADLINE).on_failure(policy).build().unwrap();
        // The algorithm has no part in this, so two limits are enough for the other policies.
        let limits = if policy == OnFailure::Closed { &LIMITS[..] } else { &LIMITS[..2] };
        for (number, text) in limits.iter().enumerate() {
            let (scope, key) = (scope(&limiter, text), format!("{policy:?} {number}"));
            until_decided(&scope).await;
            let (cost, connections) = (7 + number as u64, proxy.connections());
            loss.lose_next_reply(&proxy);
            let began = Instant::now();
            let answer = scope.check(&key).cost(cost).await;
            assert!(began.elapsed() < DEADLINE + MARGIN, "{flavour}, {loss:?}");
            match (policy, answer) {
                (OnFailure::Closed, Err(Error::Store(error))) => match (loss, error) {
                    (_, StoreError::Timeout { after, .. }) => assert_eq!(after, DEADLINE),
                    (Loss::CutBefore | Loss::CutWithin, StoreError::Unreachable { .. }) => {}
                    (_, error) => panic!("{loss:?}: {error:?}"),
                },
                (OnFailure::Closed, answer) => panic!("{loss:?}: {answer:?}"),
                (_, answer) => assert!(answer.unwrap().is_degraded()),
            }
            until_decided(&scope).await;
            assert!(proxy.connections() > connections, "{flavour}, {loss:?}");
            charged.push((text, key, cost));
        }
    }
    // The server ran each script that passed the proxy exactly once.
    assert_eq!(proxy.scripts_passed(), scripts_run(&server), "{flavour}, {loss:?}");
    let direct = at(&server.url());
    for (text, key, cost) in charged {
        let left = remaining(&scope(&direct, text), &key).await;
        assert_eq!(left, 100 - cost, "{flavour}, {loss:?}, {text}");
    }
}

/// How the checks of one task of the load below ended.
struct Tally {
    own: u64,
    allowed: u64,
    /// Failed, and may have been charged.
    in_doubt: u64,
}

/// Every seventh reply is lost. Each of 16 callers has its own limit, key and cost, so that a decision
/// for another caller would be noticed. All allowed checks are charged, and checks in doubt may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_under_load_cause_no_double_charge_and_no_mixed_up_answer() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let proxy = Proxy::start(server.addr()).unwrap();
        let limiter = long_deadline(&proxy.url()).deadline(DEADLINE).build().unwrap();
        until_decided(&scope(&limiter, LIMITS[0])).await;
        let mut tasks = JoinSet::new();
        for own in 1..=16_u64 {
            let limit = format!("fixed-window limit={} window=366d", 100_000 + own);
            let scope = named(&limiter, &own.to_string(), &limit);
            tasks.spawn(async move {
                let mut tally = Tally { own, allowed: 0, in_doubt: 0 };
                let (began, key) = (Instant::now(), format!("key {own}"));
                let mut spent = 0;
                while tally.allowed < 100 {
                    assert!(began.elapsed() < PATIENCE, "{}", tally.allowed);
                    let sent = Instant::now();
                    let answer = scope.check(&key).cost(own).await;
                    assert!(sent.elapsed() < DEADLINE + MARGIN, "{:?}", sent.elapsed());
                    match answer {
                        Ok(decision) => {
                            assert!(decision.is_allowed() && !decision.is_degraded());
                            assert_eq!(decision.limit(), 100_000 + own);
                            let now_spent = 100_000 + own - decision.remaining();
                            assert_eq!(now_spent % own, 0);
                            tally.allowed += 1;
                            // One more cost, and any earlier checks in doubt that were charged.
                            assert!(now_spent >= spent + own);
                            assert!(now_spent <= own * (tally.allowed + tally.in_doubt));
                            spent = now_spent;
                        }
                        Err(Error::Store(
                            StoreError::Timeout { .. } | StoreError::Unreachable { .. },
                        )) => tally.in_doubt += 1,
                        Err(Error::Store(
                            StoreError::BreakerOpen { .. } | StoreError::Overloaded { .. },
                        )) => tokio::time::sleep(Duration::from_millis(1)).await,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                tally
            });
        }
        let mut tallies = Vec::new();
        let (mut random, mut next) = (Random(42), proxy.scripts_passed() + 7);
        while !tasks.is_empty() {
            if proxy.scripts_passed() >= next {
                // `Swallowed` would silence its connection for a second, so it is left out.
                match random.below(2) {
                    0 => Loss::CutBefore.lose_next_reply(&proxy),
                    _ => Loss::CutWithin.lose_next_reply(&proxy),
                }
                next = proxy.scripts_passed() + 7;
            }
            tallies.extend(tasks.try_join_next().map(Result::unwrap));
            tokio::task::yield_now().await;
        }
        proxy.pass();
        assert!(proxy.connections_cut() > 0);
        assert!(tallies.iter().any(|tally| tally.in_doubt > 0));
        // A request may have been on its way to the server when the connection was cut.
        assert!(scripts_run(&server) <= proxy.scripts_passed(), "{flavour}");
        let direct = at(&server.url());
        for Tally { own, allowed, in_doubt } in tallies {
            let limit = format!("fixed-window limit={} window=366d", 100_000 + own);
            let scope = named(&direct, &own.to_string(), &limit);
            let spent = 100_000 + own - remaining(&scope, &format!("key {own}")).await;
            assert!((allowed * own..=(allowed + in_doubt) * own).contains(&spent), "{flavour}");
        }
    }
}

/// 60 checks share the batch whose reply is lost. Each caller gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_check_of_a_batch_is_charged_once_when_its_reply_is_lost() {
    for (flavour, loss) in
        Flavour::ALL.into_iter().flat_map(|flavour| Loss::ALL.map(|it| (flavour, it)))
    {
        let server = start(flavour);
        let proxy = Proxy::start(server.addr()).unwrap();
        let limiter = long_deadline(&proxy.url()).deadline(DEADLINE).build().unwrap();
        let scope = scope(&limiter, LIMITS[0]);
        until_decided(&scope).await;
        loss.lose_next_reply(&proxy);
        let own = scope.clone();
        let put = async move {
            let check = |number: u64| own.check(&number.to_string()).cost(1 + number).into_future();
            (0..60).map(check).collect::<Vec<_>>()
        };
        for answer in tokio::spawn(put).await.unwrap() {
            assert!(answer.await.is_err(), "{flavour}, {loss:?}");
        }
        until_decided(&scope).await;
        assert_eq!(proxy.scripts_passed(), scripts_run(&server), "{flavour}, {loss:?}");
        for number in 0..60 {
            let left = remaining(&scope, &number.to_string()).await;
            assert_eq!(left, 99 - number, "{flavour}, {loss:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_charge_stays_spent_when_its_reply_is_lost() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let scope = scope(&at(&proxy.url()), LIMITS[3]);
    until_decided(&scope).await;
    proxy.cut_after_request(1);
    let lost = scope.check("a").cost(7).refunded_if_dropped().into_future();
    until("the connection is cut", || proxy.connections_cut() == 1).await;
    drop(lost);
    until_decided(&scope).await;
    assert_eq!(remaining(&scope, "a").await, 93);
    // Later charges still come back.
    drop(scope.check("a").cost(5).refunded_if_dropped().into_future());
    let began = Instant::now();
    while remaining(&scope, "a").await != 93 {
        assert!(began.elapsed() < PATIENCE / 3);
    }
}
