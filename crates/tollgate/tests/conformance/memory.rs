//! The memory store.

use std::fmt::Debug;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{ChargePlace, Cost, Decision, Limiter, ManualClock, OnFailure};

use tollgate_conformance::store::{LIMITS, S, named, open, scope};
use tollgate_conformance::{hold_suite, suite};

suite!(make);
hold_suite!(make);

/// With a low ceiling there are few shards, and their tables have to grow.
mod crowded {
    use super::*;

    suite!(make);
    hold_suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        Limiter::builder().clock(clock).max_bytes(4 << 20).build()
    }
}

/// A slot holds a scope's index in two parts. With 2^15 scopes both parts are used.
#[test]
fn scopes_are_separate_up_to_32768_and_one_more_is_an_error() {
    const SCOPES: u64 = 1 << 15;
    let (_, limiter) = open(make);
    let limit = |size: u64| format!("fixed-window limit={size} window=1h");
    let scopes: Vec<_> =
        (0..SCOPES).map(|nth| named(&limiter, &nth.to_string(), &limit(100_000 + nth))).collect();
    for (nth, scope) in (1..).zip(&scopes) {
        assert!(scope.check("a").cost(nth).now().unwrap().is_allowed());
    }
    for (nth, scope) in (0..).zip(&scopes) {
        assert_eq!(scope.peek("a").now().unwrap().remaining(), 99_999, "{nth}");
    }
    let one_more = limiter.scope("one more", limit(1).parse::<tollgate::Limit>().unwrap());
    assert_eq!(one_more.unwrap_err(), tollgate::Error::TooManyLimits { count: 1 << 15 });
}

#[test]
fn dropped_limits_make_room_for_new_ones() {
    let (clock, limiter) = open(make);
    let limit = |size: u64| format!("fixed-window limit={size} window=1s");
    for nth in 1..=40_000 {
        let changing = named(&limiter, "changing", &limit(100_000 + nth));
        assert_eq!(changing.check("a").now().unwrap().remaining(), 100_000, "{nth}");
        named(&limiter, &nth.to_string(), &limit(9)).check("a").now().unwrap();
        if nth == 30_000 {
            clock.advance(std::time::Duration::from_secs(12));
            changing.check("a").cost(nth).now().unwrap();
        }
    }
}

fn make(clock: &ManualClock) -> Limiter {
    Limiter::builder().clock(clock).build()
}

/// The memory store does not fail and does not wait.
#[test]
fn failure_policy_and_deadline_change_nothing_in_memory() {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let plain = scope(&limiter, text);
        let own = plain.clone().on_failure(OnFailure::Closed).deadline(Duration::ZERO);
        assert!(own.check("a").cost(4).now().unwrap().is_allowed());
        assert_eq!(at_once(own.check("a")).unwrap().remaining(), 5);
        assert_eq!(plain.peek("a").now().unwrap().remaining(), 5);
    }
}

/// Returns the answer, which must be ready at the first poll.
fn at_once<T: Debug>(future: impl IntoFuture<Output = T>) -> T {
    match pin!(future.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("not ready at the first poll"),
    }
}

#[test]
fn every_future_is_ready_at_the_first_poll() {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        let decision = at_once(scope.check("a")).unwrap();
        assert_eq!(decision.remaining(), 9, "{text}");
        assert_eq!(at_once(scope.peek("a")).unwrap().remaining(), 9, "{text}");
        assert_eq!(at_once(scope.refund("a", decision.into_receipt().unwrap())), Ok(1), "{text}");
        assert_eq!(at_once(scope.entries("a")).unwrap().len(), 0, "{text}");
        at_once(scope.reset("a")).unwrap();
        let together = at_once(limiter.check_all(&[scope.check("a"), scope.check("b")])).unwrap();
        assert!(together.is_allowed(), "{text}");
        assert_eq!(at_once(limiter.batch(&[&[scope.check("a")]])).unwrap().len(), 1, "{text}");
    }
}

/// Returns the cost and the place of a charge.
fn charge(decision: Decision) -> Option<(Cost, ChargePlace)> {
    decision.into_receipt().map(|receipt| (receipt.cost(), receipt.place()))
}

#[test]
fn now_and_await_decide_alike() {
    let (clock, limiter) = open(make);
    for text in LIMITS {
        let (now, awaited) = (named(&limiter, &format!("now {text}"), text), scope(&limiter, text));
        for (step_us, cost) in [(0, 4), (3 * S, 5), (0, 2), (S / 2, 2), (0, 11), (61 * S, 10)] {
            clock.advance(std::time::Duration::from_micros(step_us));
            let peeked = now.peek("a").cost(cost).now().unwrap();
            assert_eq!(peeked, at_once(awaited.peek("a").cost(cost)).unwrap(), "{text}");
            let decided = now.check("a").cost(cost).now().unwrap();
            let other = at_once(awaited.check("a").cost(cost)).unwrap();
            assert_eq!(decided.decided(), other.decided(), "{text}");
            assert_eq!(charge(decided), charge(other), "{text}");
            assert_eq!(now.entries_now("a"), at_once(awaited.entries("a")), "{text}");
        }
        let receipts = [&now, &awaited].map(|scope| {
            scope.reset_now("a").unwrap();
            scope.check("a").cost(3).now().unwrap().into_receipt().unwrap()
        });
        let [first, second] = receipts;
        assert_eq!(now.refund_now("a", first), at_once(awaited.refund("a", second)), "{text}");
        let both = |scope: &tollgate::Scope, at_once_too: bool| {
            let checks = [scope.check("a").cost(3), scope.check("b").cost(2)];
            let together = if at_once_too {
                at_once(limiter.check_all(&checks))
            } else {
                limiter.check_all_now(&checks)
            };
            format!("{:?}", together.unwrap())
        };
        for _ in 0..5 {
            assert_eq!(both(&now, false), both(&awaited, true), "{text}");
        }
    }
}

/// Enough pairs of scope and key that some pairs differ only in the scope where the table compares them.
#[test]
fn same_keys_in_many_scopes_have_separate_states() {
    let (_, limiter) = open(make);
    let scopes: Vec<_> =
        (0..32).map(|name| named(&limiter, &format!("scope {name}"), LIMITS[0])).collect();
    for key in 0..4_000_u64 {
        let key = key.to_le_bytes();
        for (index, scope) in scopes.iter().enumerate() {
            let cost = 1 + index as u64 % 10;
            let decision = scope.check(&key).cost(cost).now().unwrap();
            assert_eq!(decision.remaining(), 10 - cost, "{}", scope.name());
        }
    }
}
