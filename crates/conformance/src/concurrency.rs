//! Concurrency limits: units that are only ever held.
//!
//! For stores that have holds: [`hold_suite!`](crate::hold_suite) runs these.

use std::time::Duration;

use tollgate_core::EndedHold;
use tollgate_limiter::{Error, Hold, HoldDecision, Scope};

use crate::store::{Make, S, START_US, named, open, scope};

/// A limit with room for 10, each held for a minute by default.
const JOBS: &str = "concurrency limit=10 for=1m";

const SECOND: Duration = Duration::from_secs(1);

async fn reserve(scope: &Scope, units: u64, hold_for: Duration) -> HoldDecision {
    scope.reserve("a").cost(units).hold_for(hold_for).await.unwrap()
}

async fn hold(scope: &Scope, units: u64, hold_for: Duration) -> Hold {
    reserve(scope, units, hold_for).await.into_hold().unwrap()
}

async fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").await.unwrap().remaining()
}

pub async fn concurrency_limit_admits_its_size_at_a_time(make: Make) {
    let (_, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let first = hold(&jobs, 4, SECOND).await;
    let second = hold(&jobs, 6, SECOND).await;
    assert_eq!(remaining(&jobs).await, 0);
    assert!(!reserve(&jobs, 1, SECOND).await.is_allowed());
    assert!(!reserve(&jobs, 11, SECOND).await.decision().is_allowed());
    first.release().await.unwrap();
    assert_eq!(remaining(&jobs).await, 4);
    let third = reserve(&jobs, 4, SECOND).await;
    assert_eq!((third.is_allowed(), third.decision().remaining()), (true, 0));
    // Any number of units in the same instant, one after the other: there is no rate.
    second.release().await.unwrap();
    for _ in 0..30 {
        hold(&jobs, 6, SECOND).await.release().await.unwrap();
    }
    assert_eq!(remaining(&jobs).await, 6);
    // Other keys and other names have units of their own.
    assert_eq!(jobs.peek("b").await.unwrap().remaining(), 10);
    assert_eq!(remaining(&named(&limiter, "other", JOBS)).await, 10);
}

pub async fn concurrency_limit_sets_the_hold_time_of_a_reservation_that_gives_none(make: Make) {
    let (_, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let by_default = jobs.reserve("a").await.unwrap().into_hold().unwrap();
    assert_eq!(by_default.expires_at_us(), START_US + 60 * S);
    assert_eq!(hold(&jobs, 1, 5 * SECOND).await.expires_at_us(), START_US + 5 * S);
}

pub async fn units_of_a_concurrency_limit_are_never_charged(make: Make) {
    let (clock, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    for used in [0, 3, 4, 9, 1_000] {
        let settled = hold(&jobs, 4, SECOND).await.settle(used).await.unwrap();
        let charged = (settled.charged_units(), settled.excess_units(), settled.cut_units());
        assert_eq!((charged, settled.receipt()), ((0, 0, 0), None), "{used}");
        assert_eq!(settled.decided().remaining, 10, "{used}");
    }
    // Part of a hold that is settled is free, and the rest stays held.
    let job = hold(&jobs, 4, SECOND).await;
    for (used_so_far, left) in [(1, 7), (1, 7), (3, 9)] {
        let settled = job.settle_part(used_so_far).await.unwrap();
        assert_eq!((settled.charged_units(), settled.receipt()), (0, None));
        assert_eq!(remaining(&jobs).await, left, "{used_so_far}");
    }
    // The last unit is free at the expiry.
    clock.set_us(START_US + S - 1);
    assert_eq!(remaining(&jobs).await, 9);
    clock.set_us(START_US + S);
    assert_eq!(remaining(&jobs).await, 10);
    assert_eq!(job.release().await.unwrap().ended(), Some(EndedHold::Expired));
    assert_eq!(remaining(&jobs).await, 10);
}

pub async fn refused_reservation_waits_exactly_until_enough_holds_have_expired(make: Make) {
    let (clock, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let _held = [
        hold(&jobs, 3, 9 * SECOND).await,
        hold(&jobs, 2, 5 * SECOND).await,
        hold(&jobs, 5, 7 * SECOND).await,
    ];
    for (units, wait_s) in [(1, 5), (2, 5), (3, 7), (7, 7), (8, 9), (10, 9)] {
        let refused = reserve(&jobs, units, SECOND).await;
        assert_eq!(refused.retry_after(), Some(wait_s * SECOND), "{units}");
        let peeked = jobs.peek("a").cost(units).await.unwrap();
        assert_eq!(peeked.retry_after(), Some(wait_s * SECOND), "{units}");
        assert_eq!(peeked.reset_after(), 9 * SECOND);
        assert_eq!(peeked.more_after(jobs.limit()), Some(5 * SECOND));
    }
    assert_eq!(reserve(&jobs, 11, SECOND).await.retry_after(), None);
    clock.set_us(START_US + 7 * S - 1);
    assert_eq!(reserve(&jobs, 7, SECOND).await.retry_after(), Some(Duration::from_micros(1)));
    clock.set_us(START_US + 7 * S);
    assert!(reserve(&jobs, 7, SECOND).await.is_allowed());
}

pub async fn check_of_a_concurrency_limit_is_an_error_that_says_to_reserve(make: Make) {
    let (_, limiter) = open(make);
    let (jobs, requests) =
        (named(&limiter, "jobs", JOBS), scope(&limiter, "fixed-window limit=5 window=1h"));
    let held = hold(&jobs, 4, SECOND).await;
    let must_reserve = Error::MustReserve { scope: "jobs".into() };
    assert!(must_reserve.to_string().contains("`jobs`"), "{must_reserve}");
    assert!(must_reserve.to_string().contains("reserve"), "{must_reserve}");
    for key in ["a", "b"] {
        assert_eq!(jobs.check(key).await.unwrap_err(), must_reserve);
        assert_eq!(jobs.acquire(key).await.unwrap_err(), must_reserve);
        let both = [requests.check(key), jobs.check(key)];
        assert_eq!(limiter.check_all(&both).await.unwrap_err(), must_reserve);
        let mut answers = limiter.batch(&[&both, &[requests.check(key)]]).await.unwrap();
        assert!(answers.pop().unwrap().unwrap().is_allowed());
        assert_eq!(answers.pop().unwrap().unwrap_err(), must_reserve);
        let shadow = [requests.check(key), jobs.check(key).shadow()];
        assert_eq!(limiter.check_all(&shadow).await.unwrap_err(), must_reserve);
        assert_eq!(requests.peek(key).await.unwrap().remaining(), 4, "charged once, by the batch");
    }
    assert_eq!(remaining(&jobs).await, 6);
    // A peek answers for a reservation, alone and beside a check.
    assert!(jobs.peek("a").cost(6).await.unwrap().is_allowed());
    assert!(!jobs.peek("a").cost(7).await.unwrap().is_allowed());
    let beside = |units| [requests.check("a"), jobs.peek("a").cost(units)];
    assert!(limiter.check_all(&beside(6)).await.unwrap().is_allowed());
    let refused = limiter.check_all(&beside(7)).await.unwrap();
    assert_eq!((refused.refused_by(), refused.retry_after()), (Some(1), Some(SECOND)));
    assert_eq!(requests.peek("a").await.unwrap().remaining(), 3);
    held.release().await.unwrap();
}

/// On a store across the network the release is sent when the hold is dropped, and is done some time later.
pub async fn dropped_hold_of_a_concurrency_limit_is_released(make: Make) {
    let (_, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let stays = hold(&jobs, 1, SECOND).await;
    drop(hold(&jobs, 6, SECOND).await);
    drop(reserve(&jobs, 3, SECOND).await);
    let mut left = remaining(&jobs).await;
    for _ in 0..10_000 {
        if left == 9 {
            break;
        }
        left = remaining(&jobs).await;
    }
    assert_eq!(left, 9);
    stays.release().await.unwrap();
    assert_eq!(remaining(&jobs).await, 10);
}

pub async fn extension_of_a_concurrency_hold_adds_units_and_moves_the_expiry(make: Make) {
    let (clock, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let (job, _other) = (hold(&jobs, 4, SECOND).await, hold(&jobs, 3, 9 * SECOND).await);
    clock.set_us(START_US + S / 2);
    assert!(job.extend(3, SECOND).await.unwrap().is_granted());
    assert_eq!(remaining(&jobs).await, 0);
    let refused = job.extend(1, 9 * SECOND).await.unwrap();
    assert_eq!((refused.is_granted(), refused.ended()), (false, None));
    assert_eq!(refused.retry_after(), Some(SECOND));
    assert!(job.extend(0, 2 * SECOND).await.unwrap().is_granted());
    assert_eq!(job.expires_at_us(), START_US + 5 * S / 2);
    clock.set_us(START_US + 5 * S / 2);
    assert_eq!(job.extend(0, SECOND).await.unwrap().ended(), Some(EndedHold::Expired));
    assert_eq!(remaining(&jobs).await, 7);
}

pub async fn reset_of_a_concurrency_limit_forgets_its_holds(make: Make) {
    let (_, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let job = hold(&jobs, 6, SECOND).await;
    jobs.reset("a").await.unwrap();
    assert_eq!(remaining(&jobs).await, 10);
    assert_eq!(job.extend(1, SECOND).await.unwrap().ended(), Some(EndedHold::Unknown));
    assert_eq!(job.release().await.unwrap().ended(), Some(EndedHold::Unknown));
    assert_eq!(remaining(&jobs).await, 10);
}

pub async fn concurrency_holds_keep_their_expiry_on_a_clock_that_steps_back_and_move_with_a_new_one(
    make: Make,
) {
    let (clock, limiter) = open(make);
    let jobs = scope(&limiter, JOBS);
    let _job = hold(&jobs, 4, 20 * SECOND).await;
    clock.set_us(START_US - 9 * S);
    let peeked = jobs.peek("a").await.unwrap();
    assert_eq!((peeked.remaining(), peeked.reset_after()), (6, 29 * SECOND));
    // A refusal on a new clock moves the key to it; the hold lasts another 20 s from there.
    clock.set_us(START_US - 86_400 * S);
    assert_eq!(reserve(&jobs, 7, SECOND).await.retry_after(), Some(20 * SECOND));
    clock.set_us(START_US - 86_400 * S + 20 * S - 1);
    assert_eq!(remaining(&jobs).await, 6);
    clock.set_us(START_US - 86_400 * S + 20 * S);
    assert_eq!(remaining(&jobs).await, 10);
    // A key without holds has no time of its own.
    clock.set_us(START_US - 2 * 86_400 * S);
    assert_eq!(hold(&jobs, 1, SECOND).await.expires_at_us(), START_US - 2 * 86_400 * S + S);
}

/// Between a concurrency limit and another algorithm a key moves when the request fits beside its spent and held units.
/// Its holds stay valid: what becomes of their units depends on the limit that the key is under when they end.
pub async fn key_moves_between_a_concurrency_limit_and_another(make: Make) {
    for text in [
        "fixed-window limit=10 window=1h",
        "sliding-window-log limit=10 window=1h",
        "sliding-window-counter limit=10 window=1h",
        "token-bucket capacity=10 refill=10/h",
    ] {
        let (clock, limiter) = open(make);
        let (jobs, other) = (named(&limiter, text, JOBS), named(&limiter, text, text));
        // To the other limit: the holds count as held there, and are charged.
        let (first, second) = (hold(&jobs, 4, 9 * SECOND).await, hold(&jobs, 4, 9 * SECOND).await);
        let refused = other.check("a").cost(3).await.unwrap();
        assert_eq!(refused.retry_after(), Some(9 * SECOND), "{text}: the key has not moved");
        assert!(other.check("a").cost(2).await.unwrap().is_allowed(), "{text}: it has");
        assert_eq!(first.settle(1).await.unwrap().charged_units(), 1, "{text}");
        clock.set_us(START_US + 9 * S);
        assert_eq!(second.release().await.unwrap().ended(), Some(EndedHold::Expired), "{text}");
        assert_eq!(remaining(&other).await, 10 - 2 - 1 - 4, "{text}");
        // Back: the key stays while the request does not fit beside what it has spent, and then that is forgotten.
        assert!(!reserve(&jobs, 4, SECOND).await.is_allowed(), "{text}");
        let third = hold(&jobs, 3, SECOND).await;
        assert_eq!(remaining(&jobs).await, 7, "{text}");
        assert_eq!(third.settle(3).await.unwrap().charged_units(), 0, "{text}");
        assert_eq!(remaining(&jobs).await, 10, "{text}");
    }
}

pub async fn concurrency_limit_that_is_lowered_keeps_its_open_holds(make: Make) {
    let (_, limiter) = open(make);
    let (before, after) =
        (named(&limiter, "jobs", JOBS), named(&limiter, "jobs", "concurrency limit=5 for=1m"));
    let (first, _second) = (hold(&before, 4, SECOND).await, hold(&before, 4, 2 * SECOND).await);
    let refused = reserve(&after, 1, SECOND).await;
    assert_eq!((refused.decision().limit(), refused.retry_after()), (5, Some(SECOND)));
    first.release().await.unwrap();
    assert_eq!(remaining(&after).await, 1);
    assert!(reserve(&after, 1, SECOND).await.is_allowed());
}
