//! P1 to P4, on every algorithm.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Limit, MAX_TIME_US, MAX_UNITS, Retry, Verdict};
use tollgate_limiter::{Error, ManualClock, Scope};

use crate::store::{LIMITS, Make, START_US, block_on, cases, open, scope};
use crate::{any, trace};

/// Spends 4 units, then 3 half a second later, so that the numbers of the state are not round.
async fn spend_some(scope: &Scope, clock: &ManualClock) {
    assert!(scope.check("a").cost(4).await.unwrap().is_allowed());
    clock.advance(Duration::from_millis(500));
    assert!(scope.check("a").cost(3).await.unwrap().is_allowed());
}

pub async fn request_of_the_remaining_units_is_allowed_and_one_more_is_not(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        spend_some(&scope, &clock).await;
        let remaining = scope.peek("a").await.unwrap().remaining();
        assert!(!scope.check("a").cost(remaining + 1).await.unwrap().is_allowed(), "{text}");
        let last = scope.check("a").cost(remaining).await.unwrap();
        assert!(last.is_allowed(), "{text}");
        assert_eq!(last.remaining(), 0, "{text}");
        assert!(!scope.check("a").await.unwrap().is_allowed(), "{text}");
    }
}

pub async fn request_succeeds_after_retry_after_and_not_a_microsecond_before(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        spend_some(&scope, &clock).await;
        for cost in [5, 8, 10] {
            let refused = scope.check("a").cost(cost).await.unwrap();
            let Some(wait) = refused.retry_after() else { panic!("{text}: {cost} fits") };
            clock.advance(wait - Duration::from_micros(1));
            let again = scope.check("a").cost(cost).await.unwrap();
            assert_eq!(again.retry_after(), Some(Duration::from_micros(1)), "{text}");
            clock.advance(Duration::from_micros(1));
            assert!(scope.check("a").cost(cost).await.unwrap().is_allowed(), "{text}");
        }
    }
}

pub async fn all_units_are_back_after_reset_after_and_not_a_microsecond_before(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        spend_some(&scope, &clock).await;
        let reset_after = scope.check("a").await.unwrap().reset_after();
        clock.advance(reset_after - Duration::from_micros(1));
        let almost = scope.peek("a").await.unwrap();
        assert!(almost.remaining() < almost.limit(), "{text}");
        assert_eq!(almost.reset_after(), Duration::from_micros(1), "{text}");
        clock.advance(Duration::from_micros(1));
        let whole = scope.peek("a").await.unwrap();
        assert_eq!((whole.remaining(), whole.reset_after()), (10, Duration::ZERO), "{text}");
        assert!(scope.check("a").cost(10).await.unwrap().is_allowed(), "{text}");
    }
}

pub async fn more_remains_after_more_after_and_not_before(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        assert_eq!(scope.peek("a").await.unwrap().more_after(scope.limit()), None, "{text}");
        spend_some(&scope, &clock).await;
        for cost in [11, 10, 1] {
            let decided = scope.check("a").cost(cost).await.unwrap();
            let Some(wait) = decided.more_after(scope.limit()) else {
                panic!("{text}: all remains")
            };
            assert_eq!(scope.peek("a").await.unwrap().more_after(scope.limit()), Some(wait));
            // For a bucket it may be a microsecond late.
            clock.advance(wait.saturating_sub(Duration::from_micros(2)));
            assert_eq!(scope.peek("a").await.unwrap().remaining(), decided.remaining(), "{text}");
            clock.advance(Duration::from_micros(2));
            assert!(scope.peek("a").await.unwrap().remaining() > decided.remaining(), "{text}");
        }
    }
}

pub async fn more_after_respects_max_wait(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, "leaky-bucket capacity=5 leak=1/s mode=shaping");
    let check = || scope.check("a").max_wait(Duration::from_millis(1_500));
    assert_eq!(check().await.unwrap().more_after(scope.limit()), Some(Duration::from_secs(1)));
    let delayed = check().await.unwrap();
    assert_eq!((delayed.delay(), delayed.remaining()), (Duration::from_secs(1), 0));
    assert_eq!(delayed.more_after(scope.limit()), Some(Duration::from_millis(500)));
    let refused = check().await.unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
    assert_eq!(refused.more_after(scope.limit()), Some(Duration::from_millis(500)));
    let peeked = scope.peek("a").await.unwrap();
    assert_eq!(peeked.more_after(scope.limit()), Some(Duration::from_secs(1)));
}

pub async fn cost_above_the_limit_never_succeeds(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        for key in ["fresh", "spent"] {
            for cost in [11, MAX_UNITS] {
                let refused = scope.check(key).cost(cost).await.unwrap();
                assert_eq!(refused.verdict(), Verdict::Denied { retry: Retry::Never }, "{text}");
                assert_eq!(refused.retry_after(), None, "{text}");
            }
            scope.check("spent").cost(3).await.unwrap();
        }
    }
}

pub async fn denial_costs_nothing(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        spend_some(&scope, &clock).await;
        let before = scope.peek("a").await.unwrap();
        for cost in [10, 11, MAX_UNITS, 10] {
            assert!(!scope.check("a").cost(cost).await.unwrap().is_allowed(), "{text}");
        }
        assert_eq!(scope.peek("a").await.unwrap(), before, "{text}");
        clock.advance(before.reset_after());
        assert_eq!(scope.check("a").await.unwrap().remaining(), 9, "{text}");
    }
}

pub async fn peek_charges_nothing_and_predicts_the_check(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        for cost in [3, 4, 4, 2, 1, 1, 11] {
            let peeked = scope.peek("a").cost(cost).await.unwrap();
            assert_eq!(scope.peek("a").cost(cost).await.unwrap(), peeked, "{text}");
            let checked = scope.check("a").cost(cost).await.unwrap();
            assert_eq!(checked.verdict(), peeked.verdict(), "{text}");
            let spent = if checked.is_allowed() { cost } else { 0 };
            assert_eq!(checked.remaining(), peeked.remaining() - spent, "{text}");
            assert_eq!(peeked.into_receipt(), None, "{text}");
        }
    }
}

pub async fn shaping_limit_returns_the_delay(make: Make) {
    let (clock, limiter) = open(make);
    let scope = scope(&limiter, "leaky-bucket capacity=3 leak=2/s mode=shaping");
    for delay_ms in [0, 500, 1_000] {
        let decision = scope.check("a").await.unwrap();
        assert_eq!(decision.delay(), Duration::from_millis(delay_ms));
    }
    let refused = scope.check("a").await.unwrap();
    assert_eq!(refused.delay(), Duration::ZERO);
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
    clock.advance(Duration::from_millis(500));
    assert_eq!(scope.check("a").await.unwrap().delay(), Duration::from_millis(1_000));
}

pub async fn max_wait_refuses_a_longer_delay(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, "leaky-bucket capacity=10 leak=1/s mode=shaping");
    let max_wait = Duration::from_millis(1_500);
    assert_eq!(scope.check("a").max_wait(max_wait).await.unwrap().delay(), Duration::ZERO);
    assert_eq!(
        scope.check("a").max_wait(max_wait).await.unwrap().delay(),
        Duration::from_millis(1_000)
    );
    let refused = scope.check("a").max_wait(max_wait).await.unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
    assert_eq!(refused.remaining(), 0);
    let delayed = scope.check("a").max_wait(Duration::MAX).await.unwrap();
    assert_eq!(delayed.delay(), Duration::from_millis(2_000));
    assert_eq!(delayed.remaining(), 7);
}

pub async fn invalid_cost_is_an_error_and_charges_nothing(make: Make) {
    let (_, limiter) = open(make);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.check("a").cost(3).await.unwrap();
        for cost in [0, MAX_UNITS + 1, u64::MAX] {
            assert!(matches!(scope.check("a").cost(cost).await, Err(Error::Cost(_))), "{text}");
            assert!(matches!(scope.peek("a").cost(cost).await, Err(Error::Cost(_))), "{text}");
        }
        // The last cost that was set counts.
        assert_eq!(scope.check("a").cost(0).cost(2).await.unwrap().remaining(), 5, "{text}");
    }
}

/// 65,536 charges of 1 unit, each with its own entry.
pub async fn largest_log_admits_exactly_its_limit(make: Make) {
    let (clock, limiter) = open(make);
    let scope = scope(&limiter, "sliding-window-log limit=65536 window=1h");
    let mut spent = 0;
    while spent < 65_536 {
        // 64 checks at once, each with its own time: one by one they would take a minute on some stores. The first is
        // alone: until the node of a key is known, checks to a cluster may overtake each other.
        let count = if spent == 0 { 1 } else { (65_536 - spent).min(64) };
        let answers: Vec<_> = (0..count)
            .map(|_| {
                clock.advance(Duration::from_micros(1));
                scope.check("a").into_future()
            })
            .collect();
        for answer in answers {
            spent += 1;
            let decision = answer.await.unwrap();
            assert!(decision.is_allowed(), "after {spent}");
            assert_eq!(decision.remaining(), 65_536 - spent, "after {spent}");
        }
    }
    let refused = scope.check("a").await.unwrap();
    assert_eq!(
        refused.retry_after(),
        Some(Duration::from_secs(3_600) - Duration::from_micros(65_535))
    );
    assert_eq!(scope.entries("a").await.unwrap().len(), 65_536);
}

pub async fn decisions_with_the_largest_numbers_are_exact(make: Make) {
    let (clock, limiter) = open(make);
    for text in [
        "fixed-window limit=9007199254740991 window=366d",
        "sliding-window-counter limit=9007199254740991 window=366d",
        "token-bucket capacity=1000000 refill=999983/d",
        "leaky-bucket capacity=9007199254740991 leak=9007199254740991/d mode=shaping",
    ] {
        let scope = scope(&limiter, text);
        let limit: Limit = text.parse().unwrap();
        let mut state = limit.fresh();
        for (at_us, cost) in [
            (START_US, limit.size() - 1),
            (START_US + 7, 1),
            (START_US + 8, 1),
            (START_US + 86_400_000_001, limit.size() / 3),
            (START_US + 40_000_000_000_000, limit.size()),
            (MAX_TIME_US, limit.size()),
        ] {
            let ask = tollgate_core::UnitRequest::new(tollgate_core::Cost::new(cost).unwrap());
            clock.set_us(at_us);
            let decision = scope.check("a").cost(cost).await.unwrap();
            assert_eq!(*decision.decided(), limit.check(&mut state, at_us, ask).decision, "{text}");
        }
    }
}

/// P1, P2 and P3 after every decision of a random trace, tested with the limiter itself.
pub fn every_decision_keeps_its_promises(make: Make) {
    proptest!(cases(64), |(limit in any::limit(), steps in trace::any())| {
        let (_, limiter) = open(make);
        let scope = limiter.scope("random", limit).unwrap();
        let mut walk = trace::Walk::new(limit);
        for step in &steps {
            let Some(cost) = walk.aim(step) else { break };
            walk.check(cost);
            block_on(keeps_its_promises(&scope, walk.now_us, cost.units()))?;
        }
    });
}

async fn keeps_its_promises(scope: &Scope, now_us: u64, cost: u64) -> Result<(), TestCaseError> {
    let peek = async |wait_us: u64, cost: u64| {
        scope.peek("a").cost(cost).at_us(now_us + wait_us).await.unwrap()
    };
    let decision = scope.check("a").cost(cost).at_us(now_us).await.unwrap();
    let (limit, remaining) = (decision.limit(), decision.remaining());
    prop_assert!(remaining == 0 || peek(0, remaining).await.is_allowed());
    prop_assert!(remaining == MAX_UNITS || !peek(0, remaining + 1).await.is_allowed());
    if let Some(wait_us) = decision.decided().retry_after_us() {
        prop_assert!(peek(wait_us, cost).await.is_allowed());
        prop_assert!(!peek(wait_us - 1, cost).await.is_allowed());
    }
    let reset_us = decision.decided().reset_after_us;
    prop_assert_eq!(peek(reset_us, 1).await.remaining(), limit);
    prop_assert!(reset_us == 0 || peek(reset_us - 1, 1).await.remaining() < limit);
    match decision.more_after(scope.limit()) {
        Some(wait) => {
            let wait_us = u64::try_from(wait.as_micros()).unwrap();
            prop_assert!(peek(wait_us, 1).await.remaining() > remaining);
            // For a bucket it may be a microsecond late.
            prop_assert_eq!(peek(wait_us.saturating_sub(2), 1).await.remaining(), remaining);
        }
        None => prop_assert_eq!(remaining, limit),
    }
    Ok(())
}
