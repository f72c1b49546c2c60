//! Waiting in `acquire` on a server, in real time, so the waits are short.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{AcquireFuture, AcquireOutcome, Decision, Error, Limiter, Scope};
use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, PATIENCE, Random, named, open, remaining, scope, start, within};

#[tokio::test]
async fn waiters_are_admitted_in_arrival_order() {
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
        // None is admitted early: 17 units come back, one every 5 ms.
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
        // Behind two waiters, with one unit an hour.
        let would_wait = would_wait.unwrap();
        assert!(hours(2) < would_wait && would_wait <= hours(3), "{flavour}: {would_wait:?}");
        // An acquire with a longer `max_wait` stays in line.
        let later = scope.acquire("a").max_wait(hours(4)).into_future();
        assert!(tokio::time::timeout(Duration::from_millis(20), later).await.is_err());
        ahead.iter().for_each(|task| task.abort());
        assert_eq!(remaining(&scope, "a").await, 0);
    }
}

/// The first waiter is admitted when units are given back, before its own wait is over.
#[tokio::test]
async fn refund_or_reset_wakes_the_first_waiter() {
    assert_first_waiter_is_woken().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refund_or_reset_wakes_the_first_waiter_on_another_thread() {
    assert_first_waiter_is_woken().await;
}

async fn assert_first_waiter_is_woken() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        // Without the shaping limit, which refunds only its last charge.
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
                assert!(acquired.is_ok(), "{flavour}, {text}, {round}: the waiter was not woken");
                assert!(acquired.unwrap().unwrap().unwrap().is_admitted());
            }
        }
    }
}

/// An acquire that is dropped after `polls_left` polls, unless it ends before.
struct DroppedAfterPolls<'a> {
    acquiring: Option<AcquireFuture<'a>>,
    polls_left: u64,
}

impl Future for DroppedAfterPolls<'_> {
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

/// Makes 12 acquires of one key, and drops most of them at random points. Returns how many were admitted.
async fn admitted(scope: &Scope, key: &str, random: &mut Random) -> u64 {
    let mut tasks = JoinSet::new();
    for caller in 0..12 {
        let (scope, key) = (scope.clone(), key.to_owned());
        let (polls, yields) = (random.below(40), random.below(10));
        // The first is never dropped; the second is dropped before its first poll.
        let polls_left = [u64::MAX, 0].get(caller).copied().unwrap_or(polls);
        tasks.spawn(async move {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            let acquiring = Some(scope.acquire(&key).cost(3).into_future());
            match (DroppedAfterPolls { acquiring, polls_left }).await {
                Some(acquired) => u64::from(acquired.unwrap().is_admitted()),
                None => 0,
            }
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Makes and drops acquires of 60 keys. Returns each key and what should remain of it.
async fn drop_at_random(scope: &Scope, seed: u64) -> Vec<(String, u64)> {
    let mut random = Random(seed);
    let mut keys = Vec::new();
    for round in 0..60 {
        let key = format!("key {round}");
        let units = 3 * admitted(scope, &key, &mut random).await;
        assert!((3..36).contains(&units), "{units}");
        keys.push((key, 100 - units));
    }
    keys
}

async fn assert_dropped_acquires_are_refunded(text: &str, flavour: Flavour, seed: u64) {
    let server = start(flavour);
    let scope = named(&open(&server), "scope", text);
    for (key, want) in drop_at_random(&scope, seed).await {
        let began = Instant::now();
        // A charge whose acquire was dropped is refunded when its answer comes.
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
async fn acquires_dropped_after_any_poll_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..5]) {
        assert_dropped_acquires_are_refunded(text, Flavour::Redis, seed * 7_919).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_dropped_on_other_threads_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..5]) {
        assert_dropped_acquires_are_refunded(text, Flavour::Valkey, seed * 104_729).await;
    }
}

/// Waits until `want` units remain, and asserts that this does not change any more.
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

/// Makes 1,000 checks or acquires of one unit, at most `at_a_time` at once, polls each once, and drops them in random
/// order. Returns how many were charged and answered at the first poll.
///
/// Nothing may be spent of the key before, or the test would not notice refunds that give back too little.
async fn drop_all<F: Future>(
    scope: &Scope,
    mut make: impl FnMut() -> F,
    is_charged: impl Fn(F::Output) -> bool,
    at_a_time: usize,
    seed: u64,
) -> u64 {
    let mut random = Random(seed);
    let mut charged = 0;
    let mut pending = Vec::new();
    for _ in 0..1_000 {
        let mut future = Box::pin(make());
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => charged += u64::from(is_charged(answer)),
            Poll::Pending => pending.push(future),
        }
        while pending.len() >= at_a_time || (!pending.is_empty() && random.below(2) == 0) {
            let at = random.below(pending.len() as u64) as usize;
            drop(pending.swap_remove(at));
        }
        // Sometimes wait until everything sent so far is answered.
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
async fn acquires_dropped_after_one_poll_are_charged_nothing() {
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
async fn dropped_refundable_checks_are_charged_nothing() {
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

/// Waits until `is_so` returns true.
async fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE / 3);
        tokio::task::yield_now().await;
    }
}

/// The deadline passes while the server is frozen, before some answers are dropped and after others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_charges_are_refunded_when_the_server_answers_late() {
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
        // The peek is behind the charges on the same connection.
        while ours.peek("a").await.is_err() {}
        assert_comes_back(&scope(&direct, text), "a", 100).await;
    }
}

/// Within a process refunds are made in the right order. Processes that refund charges of the same bucket at the same
/// time can leave some units spent, but never get back too many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_processes_get_back_no_more_than_they_were_charged() {
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
