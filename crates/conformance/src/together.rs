//! P7: a check of several limits charges all of them or none.

use std::time::Duration;

use tollgate_core::{MAX_UNITS, Retry, TightestLimit, Verdict};
use tollgate_limiter::{Check, Decision, Error, JointDecision};

use crate::store::{LIMITS, Make, S, START_US, named, open, scope};

/// The fields of an answer that are about all limits together.
#[derive(Debug, PartialEq)]
pub struct Summary {
    verdict: Verdict,
    refused_by: Option<usize>,
    /// `limit`, `remaining` and `requests_remaining`.
    tightest: [Option<u64>; 3],
    reset_after_us: u64,
}

pub fn summary(answer: &JointDecision) -> Summary {
    Summary {
        verdict: answer.verdict(),
        refused_by: answer.refused_by(),
        tightest: [answer.limit(), answer.remaining(), answer.requests_remaining()],
        reset_after_us: u64::try_from(answer.reset_after().as_micros()).unwrap(),
    }
}

pub fn expected_summary(together: &tollgate_core::CombinedDecision) -> Summary {
    let tollgate_core::CombinedDecision { verdict, refused_by, tightest, reset_after_us } =
        *together;
    let own = |own: fn(TightestLimit) -> u64| tightest.map(own);
    let tightest = [own(|it| it.limit), own(|it| it.remaining), own(|it| it.requests_remaining)];
    Summary { verdict, refused_by, tightest, reset_after_us }
}

fn remaining(together: &JointDecision) -> Vec<u64> {
    together.each().iter().map(Decision::remaining).collect()
}

pub async fn refused_request_charges_no_limit(make: Make) {
    for text in LIMITS {
        for other in LIMITS {
            let (_, limiter) = open(make);
            let (one, two) = (named(&limiter, "one", text), named(&limiter, "two", other));
            two.check("a").cost(8).await.unwrap();
            let before = one.peek("a").cost(3).await.unwrap();
            let checks = [one.check("a").cost(3), two.check("a").cost(3)];
            let refused = limiter.check_all(&checks).await.unwrap();
            assert!(!refused.is_allowed(), "{text}, {other}");
            assert_eq!(refused.refused_by(), Some(1), "{text}, {other}");
            assert_eq!(remaining(&refused), [10, 2], "{text}, {other}");
            assert!(refused.each()[0].is_allowed(), "{text}, {other}");
            assert!(refused.into_each().into_iter().all(|each| each.into_receipt().is_none()));
            assert_eq!(one.peek("a").cost(3).await.unwrap(), before, "{text}, {other}");
            assert_eq!(two.peek("a").await.unwrap().remaining(), 2, "{text}, {other}");
        }
    }
}

pub async fn joint_charges_stay_charged(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (one, two) = (named(&limiter, "one", text), named(&limiter, "two", text));
        for left in [7, 4, 1] {
            let checks = [one.check("a").cost(3), two.check("b").cost(3)];
            let together = limiter.check_all(&checks).await.unwrap();
            assert!(together.is_allowed(), "{text}");
            assert_eq!(remaining(&together), [left, left], "{text}");
            assert_eq!(one.peek("a").await.unwrap().remaining(), left, "{text}");
            assert_eq!(two.peek("b").await.unwrap().remaining(), left, "{text}");
        }
        assert_eq!(one.peek("b").await.unwrap().remaining(), 10, "{text}");
    }
}

/// A store that makes room for one new key must not remove another key of the same check.
pub async fn joint_check_of_many_new_keys_charges_all(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        for round in 0..50 {
            let keys: Vec<String> = (0..64).map(|key| format!("{round}/{key}")).collect();
            let checks: Vec<Check<'_>> = keys.iter().map(|key| scope.check(key).cost(3)).collect();
            assert!(limiter.check_all(&checks).await.unwrap().is_allowed(), "{text}");
            let peeks: Vec<_> = keys.iter().map(|key| scope.peek(key).into_future()).collect();
            for (key, peek) in keys.iter().zip(peeks) {
                assert_eq!(peek.await.unwrap().remaining(), 7, "{text}, key {key}");
            }
        }
    }
}

pub async fn refused_by_is_the_limit_with_the_longest_wait(make: Make) {
    let (_, limiter) = open(make);
    let second = scope(&limiter, "fixed-window limit=1 window=1s");
    let minute = scope(&limiter, "fixed-window limit=1 window=1m");
    let same = named(&limiter, "same", "fixed-window limit=1 window=1m");
    let check = async |last_cost: u64| {
        let checks = [second.check("a"), minute.check("a"), same.check("a").cost(last_cost)];
        limiter.check_all(&checks).await.unwrap()
    };
    assert_eq!(check(1).await.refused_by(), None);
    let refused = check(1).await;
    assert_eq!(refused.refused_by(), Some(1), "the first of two equal waits");
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
    // A cost that never fits counts as the longest wait.
    let never = check(2).await;
    assert_eq!(never.refused_by(), Some(2));
    assert_eq!(never.verdict(), Verdict::Denied { retry: Retry::Never });
    assert_eq!(never.retry_after(), None);
}

pub async fn requests_remaining_is_that_of_the_tightest_limit(make: Make) {
    let (_, limiter) = open(make);
    let (wide, narrow) = (
        scope(&limiter, "token-bucket capacity=100 refill=1/s"),
        scope(&limiter, "leaky-bucket capacity=10 leak=2/s mode=shaping"),
    );
    for (cost, left, delay_ms) in [(2, 4, 0), (3, 1, 1_000), (3, 0, 2_500)] {
        let checks = [wide.check("a").cost(30), narrow.check("a").cost(cost)];
        let together = limiter.check_all(&checks).await.unwrap();
        assert!(together.is_allowed());
        let fits = remaining(&together);
        assert_eq!(together.requests_remaining(), Some((fits[0] / 30).min(fits[1] / cost)));
        assert_eq!(fits[1] / cost, left);
        assert_eq!(together.delay(), Duration::from_millis(delay_ms));
    }
    let full = limiter.check_all(&[wide.check("a").cost(30), narrow.check("a")]).await.unwrap();
    assert_eq!((full.requests_remaining(), full.refused_by()), (Some(0), Some(0)));
    assert_eq!(full.reset_after(), Duration::from_secs(90), "the later reset of the two");
}

pub async fn same_scope_and_key_twice_is_one_charge_with_the_costs_added(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (scope, other) = (scope(&limiter, text), named(&limiter, "other", text));
        let check = async |first: u64, second: u64| {
            let checks = [
                scope.check("a").cost(first),
                other.check("a"),
                scope.check("a").cost(second),
                scope.check("b"),
            ];
            limiter.check_all(&checks).await.unwrap()
        };
        // 6 and 5 would each fit alone.
        let refused = check(6, 5).await;
        assert_eq!((refused.is_allowed(), refused.refused_by()), (false, Some(0)), "{text}");
        assert_eq!(refused.verdict(), Verdict::Denied { retry: Retry::Never }, "{text}");
        assert_eq!(remaining(&refused), [10, 10, 10, 10], "{text}");
        let refused = check(MAX_UNITS, MAX_UNITS).await;
        assert_eq!(refused.verdict(), Verdict::Denied { retry: Retry::Never }, "{text}");

        let together = check(2, 3).await;
        assert!(together.is_allowed(), "{text}");
        assert_eq!(remaining(&together), [5, 9, 5, 9], "{text}");
        assert_eq!(
            together.requests_remaining(),
            Some(1),
            "{text}: five units are left, and a request costs five"
        );
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 5, "{text}");
        // One charge has one receipt, for the whole cost.
        let receipts: Vec<_> =
            together.into_each().into_iter().map(Decision::into_receipt).collect();
        let [Some(both), Some(_), None, Some(_)] = <[_; 4]>::try_from(receipts).unwrap() else {
            panic!("{text}: the first part of the two should have the receipt");
        };
        assert_eq!(scope.refund("a", both).await, Ok(5), "{text}");
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 10, "{text}");
    }
}

pub async fn shadow_limit_never_refuses_and_is_charged_only_when_it_fits(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (enforced, candidate) = (scope(&limiter, text), named(&limiter, "new", text));
        let check = async |cost: u64| {
            let checks = [candidate.check("a").shadow().cost(cost), enforced.check("a").cost(4)];
            let together = limiter.check_all(&checks).await.unwrap();
            (together.is_allowed(), together.each()[0].is_allowed(), remaining(&together))
        };
        assert_eq!(check(7).await, (true, true, vec![3, 6]), "{text}");
        assert_eq!(check(7).await, (true, false, vec![3, 2]), "{text}");
        // The enforced limit refuses, so the shadow limit is not charged, although the cost fits.
        assert_eq!(check(1).await, (false, true, vec![3, 2]), "{text}");
        assert_eq!(check(MAX_UNITS).await, (false, false, vec![3, 2]), "{text}");
        assert_eq!(candidate.peek("a").await.unwrap().remaining(), 3, "{text}");
    }
}

pub async fn shadow_limits_alone_refuse_nothing(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        for left in [4, 4] {
            let checks = [scope.check("a").cost(6).shadow()];
            let together = limiter.check_all(&checks).await.unwrap();
            assert_eq!(
                (together.is_allowed(), together.requests_remaining()),
                (true, None),
                "{text}"
            );
            assert_eq!(together.reset_after(), Duration::ZERO, "{text}");
            assert_eq!(remaining(&together), [left], "{text}");
        }
    }
}

pub async fn peek_in_a_joint_check_refuses_and_is_never_charged(make: Make) {
    for text in LIMITS {
        for (other, key) in LIMITS.into_iter().zip(["a", "b"].into_iter().cycle()) {
            let (_, limiter) = open(make);
            let (seen, charged) = (named(&limiter, "seen", text), named(&limiter, "two", other));
            seen.check("a").cost(3).await.unwrap();
            let checks = [seen.peek("a").cost(7), charged.check(key).cost(4)];
            let allowed = limiter.check_all(&checks).await.unwrap();
            assert!(allowed.is_allowed(), "{text}, {other}");
            assert_eq!(remaining(&allowed), [7, 6], "{text}, {other}");
            assert_eq!(allowed.requests_remaining(), Some(1), "{text}, {other}");
            assert_eq!(receipts(allowed), [false, true], "{text}, {other}");

            let checks = [charged.check(key).cost(4), seen.peek("a").cost(8)];
            let refused = limiter.check_all(&checks).await.unwrap();
            let alone = seen.peek("a").cost(8).await.unwrap();
            assert_eq!(refused.refused_by(), Some(1), "{text}, {other}");
            assert_eq!(refused.retry_after(), alone.retry_after(), "{text}, {other}");
            assert_eq!(refused.requests_remaining(), Some(0), "{text}, {other}");
            assert_eq!(remaining(&refused), [6, 7], "{text}, {other}");
            assert_eq!(receipts(refused), [false, false], "{text}, {other}");
            assert_eq!(charged.peek(key).await.unwrap().remaining(), 6, "{text}, {other}");
            assert_eq!(seen.peek("a").await.unwrap().remaining(), 7, "{text}, {other}");
        }
    }
}

fn receipts(together: JointDecision) -> Vec<bool> {
    together.into_each().into_iter().map(|each| each.into_receipt().is_some()).collect()
}

/// The joint check is refused, and the decisions of the peeks are still their own.
pub async fn peek_is_allowed_beside_a_refused_charge(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (seen, charged) = (named(&limiter, "seen", text), named(&limiter, "two", text));
        charged.check("a").cost(9).await.unwrap();
        let checks = [seen.peek("b").cost(5), charged.check("a").cost(2), seen.peek("c")];
        let refused = limiter.check_all(&checks).await.unwrap();
        assert_eq!((refused.is_allowed(), refused.refused_by()), (false, Some(1)), "{text}");
        let each: Vec<bool> = refused.each().iter().map(Decision::is_allowed).collect();
        assert_eq!(each, [true, false, true], "{text}");
        assert_eq!(remaining(&refused), [10, 1, 10], "{text}");
    }
}

pub async fn shadow_peek_refuses_nothing_and_is_never_charged(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (seen, charged) = (named(&limiter, "seen", text), named(&limiter, "two", text));
        seen.check("a").cost(8).await.unwrap();
        for (cost, fits) in [(2, true), (3, false)] {
            let checks = [seen.peek("a").cost(cost).shadow(), charged.check("b").cost(4)];
            let allowed = limiter.check_all(&checks).await.unwrap();
            assert!(allowed.is_allowed(), "{text}");
            assert_eq!(allowed.each()[0].is_allowed(), fits, "{text}");
            assert_eq!(receipts(allowed), [false, true], "{text}");
        }
        assert_eq!(seen.peek("a").await.unwrap().remaining(), 2, "{text}");
        assert_eq!(charged.peek("b").await.unwrap().remaining(), 2, "{text}");
    }
}

pub async fn peeks_alone_charge_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").cost(4).await.unwrap();
        for (cost, refuser) in [(6, None), (7, Some(1))] {
            let checks = [scope.peek("b").cost(cost), scope.peek("a").cost(cost)];
            let peeked = limiter.check_all(&checks).await.unwrap();
            assert_eq!(peeked.refused_by(), refuser, "{text}");
            assert_eq!(remaining(&peeked), [10, 6], "{text}");
            assert_eq!(peeked.reset_after(), peeked.each()[1].reset_after(), "{text}");
            let batch = limiter.batch(&[&checks, &checks[..1]]).await.unwrap();
            let batch: Vec<_> = batch.into_iter().map(|it| it.unwrap().refused_by()).collect();
            assert_eq!(batch, [refuser, None], "{text}");
        }
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 6, "{text}");
    }
}

pub async fn peek_beside_a_charge_of_the_same_key_adds_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        // Alone the peek would be refused.
        let checks = [scope.peek("a").cost(11), scope.check("a").cost(4), scope.check("a").cost(2)];
        let together = limiter.check_all(&checks).await.unwrap();
        assert!(together.is_allowed(), "{text}");
        assert_eq!(remaining(&together), [4, 4, 4], "{text}: all parts have the same decision");
        let mut each = together.into_each().into_iter().map(Decision::into_receipt);
        let (Some(None), Some(Some(receipt)), Some(None)) = (each.next(), each.next(), each.next())
        else {
            panic!("{text}: the first charged part should have the receipt");
        };
        assert_eq!(scope.refund("a", receipt).await, Ok(6), "{text}");

        let checks = [scope.peek("a").shadow(), scope.check("a").cost(11)];
        let refused = limiter.check_all(&checks).await.unwrap();
        assert_eq!((refused.is_allowed(), refused.refused_by()), (false, Some(0)), "{text}");
        // The limit of the charge decides, not that of the peek.
        let larger = text.replace("=10 ", "=20 ");
        let larger = named(&limiter, text, &larger);
        let checks = [larger.peek("b"), scope.check("b").cost(11)];
        let refused = limiter.check_all(&checks).await.unwrap();
        let limits: Vec<u64> = refused.each().iter().map(Decision::limit).collect();
        assert_eq!((refused.is_allowed(), limits), (false, vec![10, 10]), "{text}");
        // A shadow charge beside an enforced peek adds nothing either, and is not charged.
        let checks = [scope.check("a").cost(3).shadow(), scope.peek("a").cost(10)];
        let peeked = limiter.check_all(&checks).await.unwrap();
        assert_eq!(remaining(&peeked), [10, 10], "{text}");
        assert_eq!(receipts(peeked), [false, false], "{text}");
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 10, "{text}");
    }
}

pub async fn peeks_of_the_same_key_are_one_peek_with_the_costs_added(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        for (second, is_allowed) in [(4, true), (5, false)] {
            let checks = [scope.peek("a").cost(6), scope.check("b"), scope.peek("a").cost(second)];
            let together = limiter.check_all(&checks).await.unwrap();
            assert_eq!(together.is_allowed(), is_allowed, "{text}");
            assert_eq!(remaining(&together), [10, 9, 10], "{text}");
        }
    }
}

pub async fn check_of_no_limits_is_allowed(make: Make) {
    let (_, limiter) = open(make);
    let together = limiter.check_all(&[]).await.unwrap();
    assert!(together.is_allowed());
    assert_eq!((together.requests_remaining(), together.refused_by()), (None, None));
    assert_eq!(together.each(), []);
}

pub async fn receipts_of_a_joint_check_refund_their_own_charges(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (one, two) = (named(&limiter, "one", text), named(&limiter, "two", text));
        one.check("a").await.unwrap();
        let checks = [one.check("a").cost(4), two.check("b").cost(5)];
        let together = limiter.check_all(&checks).await.unwrap();
        for (each, (scope, key, cost)) in
            together.into_each().into_iter().zip([(&one, "a", 4), (&two, "b", 5)])
        {
            let receipt = each.into_receipt().unwrap();
            assert_eq!(scope.refund(key, receipt).await, Ok(cost), "{text}");
        }
        assert_eq!(one.peek("a").await.unwrap().remaining(), 9, "{text}");
        assert_eq!(two.peek("b").await.unwrap().remaining(), 10, "{text}");
    }
}

pub async fn one_invalid_cost_charges_no_limit(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        for cost in [0, MAX_UNITS + 1] {
            let checks = [scope.check("a"), scope.check("b").cost(cost)];
            let refused = limiter.check_all(&checks).await;
            assert!(matches!(refused, Err(Error::Cost(_))), "{text}");
        }
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 10, "{text}");
    }
}

pub async fn scopes_of_different_limiters_are_an_error(make: Make) {
    let ((_, limiter), (_, stranger)) = (open(make), open(make));
    let (own, foreign) = (scope(&limiter, LIMITS[0]), scope(&stranger, LIMITS[0]));
    let refused = limiter.check_all(&[own.check("a"), foreign.check("a")]).await;
    assert!(matches!(refused, Err(Error::DifferentLimiters)));
    assert_eq!(own.peek("a").await.unwrap().remaining(), 10);
}

pub async fn joint_check_is_decided_at_the_time_given(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let at_us = START_US + 30 * S;
        let checks =
            [scope.check("a").cost(10).at_us(at_us), scope.check("b").cost(10).at_us(at_us)];
        assert!(limiter.check_all(&checks).await.unwrap().is_allowed(), "{text}");
        let refused = limiter.check_all(&checks).await.unwrap();
        clock.set_us(at_us);
        for key in ["a", "b"] {
            let alone = scope.peek(key).cost(10).await.unwrap();
            assert_eq!(alone.retry_after(), refused.retry_after(), "{text}");
        }
    }
}
