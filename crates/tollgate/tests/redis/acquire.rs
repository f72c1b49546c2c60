//! Waiting for a turn on a server: in real time, so these are short.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{AcquireFuture, AcquireOutcome, Decision, Error, Limiter, Scope};
use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, PATIENCE, Random, named, open, remaining, scope, start, within};

#[tokio::test]
async fn waiters_go_in_arrival_order() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let scope = named(&open(&server), "scope", "token-bucket capacity=5 refill=1/5ms");
        let began = Instant::now();
        scope.check("a").cost(5).await.unwrap();
        let went = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let costs = [5, 1, 3, 1, 1, 4, 2];
        for (index, cost) in costs.into_iter().enumerate() {
            let (scope, went) = (scope.clone(), Arc::clone(&went));
            tasks.spawn(async move {
                assert!(scope.acquire("a").cost(cost).await.unwrap().is_admitted());
                went.lock().unwrap().push(index);
            });
            tokio::task::yield_now().await;
        }
        tasks.join_all().await;
        assert_eq!(*went.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6], "{flavour}");
        // Nobody before its time: 17 units, one every 5 ms.
        assert!(began.elapsed() >= Duration::from_millis(17 * 5), "{flavour}");
        assert_eq!(scope.limiter().waiting(), 0);
    }
}

#[tokio::test]
async fn acquire_that_would_be_late_is_refused_at_once() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let scope = named(&open(&server), "scope", "token-bucket capacity=2 refill=1/h");
        scope.check("a").cost(2).await.unwrap();
        let (one, two) = (scope.clone(), scope.clone());
        let ahead = [
            tokio::spawn(async move { one.acquire("a").await }),
            tokio::spawn(async move { two.acquire("a").await }),
        ];
        while scope.limiter().waiting() < 2 {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let hours = |hours: u64| Duration::from_secs(3_600 * hours);
        let refused = scope.acquire("a").max_wait(hours(2)).await.unwrap();
        assert!(began.elapsed() < PATIENCE / 3);
        let AcquireOutcome::Refused { would_wait, .. } = refused else { panic!("{refused:?}") };
        // Behind two, one an hour.
        let would_wait = would_wait.unwrap();
        assert!(hours(2) < would_wait && would_wait <= hours(3), "{flavour}: {would_wait:?}");
        // One that has the time stays.
        let patient = scope.acquire("a").max_wait(hours(4)).into_future();
        assert!(tokio::time::timeout(Duration::from_millis(20), patient).await.is_err());
        ahead.iter().for_each(|task| task.abort());
        assert_eq!(remaining(&scope, "a").await, 0);
    }
}

/// A unit that comes back lets the first in line go at once, and not when its wait is over.
#[tokio::test]
async fn a_refund_or_a_reset_wakes_the_first_in_line() {
    the_first_in_line_is_woken().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_or_a_reset_on_another_thread_wakes_the_first_in_line() {
    the_first_in_line_is_woken().await;
}

async fn the_first_in_line_is_woken() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        // Not the shaping one, in which a place would stay spent.
        for text in &LIMITS[..5] {
            let scope = named(&limiter, text, text);
            for round in 0..40 {
                let key = round.to_string();
                let receipt = scope.check(&key).cost(100).await.unwrap().into_receipt().unwrap();
                let (waiting, line) = (scope.clone(), key.clone());
                let front = tokio::spawn(async move { waiting.acquire(&line).await });
                while limiter.waiting() == 0 {
                    tokio::task::yield_now().await;
                }
                if round % 2 == 0 {
                    scope.refund(&key, receipt).await.unwrap();
                } else {
                    scope.reset(&key).await.unwrap();
                }
                let acquired = tokio::time::timeout(PATIENCE / 3, front).await;
                assert!(acquired.is_ok(), "{flavour}, {text}, {round}: it waits");
                assert!(acquired.unwrap().unwrap().unwrap().is_admitted());
            }
        }
    }
}

/// An acquire that is dropped after so many polls, if it has not come to its end.
struct Fickle<'a> {
    acquiring: Option<AcquireFuture<'a>>,
    polls_left: u64,
}

impl Future for Fickle<'_> {
    type Output = Option<Result<AcquireOutcome, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls_left == 0 {
            self.acquiring = None;
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        let polled = Pin::new(self.acquiring.as_mut().unwrap()).poll(context);
        context.waker().wake_by_ref();
        polled.map(Some)
    }
}

/// How many of those who acquire one key are told that they may go; the others give up somewhere.
async fn delivered(scope: &Scope, key: &str, random: &mut Random) -> u64 {
    let mut tasks = JoinSet::new();
    for caller in 0..12 {
        let (scope, key) = (scope.clone(), key.to_owned());
        let (polls, yields) = (random.below(40), random.below(10));
        // One has all the time there is, and one has none.
        let polls_left = [u64::MAX, 0].get(caller).copied().unwrap_or(polls);
        tasks.spawn(async move {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            let acquiring = Some(scope.acquire(&key).cost(3).into_future());
            match (Fickle { acquiring, polls_left }).await {
                Some(acquired) => u64::from(acquired.unwrap().is_admitted()),
                None => 0,
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Keys that many have acquired and given up on, and what should remain of each.
async fn given_up(scope: &Scope, seed: u64) -> Vec<(String, u64)> {
    let mut random = Random(seed);
    let mut keys = Vec::new();
    for round in 0..60 {
        let key = format!("key {round}");
        let units = 3 * delivered(scope, &key, &mut random).await;
        assert!((3..36).contains(&units), "{units}");
        keys.push((key, 100 - units));
    }
    keys
}

async fn no_charge_is_lost(text: &str, flavour: Flavour, seed: u64) {
    let server = start(flavour);
    let scope = named(&open(&server), "scope", text);
    for (key, want) in given_up(&scope, seed).await {
        let began = Instant::now();
        // A charge that nobody was told of is refunded when its answer is there.
        while remaining(&scope, &key).await != want {
            assert!(
                began.elapsed() < PATIENCE / 3,
                "{text}: {} of {want}",
                remaining(&scope, &key).await
            );
        }
        for _ in 0..3 {
            assert_eq!(remaining(&scope, &key).await, want, "{text}: refunded more than charged");
        }
    }
    assert_eq!(scope.limiter().waiting(), 0);
}

#[tokio::test]
async fn acquires_that_give_up_anywhere_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..5]) {
        no_charge_is_lost(text, Flavour::Redis, seed * 7_919).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_give_up_on_other_threads_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..5]) {
        no_charge_is_lost(text, Flavour::Valkey, seed * 104_729).await;
    }
}

/// Waits until `remaining` is as wanted, and looks a few times whether it stays so.
async fn assert_comes_back(scope: &Scope, key: &str, want: u64) {
    let began = Instant::now();
    while remaining(scope, key).await != want {
        let left = remaining(scope, key).await;
        assert!(began.elapsed() < PATIENCE / 3, "{}: {left} of {want}", scope.name());
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        assert_eq!(remaining(scope, key).await, want, "{}", scope.name());
    }
}

/// Makes 1,000 checks or acquires of one unit, `at_a_time` at a time, polls each of them once, and drops them in any order.
/// Returns how many were charged and answered at once.
///
/// Nothing should be spent of the key: units that were charged before would hide refunds that give back too little.
async fn drop_all<F: Future>(
    scope: &Scope,
    mut make: impl FnMut() -> F,
    is_charged: impl Fn(F::Output) -> bool,
    at_a_time: usize,
    seed: u64,
) -> u64 {
    let mut random = Random(seed);
    let mut charged = 0;
    let mut under_way = Vec::new();
    for _ in 0..1_000 {
        let mut future = Box::pin(make());
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => charged += u64::from(is_charged(answer)),
            Poll::Pending => under_way.push(future),
        }
        while under_way.len() >= at_a_time || (!under_way.is_empty() && random.below(2) == 0) {
            let at = random.below(under_way.len() as u64) as usize;
            drop(under_way.swap_remove(at));
        }
        // Now and then the answers to all that was sent are there.
        if random.below(20) == 0 {
            let _ = scope.peek("another key").await;
        }
    }
    charged
}

/// A limit with room for 10,000 instead of 100.
fn wide(limiter: &Limiter, text: &str) -> Scope {
    scope(limiter, &text.replace("100", "10000"))
}

async fn drop_acquires(scope: &Scope, seed: u64) -> u64 {
    let make = || scope.acquire("a").into_future();
    let is_charged =
        |answer: Result<AcquireOutcome, Error>| answer.is_ok_and(|it| it.is_admitted());
    drop_all(scope, make, is_charged, 1, seed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_polled_once_and_dropped_are_charged_nothing() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        for text in &LIMITS[..5] {
            let scope = wide(&limiter, text);
            let charged = drop_acquires(&scope, 7_919).await;
            assert_comes_back(&scope, "a", 10_000 - charged).await;
            assert_eq!(limiter.waiting(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refundable_checks_that_are_dropped_are_charged_nothing() {
    let server = start(Flavour::Redis);
    let limiter = open(&server);
    for text in &LIMITS[..5] {
        let scope = wide(&limiter, text);
        let make = || scope.check("a").refunded_if_dropped().into_future();
        let is_charged = |answer: Result<Decision, Error>| answer.unwrap().is_allowed();
        let charged = drop_all(&scope, make, is_charged, 100, 104_729).await;
        assert_comes_back(&scope, "a", 10_000 - charged).await;
    }
}

/// Waits until it is so.
async fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE / 3);
        tokio::task::yield_now().await;
    }
}

/// The deadline passes while the server is frozen, before some answers are dropped and after others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_dropped_answers_come_back_when_the_server_answers_late() {
    let server = start(Flavour::Redis);
    let direct = open(&server);
    for text in &LIMITS[..5] {
        let limiter = within(&server.url(), Duration::from_millis(200));
        let ours = scope(&limiter, text);
        ours.peek("a").await.unwrap();
        server.freeze();
        let check = |_| ours.check("a").refunded_if_dropped().into_future();
        let mut checks: Vec<_> = (0..50).map(check).collect();
        until(|| limiter.health().unwrap().servers[0].waiting < 50).await;
        checks.truncate(25);
        until(|| limiter.health().unwrap().failed > 0).await;
        drop(checks);
        server.thaw();
        // On the same connection, behind the charges.
        while ours.peek("a").await.is_err() {}
        assert_comes_back(&scope(&direct, text), "a", 100).await;
    }
}

/// The order of the refunds is known within a process. Other processes that give up charges to the same bucket at the
/// same time can make some of them stay spent, and never more than those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_give_up_at_the_same_time_are_not_given_more_than_they_were_charged() {
    let server = start(Flavour::Redis);
    let direct = scope(&open(&server), LIMITS[3]);
    let mut processes = JoinSet::new();
    for seed in 1..=4 {
        let scope = scope(&open(&server), LIMITS[3]);
        processes.spawn(async move { drop_acquires(&scope, seed * 7_919).await });
    }
    let charged: u64 = processes.join_all().await.into_iter().sum();
    for _ in 0..1_000 {
        assert!(remaining(&direct, "a").await <= 100 - charged);
    }
}
