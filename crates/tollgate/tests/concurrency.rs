//! Concurrency limits in memory: permits that are dropped, the memory that they take, and limits that change.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{Error, Hold, Limit, Limiter, ManualClock, Scope};

const START_US: u64 = 1_699_920_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn open() -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(START_US);
    let limiter = Limiter::builder().clock(&clock).build();
    (clock, limiter)
}

fn permit(scope: &Scope) -> Option<Hold> {
    scope.reserve("a").now().unwrap().into_hold()
}

fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").now().unwrap().remaining()
}

#[test]
fn permit_is_released_at_once_when_it_is_dropped() {
    let (_, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(2)).unwrap();
    let (first, second) = (permit(&jobs), permit(&jobs));
    assert!(permit(&jobs).is_none());
    drop(first);
    assert_eq!(remaining(&jobs), 1);
    let returns_early = |_permit: Option<Hold>| -> Result<(), Error> { Err(Error::AnswerTaken) };
    returns_early(second).unwrap_err();
    assert_eq!(remaining(&jobs), 2);
    let panics = AssertUnwindSafe(|| {
        let _permit = permit(&jobs);
        assert_eq!(remaining(&jobs), 1);
        panic!("a job that fails");
    });
    catch_unwind(panics).unwrap_err();
    assert_eq!(remaining(&jobs), 2);
}

#[test]
fn answer_that_is_not_read_releases_its_permit() {
    let (_, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(2)).unwrap();
    drop(jobs.reserve("a").into_future());
    drop(jobs.reserve("a").now().unwrap());
    assert_eq!(remaining(&jobs), 2);
}

#[test]
fn permit_that_was_settled_released_or_expired_releases_nothing_when_it_is_dropped() {
    let (clock, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(3).held_for(SECOND)).unwrap();
    permit(&jobs).unwrap().release_now().unwrap();
    assert_eq!(permit(&jobs).unwrap().settle_now(1).unwrap().ended(), None);
    let expired = permit(&jobs);
    clock.advance(SECOND);
    let _open = (permit(&jobs), permit(&jobs));
    drop(expired);
    assert_eq!(remaining(&jobs), 1);
}

/// The middleware and servers keep permits by key: a permit is of its own key and name only.
#[test]
fn permits_of_other_keys_and_names_are_separate() {
    let (_, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(1)).unwrap();
    let other = limiter.scope("other", Limit::concurrent(1)).unwrap();
    let held = [permit(&jobs), permit(&other), jobs.reserve("b").now().unwrap().into_hold()];
    assert!(held.iter().all(Option::is_some));
    let [first, ..] = held;
    drop(first);
    assert_eq!((remaining(&jobs), remaining(&other)), (1, 0));
}

/// The scope's own limit decides whether a dropped hold is released: a hold of a bucket is left to expire, and charged.
#[test]
fn dropped_hold_of_another_limit_is_not_released() {
    let (_, limiter) = open();
    let bucket = limiter.scope("tokens", "token-bucket capacity=10 refill=1/s").unwrap();
    drop(bucket.reserve("a").cost(4).now().unwrap());
    assert_eq!(remaining(&bucket), 6);
}

#[test]
fn keys_of_a_concurrency_limit_take_no_memory_when_nothing_is_held() {
    let (clock, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(2).held_for(SECOND)).unwrap();
    let empty = limiter.usage();
    for key in 0..1_000 {
        let key = key.to_string();
        let hold = jobs.reserve(&key).now().unwrap().into_hold().unwrap();
        assert_eq!(limiter.usage().keys, 1);
        let refused = jobs.reserve(&key).cost(2).now().unwrap();
        assert!(!refused.is_allowed());
        assert_eq!(jobs.peek(&key).now().unwrap().remaining(), 1);
        assert_eq!(jobs.check(&key).now().unwrap_err(), must_reserve());
        drop(hold);
        assert_eq!(limiter.usage(), empty);
        assert!(!jobs.reserve(&key).cost(3).now().unwrap().is_allowed());
        assert_eq!(limiter.usage(), empty);
    }
    // Holds that are not released are removed some time after they have expired.
    let leaked: Vec<_> = (0..1_000).map(|key| jobs.reserve(&key.to_string()).now()).collect();
    std::mem::forget(leaked);
    assert_eq!(limiter.usage().keys, 1_000);
    clock.advance(20 * SECOND);
    for key in 1_000..40_000 {
        std::mem::forget(jobs.reserve(&key.to_string()).now());
        if key % 1_000 == 0 {
            clock.advance(20 * SECOND);
        }
    }
    let keys = limiter.usage().keys;
    assert!(keys < 39_000 / 2, "{keys}");
}

fn must_reserve() -> Error {
    Error::MustReserve { scope: "jobs".into() }
}

/// At the ceiling a reservation is refused, and no open hold is forgotten.
#[test]
fn permits_at_the_ceiling_are_refused_and_never_forgotten() {
    let clock = ManualClock::at_us(START_US);
    let limiter = Limiter::builder().clock(&clock).max_bytes(1 << 20).build();
    let jobs = limiter.scope("jobs", Limit::concurrent(1).held_for(30 * SECOND)).unwrap();
    let mut held = Vec::new();
    let mut refused = 0;
    for key in 0..20_000 {
        let key = key.to_string();
        let reserved = jobs.reserve(&key).now().unwrap();
        assert!(limiter.usage().bytes <= 1 << 20);
        if reserved.is_allowed() {
            held.push((key, reserved));
        } else {
            refused += 1;
            assert!(reserved.retry_after() <= Some(30 * SECOND) && reserved.retry_after() > None);
        }
    }
    assert!(held.len() > 1_000 && refused > 10_000, "{} held, {refused} refused", held.len());
    for (key, _) in &held {
        assert!(!jobs.reserve(key).now().unwrap().is_allowed(), "{key} is held");
    }
    // Their end makes room.
    held.clear();
    assert_eq!(limiter.usage().keys, 0);
    assert!(jobs.reserve("20001").now().unwrap().is_allowed());
}

/// A shaping limit cannot have holds, so a key moves to it when the last permit has ended, and not before.
#[test]
fn key_moves_from_a_concurrency_limit_to_a_shaping_one_after_its_last_permit() {
    let (clock, limiter) = open();
    let jobs = limiter.scope("api", Limit::concurrent(10)).unwrap();
    let shaping = "leaky-bucket capacity=5 leak=1/s mode=shaping";
    let shaping = limiter.scope("api", shaping).unwrap();
    for expires in [false, true] {
        let held = [2, 3].map(|s| {
            let reserved = jobs.reserve("a").hold_for(s * SECOND).now().unwrap();
            reserved.into_hold().unwrap()
        });
        let refused = shaping.check("a").cost(2).now().unwrap();
        assert_eq!(refused.retry_after(), Some(3 * SECOND));
        assert_eq!(shaping.peek("a").now().unwrap().retry_after(), Some(3 * SECOND));
        if expires {
            clock.advance(3 * SECOND - Duration::from_micros(1));
            let refused = shaping.check("a").now().unwrap();
            assert_eq!(refused.retry_after(), Some(Duration::from_micros(1)));
            clock.advance(Duration::from_micros(1));
        } else {
            drop(held);
        }
        let allowed = shaping.check("a").now().unwrap();
        assert_eq!((allowed.is_allowed(), allowed.remaining()), (true, 4));
        clock.advance(20 * SECOND);
    }
}

/// Waiting would need the place of a waiter to be released by its caller: `acquire` says so at once.
#[test]
fn acquire_of_a_concurrency_limit_is_an_error_at_the_first_poll() {
    let (_, limiter) = open();
    let jobs = limiter.scope("jobs", Limit::concurrent(1)).unwrap();
    let _held = permit(&jobs);
    let mut acquire = pin!(jobs.acquire("a").into_future());
    let answer = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(answer, Poll::Ready(Err(must_reserve())));
    assert_eq!(limiter.waiting(), 0);
}
