//! Waiting for a turn on a server: in real time, so these are short.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Acquired, Acquiring, Error, Scope};
use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, PATIENCE, Random, named, open, remaining, start};

#[tokio::test]
async fn those_that_wait_go_in_the_order_they_came() {
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
async fn one_whose_turn_would_come_too_late_is_told_at_once() {
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
        let Acquired::Refused { would_wait, .. } = refused else { panic!("{refused:?}") };
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
#[ignore = "fails now and then: a check can overtake, on another thread, the refund that woke it"]
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
    acquiring: Option<Acquiring<'a>>,
    polls_left: u64,
}

impl Future for Fickle<'_> {
    type Output = Option<Result<Acquired, Error>>;

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
async fn those_that_give_up_anywhere_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..3]) {
        no_charge_is_lost(text, Flavour::Redis, seed * 7_919).await;
    }
}

/// Of a bucket, refunds that overtake each other lose some: units charged since count against one
/// that comes late, also if they were refunded.
#[tokio::test]
async fn of_a_bucket_those_that_give_up_are_not_given_more_than_they_were_charged() {
    for (seed, text) in (1..).zip(&LIMITS[3..5]) {
        let server = start(Flavour::Redis);
        let scope = named(&open(&server), "scope", text);
        for (key, most) in given_up(&scope, seed * 7_919).await {
            let left = remaining(&scope, &key).await;
            assert!(left <= most, "{text}: {left} of {most}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_give_up_on_other_threads_are_charged_nothing() {
    for (seed, text) in (1..).zip(&LIMITS[..3]) {
        no_charge_is_lost(text, Flavour::Valkey, seed * 104_729).await;
    }
}
