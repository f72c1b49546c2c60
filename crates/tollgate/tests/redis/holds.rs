//! Holds on a server: what is stored and for how long, and what other processes see of them.

use std::time::{Duration, Instant};

use redis::Connection;
use tollgate::{AcquireOutcome, EndedHold, Hold, OnFailure, Redis, Scope, StoreError};
use tollgate_launcher::Flavour;

use crate::setup::{
    LIMITS, PATIENCE, admin, calls, kept, key_with, keys, named, open, remaining, scope,
    scripts_run, start, store_error, time_us, within,
};

const S: i64 = 1_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// The limits that can have holds: all but the shaping bucket.
fn holding() -> &'static [&'static str] {
    &LIMITS[..5]
}

async fn hold(scope: &Scope, key: &str, units: u64, hold_for: Duration) -> Hold {
    let reserved = scope.reserve(key).cost(units).hold_for(hold_for).await.unwrap();
    reserved.into_hold().unwrap()
}

fn value(admin: &mut Connection, id: &str) -> Vec<u8> {
    let key = key_with(admin, &format!("{{{id}}}"));
    redis::cmd("GET").arg(key).query(admin).unwrap()
}

/// Returns the first byte of a value and its length. The numbers differ by the time.
fn shape(value: &[u8]) -> (u8, usize) {
    (value[0], value.len())
}

#[tokio::test]
async fn key_without_holds_has_the_bytes_that_it_has_without_the_feature() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in holding() {
            redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
            let scope = scope(&open(&server), text);
            scope.check("plain").cost(3).await.unwrap();
            let plain = shape(&value(&mut admin, "plain"));
            let hold = hold(&scope, "held", 5, HOUR).await;
            let held = shape(&value(&mut admin, "held"));
            assert_eq!(held.0, plain.0 + 128, "{flavour}, {text}: the tag is marked");
            assert!(held.1 >= plain.1 + 29 - 14, "{flavour}, {text}");
            assert_eq!(hold.settle(3).await.unwrap().charged_units(), 3);
            assert_eq!(shape(&value(&mut admin, "held")), plain, "{flavour}, {text}");
            assert_eq!(remaining(&scope, "held").await, 97, "{flavour}, {text}");
        }
    }
}

/// A bucket above its capacity is no state for the plain script.
#[tokio::test]
async fn bucket_in_debt_is_marked_until_it_has_drained_to_its_capacity() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let text = "token-bucket capacity=100 refill=1000/s";
        let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
        let settled = hold(&here, "a", 100, HOUR).await.settle(200).await.unwrap();
        assert_eq!((settled.excess_units(), settled.cut_units()), (100, 0), "{flavour}");
        assert_eq!(shape(&value(&mut admin, "a")), (4 + 128, value(&mut admin, "a").len()));
        // More than the capacity has to drain: that takes longer than 100 ms.
        let refused = elsewhere.check("a").cost(100).await.unwrap();
        assert!(!refused.is_allowed(), "{flavour}");
        let began = Instant::now();
        while !elsewhere.check("a").cost(100).await.unwrap().is_allowed() {
            assert!(began.elapsed() < PATIENCE);
        }
        assert_eq!(value(&mut admin, "a")[0], 4, "{flavour}");
    }
}

#[tokio::test]
async fn key_expires_after_its_last_hold_and_the_charge_that_it_becomes() {
    let hour_us = HOUR.as_micros() as i64;
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for (text, drains_us) in [
            ("fixed-window limit=100 window=1s", S),
            ("sliding-window-log limit=100 window=1s", S),
            ("sliding-window-counter limit=100 window=1s", 2 * S),
            ("token-bucket capacity=100 refill=1/s", 4 * S),
            ("leaky-bucket capacity=100 leak=1/s mode=policing", 4 * S),
        ] {
            let scope = scope(&open(&server), text);
            let before_us = time_us(&mut admin);
            let hold = hold(&scope, "a", 4, HOUR).await;
            let key = key_with(&mut admin, "{a}");
            // Kept for at least this long after `since_us`, and for at most 20 s more than the charge needs.
            let assert_kept = |admin: &mut Connection, since_us: i64, least_us: i64, what: &str| {
                let ends_us = kept(admin, key.as_bytes()).ends_ms * 1_000;
                let most_us = time_us(admin) + least_us + drains_us + 20 * S;
                let bounds = since_us + least_us + 10 * S - 2_000..most_us;
                assert!(bounds.contains(&ends_us), "{flavour}, {text}, {what}: {ends_us}");
            };
            // The charge at the expiry of the hold leaves the window, or drains, after it.
            let charge_us = if text.starts_with("fixed") { 0 } else { drains_us / 2 };
            assert_kept(&mut admin, before_us, hour_us + charge_us, "reserved");
            // All units are charged, but the hold is open: it must not be forgotten.
            hold.settle_part(4).await.unwrap();
            assert_kept(&mut admin, before_us, hour_us, "settled in part");
            scope.check("a").await.unwrap();
            assert_kept(&mut admin, before_us, hour_us, "charged beside it");
            let before_us = time_us(&mut admin);
            assert!(hold.extend(0, 2 * HOUR).await.unwrap().is_granted());
            assert_kept(&mut admin, before_us, 2 * hour_us, "extended");
            hold.settle(4).await.unwrap();
            let ends_us = kept(&mut admin, key.as_bytes()).ends_ms * 1_000;
            assert!(ends_us < time_us(&mut admin) + 30 * S, "{flavour}, {text}: settled");
            redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
        }
    }
}

#[tokio::test]
async fn every_key_of_holds_has_an_expiry() {
    let server = start(Flavour::Redis);
    let mut admin = admin(&server);
    let limiter = open(&server);
    for text in holding() {
        let scope = scope(&limiter, text);
        let released = hold(&scope, "released", 5, HOUR).await;
        let extended = hold(&scope, "extended", 5, HOUR).await;
        drop(hold(&scope, "open", 5, HOUR).await);
        released.release().await.unwrap();
        extended.extend(1, HOUR).await.unwrap();
        extended.settle(120).await.unwrap();
    }
    let all = keys(&mut admin);
    assert_eq!(all.len(), 3 * holding().len());
    for key in all {
        assert!(kept(&mut admin, &key).ends_ms > 0, "{}", String::from_utf8_lossy(&key));
    }
}

#[tokio::test]
async fn settlements_of_one_hold_at_once_charge_its_use_once() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in holding() {
            let scope = scope(&open(&server), text);
            let hold = hold(&scope, "a", 10, HOUR).await;
            let (one, two) = tokio::join!(hold.settle_part(7), hold.settle_part(7));
            let charged = one.unwrap().charged_units() + two.unwrap().charged_units();
            assert_eq!(charged, 7, "{flavour}, {text}");
            assert_eq!(hold.settle(7).await.unwrap().charged_units(), 0, "{flavour}, {text}");
            assert_eq!(remaining(&scope, "a").await, 93, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn refusal_beside_holds_is_not_remembered() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in holding() {
            let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
            let hold = hold(&here, "a", 100, HOUR).await;
            let refused = elsewhere.check("a").await.unwrap();
            assert!(!refused.is_allowed() && !refused.is_cached(), "{flavour}, {text}");
            let again = elsewhere.check("a").await.unwrap();
            assert!(!again.is_allowed() && !again.is_cached(), "{flavour}, {text}");
            hold.release().await.unwrap();
            assert!(elsewhere.check("a").await.unwrap().is_allowed(), "{flavour}, {text}");
        }
    }
}

/// The units come back only when the hold expires, or when the other process settles it.
#[tokio::test]
async fn acquire_notices_that_another_process_settled_a_hold() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (mut admin, text) = (admin(&server), "fixed-window limit=100 window=366d");
        let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
        let hold = hold(&elsewhere, "a", 100, HOUR).await;
        let (waiting, before) = (here.clone(), scripts_run(&mut admin));
        let waiter = tokio::spawn(async move { waiting.acquire("a").await.unwrap() });
        // It is refused, by the second script that gets the request.
        while scripts_run(&mut admin) < before + 2 {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        hold.settle(40).await.unwrap();
        let acquired = waiter.await.unwrap();
        assert!(matches!(acquired, AcquireOutcome::Admitted { .. }), "{flavour}: {acquired:?}");
        assert!(began.elapsed() < PATIENCE / 3, "{flavour}");
    }
}

#[tokio::test]
async fn dropped_reservation_is_released() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in holding() {
            let scope = scope(&open(&server), text);
            // Sent, and answered while its future is dropped or about to be.
            let reserved = scope.reserve("a").cost(60).hold_for(HOUR).into_future();
            while calls(&mut admin, "set") + calls(&mut admin, "setrange") == 0 {
                tokio::task::yield_now().await;
            }
            drop(reserved);
            let began = Instant::now();
            while remaining(&scope, "a").await < 100 {
                assert!(began.elapsed() < PATIENCE, "{flavour}, {text}");
            }
            redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut admin).unwrap();
        }
    }
}

/// The release waits behind the two batches in flight, which a frozen server does not answer, for longer than the deadline
/// of its scope.
#[tokio::test]
async fn dropped_place_is_released_although_the_deadline_of_its_scope_has_passed() {
    let text = "concurrency limit=1 for=1h";
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let steady = scope(&open(&server), text);
        let short = scope(&within(&server.url(), Duration::from_millis(60)), text);
        let long = short.clone().deadline(PATIENCE);
        let began = Instant::now();
        let place = loop {
            // On a busy machine the deadline may pass.
            match short.reserve("a").await {
                Ok(reserved) => break reserved.into_hold().unwrap(),
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
            }
        };
        server.freeze();
        let mut in_flight = Vec::new();
        for _ in 0..2 {
            in_flight.push(long.peek("b").into_future());
            // When this has failed, the request before it is in flight.
            store_error(short.peek("b").await);
        }
        drop(place);
        // The release is behind the requests in flight for as long as the deadline of its scope.
        store_error(short.peek("b").await);
        server.thaw();
        let began = Instant::now();
        while remaining(&steady, "a").await == 0 {
            assert!(began.elapsed() < PATIENCE, "{flavour}: the release was not sent");
        }
        for answer in in_flight {
            assert_eq!(answer.await.unwrap().remaining(), 1, "{flavour}");
        }
    }
}

#[tokio::test]
async fn holds_stay_when_the_server_fails_between_reservation_and_settlement() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        for text in holding() {
            let scope = scope(&within(&server.url(), Duration::from_millis(60)), text);
            let steady = named(&open(&server), text, text);
            let settled = hold(&steady, "a", 10, HOUR).await;
            let lost = hold(&steady, "a", 10, Duration::from_millis(300)).await;
            redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").exec(&mut admin).unwrap();
            let error = store_error(scope.reserve("a").await);
            assert!(matches!(error, StoreError::Timeout { .. }), "{flavour}, {text}: {error}");
            redis::cmd("CLIENT").arg("UNPAUSE").exec(&mut admin).unwrap();
            assert_eq!(settled.settle(4).await.unwrap().charged_units(), 4, "{flavour}, {text}");
            // The other is not settled in time, and is charged in full.
            let began = Instant::now();
            while lost.settle_part(0).await.unwrap().ended().is_none() {
                assert!(began.elapsed() < PATIENCE, "{flavour}, {text}");
            }
            let late = lost.settle(0).await.unwrap();
            assert_eq!(late.ended(), Some(EndedHold::Expired), "{flavour}, {text}");
            assert_eq!(remaining(&steady, "a").await, 86, "{flavour}, {text}");
        }
    }
}

/// Makes the server answer no writes, until [`resume`].
fn pause(admin: &mut Connection) {
    redis::cmd("CLIENT").arg("PAUSE").arg(600_000).arg("WRITE").exec(admin).unwrap();
}

fn resume(admin: &mut Connection) {
    redis::cmd("CLIENT").arg("UNPAUSE").exec(admin).unwrap();
}

#[tokio::test]
async fn each_failure_policy_decides_reservations_of_a_server_that_fails_and_none_settles_without_it()
 {
    let deadline = Duration::from_millis(60);
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let policies =
            [OnFailure::Closed, OnFailure::Open, OnFailure::Local { processes: Some(10) }];
        for (text, policy) in holding().iter().flat_map(|text| policies.map(|own| (text, own))) {
            let limiter = Redis::at(&server.url()).unwrap().on_failure(policy);
            let scope = scope(&limiter.deadline(deadline).build().unwrap(), text);
            let context = format!("{flavour}, {text}, {policy:?}");
            // Waits as long as it takes, also on a busy machine.
            let steady = named(&open(&server), text, text);
            let before = remaining(&steady, "a").await;
            let steady_hold = hold(&steady, "a", 10, HOUR).await;
            let open = scope.hold("a", steady_hold.reference()).unwrap();
            pause(&mut admin);
            // Nothing can settle the hold now: it stays, and no policy pretends otherwise.
            let error = store_error(open.settle_part(4).await);
            assert!(matches!(error, StoreError::Timeout { .. }), "{context}: {error}");
            let reserved = scope.reserve("a").cost(5).hold_for(HOUR).await;
            let degraded = match policy {
                OnFailure::Closed => {
                    store_error(reserved);
                    None
                }
                _ => reserved.unwrap().into_hold(),
            };
            assert_eq!(degraded.is_some(), policy != OnFailure::Closed, "{context}");
            if let Some(degraded) = degraded {
                assert!(degraded.is_degraded(), "{context}");
                // Its settlement does not reach the server, which knows nothing of it.
                assert_eq!(degraded.settle(5).await.unwrap().ended(), None, "{context}");
            }
            resume(&mut admin);
            // The settlement that got no answer may have been made: what is charged is the same.
            let settled = steady_hold.settle(4).await.unwrap();
            assert!([0, 4].contains(&settled.charged_units()), "{context}");
            assert_eq!(remaining(&steady, "a").await, before - 4, "{context}");
        }
    }
}

#[tokio::test]
async fn hold_settled_by_two_processes_is_charged_once() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for text in holding() {
            let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
            let held = hold(&here, "a", 10, HOUR).await;
            let again = elsewhere.hold("a", held.reference()).unwrap();
            let (one, two) = tokio::join!(held.settle(7), again.settle(7));
            let (one, two) = (one.unwrap(), two.unwrap());
            assert_eq!(one.charged_units() + two.charged_units(), 7, "{flavour}, {text}");
            let ended = one.ended().or(two.ended());
            assert_eq!(ended, Some(EndedHold::Unknown), "{flavour}, {text}");
            assert_eq!(remaining(&here, "a").await, 93, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn concurrency_limit_leaves_no_key_when_nothing_is_held() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let text = "concurrency limit=2 for=1h";
        let (here, elsewhere) = (scope(&open(&server), text), scope(&open(&server), text));
        let first = here.reserve("a").await.unwrap().into_hold().unwrap();
        let second = elsewhere.reserve("a").await.unwrap().into_hold().unwrap();
        assert!(!here.reserve("a").await.unwrap().is_allowed(), "{flavour}");
        let key = key_with(&mut admin, "{a}");
        let lives_ms = kept(&mut admin, key.as_bytes()).ends_ms - time_us(&mut admin) / 1_000;
        assert!((3_600_000..3_620_000).contains(&lives_ms), "{flavour}: {lives_ms}");
        first.release().await.unwrap();
        assert!(elsewhere.reserve("a").await.unwrap().is_allowed(), "{flavour}");
        second.release().await.unwrap();
        let began = Instant::now();
        // The last hold was dropped above, and is released in the background.
        while !keys(&mut admin).is_empty() {
            assert!(began.elapsed() < PATIENCE, "{flavour}");
            tokio::task::yield_now().await;
        }
    }
}

/// Only a part of a long log is read to settle. So each of its charges is made corrupt in turn.
#[tokio::test]
async fn joint_settlement_changes_nothing_when_a_log_is_corrupt() {
    const SLOT_BYTES: usize = 14;
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let limiter = open(&server);
        let log = named(&limiter, "log", "sliding-window-log limit=1000 window=366d");
        let window = named(&limiter, "window", "fixed-window limit=1000 window=366d");
        let mut failed = 0;
        for corrupt in 0..40 {
            redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
            for at_us in 0..40 {
                let now_us = time_us(&mut admin) as u64 - 1_000 + at_us;
                assert!(log.check("a").at_us(now_us).await.unwrap().is_allowed());
            }
            let parts = [&window, &log].map(|it| it.reserve("a").cost(9).hold_for(HOUR).into());
            let held = limiter.reserve_all(&parts).await.unwrap().into_hold().unwrap();
            let key = key_with(&mut admin, "log");
            let from = 11 + 23 + SLOT_BYTES * corrupt;
            let bytes = [255_u8; SLOT_BYTES];
            redis::cmd("SETRANGE").arg(&key).arg(from).arg(&bytes).exec(&mut admin).unwrap();
            let other = key_with(&mut admin, "window");
            let dump = |admin: &mut Connection| -> (Vec<u8>, Vec<u8>) {
                let get = |admin: &mut Connection, key| redis::cmd("GET").arg(key).query(admin);
                (get(admin, &key).unwrap(), get(admin, &other).unwrap())
            };
            let before = dump(&mut admin);
            if let Err(error) = held.settle(|_| 4).await {
                failed += 1;
                assert!(error.to_string().contains("log"), "{flavour}, {corrupt}: {error}");
                assert!(dump(&mut admin) == before, "{flavour}, {corrupt}: half settled");
            }
        }
        assert!(failed > 0, "{flavour}");
    }
}
