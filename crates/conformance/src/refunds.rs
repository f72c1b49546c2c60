//! Refunds: by receipt, once, and at most the units that still count.

use std::time::{Duration, Instant};

use tollgate_limiter::{Decision, Error};

use crate::store::{LIMITS, Make, S, START_US, named, open, scope};

/// How long a test waits for a refund.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn refund_gives_back_the_charge(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        scope.check("a").cost(2).await.unwrap();
        let before = scope.peek("a").await.unwrap();
        let receipt = scope.check("a").cost(8).await.unwrap().into_receipt().unwrap();
        assert_eq!(receipt.cost().units(), 8, "{text}");
        assert_eq!(scope.refund("a", receipt).await, Ok(8), "{text}");
        assert_eq!(scope.peek("a").await.unwrap(), before, "{text}");
        assert!(scope.check("a").cost(8).await.unwrap().is_allowed(), "{text}");
        assert!(!scope.check("a").await.unwrap().is_allowed(), "{text}");
    }
}

pub async fn refund_of_a_charge_that_has_left_gives_nothing_back(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let first = scope.check("a").cost(5).await.unwrap();
        // A counter's charge counts until the end of the next window.
        clock.advance(Duration::from_secs(120));
        assert_eq!(scope.check("a").cost(10).await.unwrap().remaining(), 0, "{text}");
        let receipt = first.into_receipt().unwrap();
        assert_eq!(scope.refund("a", receipt).await, Ok(0), "{text}");
        assert!(!scope.check("a").await.unwrap().is_allowed(), "{text}");
    }
}

/// When part of the charge has left, that is less than the charge.
pub async fn refund_returns_how_much_more_remains(make: Make) {
    for text in LIMITS {
        for after_ms in [0, 1, 1_500, 59_999, 60_000, 61_000, 90_000, 117_000, 120_000] {
            let (clock, limiter) = open(make);
            let scope = scope(&limiter, text);
            scope.check("a").cost(2).await.unwrap();
            let receipt = scope.check("a").cost(5).await.unwrap().into_receipt().unwrap();
            clock.advance(Duration::from_millis(after_ms));
            let before = scope.peek("a").await.unwrap().remaining();
            let more = scope.refund("a", receipt).await.unwrap();
            let after = scope.peek("a").await.unwrap().remaining();
            assert_eq!(more, after - before, "{text}, after {after_ms} ms");
        }
    }
}

/// Keys of up to 15 bytes and longer ones, which stores may keep in different ways.
const OTHERS: [(&str, &str); 3] =
    [("a", "b"), ("a", ""), ("a key of more than 15 bytes", "a key of more than 15 bytez")];

pub async fn receipt_of_another_key_or_scope_is_an_error_and_changes_nothing(make: Make) {
    for (text, (own, other)) in LIMITS.into_iter().zip(OTHERS.into_iter().cycle()) {
        let (_, limiter) = open(make);
        let (one, two) = (named(&limiter, "one", text), named(&limiter, "two", text));
        let mismatch = |scope: &str| Err(Error::ReceiptMismatch { scope: scope.to_owned() });
        // All keys have spent units that a wrong refund would give back.
        for (scope, key) in [(&one, own), (&one, other), (&two, own)] {
            assert_eq!(scope.check(key).cost(4).await.unwrap().remaining(), 6, "{text}");
        }
        let charged = async || one.check(own).await.unwrap().into_receipt().unwrap();
        assert_eq!(two.refund(own, charged().await).await, mismatch("two"), "{text}");
        assert_eq!(one.refund(other, charged().await).await, mismatch("one"), "{text}");
        assert_eq!(one.peek(own).await.unwrap().remaining(), 4, "{text}");
        assert_eq!(one.peek(other).await.unwrap().remaining(), 6, "{text}");
        assert_eq!(two.peek(own).await.unwrap().remaining(), 6, "{text}");
    }
}

/// Also in a batch.
pub async fn receipts_of_a_joint_check_belong_to_their_own_keys(make: Make) {
    let (_, limiter) = open(make);
    let scopes = ["one", "two"].map(|name| named(&limiter, name, LIMITS[0]));
    let [one, two] = &scopes;
    for round in 0..2 {
        let checks = || [one.check("a").cost(2), two.check("b").cost(2)];
        let each = match round {
            // The first check has new keys, the second known keys.
            0 => vec![
                limiter.check_all(&checks()).await.unwrap(),
                limiter.check_all(&checks()).await.unwrap(),
            ],
            _ => {
                let batch = limiter.batch(&[&checks()]).await.unwrap();
                batch.into_iter().map(Result::unwrap).collect()
            }
        };
        for together in each {
            let mut receipts = together.into_each().into_iter().filter_map(Decision::into_receipt);
            let (first, second) = (receipts.next().unwrap(), receipts.next().unwrap());
            let swapped = two.refund("b", first).await;
            assert!(matches!(swapped, Err(Error::ReceiptMismatch { .. })), "{swapped:?}");
            assert_eq!(two.refund("b", second).await, Ok(2));
        }
    }
    assert_eq!(one.peek("a").await.unwrap().remaining(), 4);
    assert_eq!(two.peek("b").await.unwrap().remaining(), 10);
}

pub async fn rebuilt_receipt_refunds_its_key(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let first = scope.check("a").cost(4).await.unwrap().into_receipt().unwrap();
        let again = scope.receipt("a", first.cost(), first.place()).unwrap();
        assert_eq!(again, first, "{text}");
        let other = scope.receipt("b", first.cost(), first.place()).unwrap();
        assert!(matches!(scope.refund("a", other).await, Err(Error::ReceiptMismatch { .. })));
        assert_eq!(scope.refund("a", again).await, Ok(4), "{text}");
    }
}

pub async fn refund_to_an_unknown_key_gives_nothing_back(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let receipt = scope.check("a").cost(4).await.unwrap().into_receipt().unwrap();
        scope.reset("a").await.unwrap();
        assert_eq!(scope.refund("a", receipt).await, Ok(0), "{text}");
        let fresh = scope.peek("a").await.unwrap();
        assert_eq!((fresh.remaining(), fresh.reset_after()), (10, Duration::ZERO), "{text}");
    }
}

pub async fn denied_request_has_no_receipt(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.check("a").cost(9).await.unwrap();
        for cost in [2, 10, 11] {
            let refused = scope.check("a").cost(cost).await.unwrap();
            assert!(!refused.is_allowed(), "{text}");
            assert_eq!(refused.into_receipt(), None, "{text}");
        }
    }
}

pub async fn refunded_charge_is_not_listed(make: Make) {
    let (clock, limiter) = open(make);
    let scope = scope(&limiter, LIMITS[1]);
    let mut receipts = Vec::new();
    for second in 0..4 {
        clock.set_us(START_US + second * S);
        receipts.push(scope.check("a").cost(second + 1).await.unwrap().into_receipt().unwrap());
    }
    assert_eq!(scope.refund("a", receipts.remove(1)).await, Ok(2));
    let costs: Vec<u64> =
        scope.entries("a").await.unwrap().iter().map(|entry| entry.cost.units()).collect();
    assert_eq!(costs, [1, 3, 4]);
    assert_eq!(scope.peek("a").await.unwrap().remaining(), 2);
}

pub async fn receipt_from_before_a_reset_gives_back_at_most_what_was_spent_since(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let early = scope.check("a").cost(5).await.unwrap().into_receipt().unwrap();
        let late = scope.check("a").cost(4).await.unwrap().into_receipt().unwrap();
        scope.reset("a").await.unwrap();
        assert_eq!(scope.refund("a", early).await, Ok(0), "{text}: nothing is spent");
        clock.advance(Duration::from_micros(1));
        scope.check("a").cost(3).await.unwrap();
        let back = scope.refund("a", late).await.unwrap();
        assert!(back <= 3, "{text}: {back}");
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 7 + back, "{text}");
        if text.starts_with("sliding-window-log") {
            assert_eq!(back, 0);
        }
    }
}

pub async fn dropped_check_keeps_its_charge_unless_refunded_if_dropped(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let remaining = async || scope.peek("a").await.unwrap().remaining();
        assert_eq!(remaining().await, 10, "{text}");
        drop(scope.check("a").cost(3).into_future());
        assert_eq!(remaining().await, 7, "{text}: charged, although it was never polled");

        drop(scope.check("a").cost(2).refunded_if_dropped().into_future());
        // A remote store refunds when it has answered.
        let began = Instant::now();
        while remaining().await != 7 {
            assert!(began.elapsed() < PATIENCE, "{text}: {}", remaining().await);
            tokio::task::yield_now().await;
        }
    }
}

pub async fn awaited_check_keeps_its_charge_when_refunded_if_dropped(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let decision = scope.check("a").cost(4).refunded_if_dropped().await.unwrap();
        assert!(decision.is_allowed() && decision.receipt().is_some(), "{text}");
        drop(decision);
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 6, "{text}");
        let refused = scope.check("a").cost(7).refunded_if_dropped().await.unwrap();
        assert!(!refused.is_allowed(), "{text}");
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 6, "{text}");
    }
}
