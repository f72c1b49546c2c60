//! P9 on a server: every key expires, and not too early.

use redis::Connection;
use tollgate::{Check, Limit, Scope};
use tollgate_launcher::Flavour;

use crate::setup::{PATIENCE, admin, builder, kept, key_with, keys, named, open, start, time_us};

const S: i64 = 1_000_000;

/// The longest time that a key is kept after nothing of it is spent. It is an hour longer when the caller gives the
/// time.
const SPARE_US: i64 = 11 * S;
const HOUR_US: i64 = 3_600 * S;

/// A millisecond for the server's rounding, and one for ours.
const ROUNDING_US: i64 = 2_000;

/// Every algorithm, with short and long windows, and with rates that divide evenly and that do not.
const LIMITS: [&str; 11] = [
    "fixed-window limit=1000 window=1h",
    "fixed-window limit=1000 window=1000ms",
    "sliding-window-log limit=1000 window=1h",
    "sliding-window-log limit=1000 window=7ms",
    "sliding-window-counter limit=1000 window=1h",
    "sliding-window-counter limit=1000 window=1s",
    "token-bucket capacity=1000 refill=1/s",
    "token-bucket capacity=1000 refill=7/3ms",
    "leaky-bucket capacity=1000 leak=1/s mode=policing",
    "leaky-bucket capacity=1000 leak=1/s mode=shaping",
    "leaky-bucket capacity=1000 leak=1000/366d mode=shaping",
];

/// The clock that decides.
#[derive(Clone, Copy, Debug)]
enum Time {
    Server,
    CallersUs(u64),
}

impl Time {
    fn of(self, check: Check<'_>) -> Check<'_> {
        match self {
            Time::Server => check,
            Time::CallersUs(at_us) => check.at_us(at_us),
        }
    }
}

/// How much longer than that a key may live, so that not every charge has to set its expiry: one window for a
/// counter, up to 8 s for a bucket.
fn step_us(limit: &Limit) -> i64 {
    match limit {
        Limit::SlidingWindowCounter(limit) => i64::try_from(limit.window_us()).unwrap(),
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => 8 * S,
        _ => 0,
    }
}

/// Asserts that the key of `id` expires in time. It was last written between `from_us` and now.
async fn assert_expires(admin: &mut Connection, scope: &Scope, id: &str, time: Time, from_us: i64) {
    let key = key_with(admin, &format!("{{{id}}}"));
    let before_us = time_us(admin);
    let peeked = time.of(scope.peek(id)).await.unwrap();
    let reset_after_us = i64::try_from(peeked.reset_after().as_micros()).unwrap();
    let to_us = time_us(admin);
    let ends_us = kept(admin, key.as_bytes()).ends_ms * 1_000;
    let (least_us, most_us) = match time {
        // The peek was between these two times; its `reset_after` is when nothing is spent any more.
        Time::Server => (before_us + reset_after_us, to_us + reset_after_us + SPARE_US),
        // The caller's time is the same each time, so `reset_after` counts from when the key was written.
        Time::CallersUs(_) => {
            let spare_us = SPARE_US + HOUR_US;
            (from_us + reset_after_us + HOUR_US, to_us + reset_after_us + spare_us)
        }
    };
    // A `reset_after` of 0 does not say when it was reached.
    let most_us = if reset_after_us == 0 { to_us + HOUR_US + SPARE_US } else { most_us };
    let most_us = most_us + step_us(scope.limit());
    let context = format!("{key}, {time:?}, {reset_after_us} us to the reset");
    assert!(ends_us > to_us, "{context}: expired");
    assert!(ends_us >= least_us, "{context}: {} us too early", least_us - ends_us);
    // An expiry counts from the time of its command. On a busy machine that is later than the time that the script has read,
    // but not later than the whole operation took.
    let took_us = before_us - from_us;
    let late_us = ends_us - most_us - ROUNDING_US - took_us;
    assert!(late_us <= 0, "{context}: {late_us} us too late");
}

#[tokio::test]
async fn every_key_expires_soon_after_nothing_is_spent() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, mut admin) = (open(&server), admin(&server));
        let now_us = u64::try_from(time_us(&mut admin)).unwrap();
        let callers = [Time::CallersUs(now_us), Time::CallersUs(1_000_000_020_000_000)];
        for (number, time) in [Time::Server].into_iter().chain(callers).enumerate() {
            for (index, text) in LIMITS.into_iter().enumerate() {
                let scope = named(&limiter, &format!("{number} {index}"), text);
                let id = format!("{number}-{index}");
                charge_and_refund(&mut admin, &scope, &id, time).await;
            }
        }
        let every = keys(&mut admin);
        assert!(every.len() >= LIMITS.len(), "{}", every.len());
        for key in every {
            assert!(kept(&mut admin, &key).ends_ms > 0, "{}", String::from_utf8_lossy(&key));
        }
    }
}

/// Asserts that the key expires in time after checks, a refusal, refunds, a reset and a joint check.
async fn charge_and_refund(admin: &mut Connection, scope: &Scope, id: &str, time: Time) {
    let from_us = time_us(admin);
    let mut receipts = Vec::new();
    for cost in [1, 9, 500] {
        let checked = time.of(scope.check(id).cost(cost)).await.unwrap();
        receipts.extend(checked.into_receipt());
        assert_expires(admin, scope, id, time, from_us).await;
    }
    let _ = time.of(scope.check(id).cost(1_000)).await.unwrap();
    assert_expires(admin, scope, id, time, from_us).await;
    // Only on the server's clock: a refund has no time of the caller.
    if let Time::Server = time {
        for receipt in receipts {
            scope.refund(id, receipt).await.unwrap();
            assert_expires(admin, scope, id, time, from_us).await;
        }
    }
    scope.reset(id).await.unwrap();
    let tagged = format!("{{{id}}}");
    assert!(!keys(admin).iter().any(|key| String::from_utf8_lossy(key).contains(&tagged)));
    let from_us = time_us(admin);
    let request = [time.of(scope.check(id)), time.of(scope.check(id).cost(2))];
    assert!(scope.limiter().check_all(&request).await.unwrap().is_allowed());
    assert_expires(admin, scope, id, time, from_us).await;
}

/// Logs of up to 16 charges are written as a whole, longer ones in place.
#[tokio::test]
async fn log_of_any_length_expires() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let limiter = open(&server);
        let scope = named(&limiter, "log", "sliding-window-log limit=1000 window=1h");
        for entries in [1, 2, 15, 16, 17, 18, 32, 33, 1_000] {
            let id = format!("of-{entries}");
            let mut receipts = Vec::new();
            let from_us = time_us(&mut admin);
            let answers: Vec<_> = (0..entries).map(|_| scope.check(&id).into_future()).collect();
            for answer in answers {
                receipts.extend(answer.await.unwrap().into_receipt());
            }
            assert_eq!(scope.entries(&id).await.unwrap().len(), entries);
            assert_expires(&mut admin, &scope, &id, Time::Server, from_us).await;
            let newest = receipts.pop();
            for receipt in newest.into_iter().chain(receipts.drain(..).take(1)) {
                scope.refund(&id, receipt).await.unwrap();
                assert_expires(&mut admin, &scope, &id, Time::Server, from_us).await;
            }
        }
        for key in keys(&mut admin) {
            assert!(kept(&mut admin, &key).ends_ms > 0, "{}", String::from_utf8_lossy(&key));
        }
    }
}

/// Refunds and listings use the limiter's own clock too.
#[tokio::test]
async fn keys_expire_an_hour_later_when_the_limiter_has_its_own_clock() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let clock = tollgate::ManualClock::at_us(1_000_000_020_000_000);
        let builder = builder(&server.url());
        let limiter = builder.clock(&clock).deadline(PATIENCE).build().unwrap();
        for (index, text) in LIMITS.into_iter().enumerate() {
            let scope = named(&limiter, &index.to_string(), text);
            let id = format!("id-{index}");
            let time = Time::CallersUs(1_000_000_020_000_000);
            let from_us = time_us(&mut admin);
            let receipt = scope.check(&id).cost(7).await.unwrap().into_receipt().unwrap();
            scope.check(&id).await.unwrap();
            assert_expires(&mut admin, &scope, &id, time, from_us).await;
            scope.refund(&id, receipt).await.unwrap();
            scope.entries(&id).await.unwrap();
            assert_expires(&mut admin, &scope, &id, time, from_us).await;
        }
    }
}

/// The caller's time is one second before the end of a window in which the server still is.
#[tokio::test]
async fn key_does_not_expire_early_when_a_caller_gives_a_time_ahead() {
    const WINDOW_US: i64 = 366 * 24 * HOUR_US;
    let server = start(Flavour::Redis);
    let (limiter, mut admin) = (open(&server), admin(&server));
    let scope = named(&limiter, "scope", "fixed-window limit=5 window=366d");
    let end_us = (time_us(&mut admin) / WINDOW_US + 1) * WINDOW_US;
    scope.check("a").cost(3).await.unwrap();
    let ahead_us = u64::try_from(end_us - S).unwrap();
    scope.check("a").at_us(ahead_us).await.unwrap();
    assert_eq!(scope.check("a").await.unwrap().remaining(), 0);
    let key = key_with(&mut admin, "{a}");
    assert!(kept(&mut admin, key.as_bytes()).ends_ms * 1_000 >= end_us);
}
