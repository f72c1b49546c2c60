//! Holds in memory: what waits for them, and what they cost.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::unwrap_used, unused_must_use)]

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, advance};
use tollgate::{
    AcquireOutcome, Clock, EndedHold, Error, HoldError, Limit, Limiter, ManualClock, Scope,
};

/// Some midnight: a start of every window that divides a day.
const START_US: u64 = 1_699_920_000_000_000;

const LIMITS: [&str; 5] = [
    "fixed-window limit=10 window=1m",
    "sliding-window-log limit=10 window=1m",
    "sliding-window-counter limit=10 window=1m",
    "token-bucket capacity=10 refill=1/s",
    "leaky-bucket capacity=10 leak=1/s mode=policing",
];

fn on_tokios_clock(text: &str) -> Scope {
    let limiter = Limiter::builder().clock(Clock::tokio(START_US)).build();
    limiter.scope("api", text.parse::<Limit>().unwrap()).unwrap()
}

fn on(clock: &ManualClock, text: &str) -> Scope {
    let limiter = Limiter::builder().clock(clock).build();
    limiter.scope("api", text.parse::<Limit>().unwrap()).unwrap()
}

/// A bucket of 1 per second: 4 held units turn into spent ones when the hold expires after 2 s, and drain from then on.
#[tokio::test(start_paused = true)]
async fn acquire_waits_for_the_expiry_of_a_hold_exactly() {
    let scope = on_tokios_clock("token-bucket capacity=10 refill=1/s");
    scope.check("a").cost(6).now().unwrap().into_receipt().unwrap();
    let hold_for = Duration::from_secs(2);
    let hold = scope.reserve("a").cost(4).hold_for(hold_for).now().unwrap().into_hold().unwrap();
    // 6 units drain while 4 are held, then the 4 drain: 8 units are free after 8 s.
    let began = Instant::now();
    let acquired = scope.acquire("a").cost(8).await.unwrap();
    assert!(matches!(acquired, AcquireOutcome::Admitted { .. }));
    assert_eq!(began.elapsed(), Duration::from_secs(8));
    assert_eq!(hold.settle_now(0).unwrap().ended(), Some(EndedHold::Expired));
    drop(scope);
    // A bucket that is all held: nothing drains before the expiry.
    let scope = on_tokios_clock("token-bucket capacity=10 refill=1/s");
    drop(scope.reserve("a").cost(10).hold_for(hold_for).now().unwrap());
    let began = Instant::now();
    scope.acquire("a").cost(1).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

/// The waiter of each key checks again as soon as its units are free.
#[tokio::test(start_paused = true)]
async fn waiters_of_every_key_are_woken_when_a_hold_of_several_limits_ends() {
    for is_released in [true, false] {
        let limiter = Limiter::builder().clock(Clock::tokio(START_US)).build();
        let scope = |name| limiter.scope(name, "fixed-window limit=10 window=1d").unwrap();
        let (first, second) = (scope("first"), scope("second"));
        let parts = [first.reserve("a").cost(10).into(), second.reserve("b").cost(10).into()];
        let hold = limiter.reserve_all_now(&parts).unwrap().into_hold().unwrap();
        let waits = async |scope: &Scope, key: &str| {
            let began = Instant::now();
            scope.acquire(key).cost(5).await.unwrap();
            began.elapsed()
        };
        let ends = async {
            tokio::time::sleep(Duration::from_secs(7)).await;
            match is_released {
                true => hold.release().await.unwrap(),
                false => hold.settle(|_| 5).await.unwrap(),
            };
        };
        let (one, other, ()) = tokio::join!(waits(&first, "a"), waits(&second, "b"), ends);
        assert_eq!([one, other], [Duration::from_secs(7); 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn acquire_with_a_longest_wait_knows_when_holds_expire() {
    for (most_s, is_admitted) in [(2, false), (3, true)] {
        let scope = on_tokios_clock("token-bucket capacity=10 refill=1/s");
        let hold_for = Duration::from_secs(2);
        drop(scope.reserve("a").cost(10).hold_for(hold_for).now().unwrap());
        let acquire = scope.acquire("a").max_wait(Duration::from_secs(most_s));
        match acquire.await.unwrap() {
            AcquireOutcome::Admitted { waited, .. } => {
                assert_eq!((is_admitted, waited), (true, Duration::from_secs(3)));
            }
            AcquireOutcome::Refused { would_wait, .. } => {
                assert_eq!((is_admitted, would_wait), (false, Some(Duration::from_secs(3))));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn settlement_wakes_the_waiter_that_it_makes_room_for() {
    let scope = on_tokios_clock("fixed-window limit=10 window=1h");
    let hold = scope.reserve("a").cost(10).now().unwrap().into_hold().unwrap();
    let began = Instant::now();
    let waiter = tokio::spawn({
        let scope = scope.clone();
        async move { scope.acquire("a").await.map(|_| began.elapsed()) }
    });
    tokio::task::yield_now().await;
    advance(Duration::from_secs(5)).await;
    hold.settle_now(9).unwrap();
    let waited = waiter.await.unwrap().unwrap();
    assert!(waited < Duration::from_secs(6), "{waited:?}");
}

/// `now` and awaiting are one thing, and a reservation may have a time of its own.
#[tokio::test]
async fn reservation_is_decided_at_the_time_given() {
    for text in LIMITS {
        let clock = ManualClock::at_us(START_US);
        let scope = on(&clock, text);
        let later_us = START_US + 1_000_000;
        let hold_for = Duration::from_secs(1);
        let given = scope.reserve("a").cost(3).hold_for(hold_for).at_us(later_us);
        let awaited = given.clone().await.unwrap();
        assert_eq!(awaited.hold().unwrap().expires_at_us(), later_us + 1_000_000, "{text}");
        assert_eq!(given.now().unwrap().decision().remaining(), 4, "{text}");
        let refused = given.now().unwrap().retry_after();
        assert!(refused.is_none(), "{text}");
        assert!(given.now().unwrap().retry_after().is_some(), "{text}: 12 of 10 units");
    }
}

#[test]
fn shaping_limit_cannot_have_holds() {
    let scope = on(&ManualClock::at_us(START_US), "leaky-bucket capacity=10 leak=1/s mode=shaping");
    assert_eq!(scope.reserve("a").now().unwrap_err(), Error::Hold(HoldError::Shaping));
    assert_eq!(scope.peek("a").now().unwrap().remaining(), 10);
}

/// A key that has spent too much to leave a shaping limit is refused by it; it cannot have holds meanwhile.
#[test]
fn key_that_stays_under_a_shaping_limit_is_refused() {
    let limiter = Limiter::builder().clock(&ManualClock::at_us(START_US)).build();
    let scope = |text: &str| limiter.scope("api", text.parse::<Limit>().unwrap()).unwrap();
    scope("leaky-bucket capacity=10 leak=1/s mode=shaping").check("a").cost(9).now().unwrap();
    let smaller = scope("token-bucket capacity=5 refill=1/s");
    let refused = smaller.reserve("a").cost(2).now().unwrap();
    assert!(refused.hold().is_none());
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(6)));
}

/// The holds stay valid, and no more than the smaller limit is admitted beside them.
#[test]
fn limit_lowered_below_what_is_held_refuses_until_holds_have_ended() {
    for text in LIMITS {
        let clock = ManualClock::at_us(START_US);
        let before = on(&clock, text);
        let hold = before.reserve("a").cost(8).now().unwrap().into_hold().unwrap();
        let smaller = text.replace("=10 ", "=5 ").parse::<Limit>().unwrap();
        let after = before.limiter().scope("api", smaller).unwrap();
        assert!(!after.check("a").now().unwrap().is_allowed(), "{text}");
        assert!(!after.reserve("a").now().unwrap().is_allowed(), "{text}");
        assert_eq!(hold.settle_now(3).unwrap().charged_units(), 3, "{text}");
        assert_eq!(after.check("a").now().unwrap().remaining(), 1, "{text}");
    }
}

#[test]
fn threads_reserve_and_settle_no_more_than_the_limit() {
    const THREADS: usize = 8;
    for text in LIMITS {
        let scope = on(&ManualClock::at_us(START_US), &text.replace("=10 ", "=1000 "));
        let start = Barrier::new(THREADS);
        let spend = |thread: usize| {
            start.wait();
            let mut spent = 0;
            for turn in 0..400 {
                let units = 1 + (thread + turn) as u64 % 9;
                let Some(hold) = scope.reserve("a").cost(units).now().unwrap().into_hold() else {
                    continue;
                };
                spent += hold.settle_part_now(units / 3).unwrap().charged_units();
                if turn % 5 > 0 {
                    spent += hold.settle_now(units / 2).unwrap().charged_units();
                } else {
                    hold.release_now().unwrap();
                }
                spent += u64::from(scope.check("a").now().unwrap().is_allowed());
            }
            spent
        };
        let spent: u64 = thread::scope(|threads| {
            let spend = &spend;
            let running: Vec<_> =
                (0..THREADS).map(|thread| threads.spawn(move || spend(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(spent <= 1_000, "{text}: {spent}");
        assert_eq!(scope.peek("a").now().unwrap().remaining(), 1_000 - spent, "{text}");
    }
}

#[test]
fn holds_at_the_ceiling_are_refused_and_never_admitted_without_memory() {
    let clock = ManualClock::at_us(START_US);
    let limiter = Limiter::builder().clock(&clock).max_bytes(1 << 20).build();
    let scope = limiter.scope("api", LIMITS[0]).unwrap();
    let hold_for = Duration::from_secs(30);
    let mut refused = 0;
    for key in 0..20_000 {
        let reserved = scope.reserve(&key.to_string()).hold_for(hold_for).now().unwrap();
        assert_eq!(reserved.is_allowed(), reserved.hold().is_some());
        if !reserved.is_allowed() {
            refused += 1;
            assert!(reserved.retry_after() <= Some(hold_for));
            assert!(reserved.retry_after() > None);
        }
        assert!(limiter.usage().bytes <= 1 << 20);
    }
    assert!(refused > 10_000, "{refused}");
    assert!(limiter.usage().keys > 1_000, "{:?}", limiter.usage());
}
