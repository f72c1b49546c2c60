//! A name whose limit changes: the state of its keys is carried over, and spent units stay spent.

use std::time::Duration;

use tollgate_core::{Cost, Entry, Limit, UnitRequest};
use tollgate_limiter::{Limiter, Scope};

use crate::store::{LIMITS, Make, S, START_US, named, open};

/// The limit of this text with another size.
fn sized(text: &str, size: u64) -> String {
    let text = text.replace("=10 ", &format!("={size} "));
    assert_eq!(text.parse::<Limit>().unwrap().size(), size);
    text
}

/// Two limits under one name.
fn both(limiter: &Limiter, old: &str, new: &str) -> (Scope, Scope) {
    (named(limiter, "api", old), named(limiter, "api", new))
}

/// Every pair of different limits.
fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let every = |old: &&'static str| LIMITS.map(|new| (*old, new));
    LIMITS.iter().flat_map(every).filter(|(old, new)| old != new)
}

async fn remaining(scope: &Scope, key: &str) -> u64 {
    scope.peek(key).await.unwrap().remaining()
}

pub async fn spent_units_stay_spent_under_any_other_limit(make: Make) {
    for old in LIMITS {
        for new in LIMITS {
            for (size, left) in [(10, 6), (20, 16), (5, 1), (4, 0), (3, 0)] {
                let (_, limiter) = open(make);
                let new = sized(new, size);
                let (before, after) = both(&limiter, old, &new);
                before.check("a").cost(4).await.unwrap();
                assert_eq!(remaining(&after, "a").await, left, "{old}, then {new}");
                assert_eq!(remaining(&after, "b").await, size, "{old}, then {new}: another key");
                if left > 0 {
                    assert!(after.check("a").cost(left).await.unwrap().is_allowed(), "{new}");
                }
                let refused = after.check("a").await.unwrap();
                assert_eq!((refused.is_allowed(), refused.remaining()), (false, 0), "{new}");
                assert_eq!(refused.limit(), size, "{old}, then {new}");
            }
        }
    }
}

pub async fn key_under_two_limits_in_turn_has_one_state(make: Make) {
    for (one, two) in pairs() {
        let (_, limiter) = open(make);
        let (one, two) = both(&limiter, one, two);
        for spent in 1..=10 {
            let scope = if spent % 2 == 0 { &one } else { &two };
            let decision = scope.check("a").await.unwrap();
            assert!(decision.is_allowed(), "{} in turn with {}", one.limit(), two.limit());
            assert_eq!(decision.remaining(), 10 - spent, "{} {}", one.limit(), two.limit());
        }
        for scope in [&one, &two, &one] {
            assert!(!scope.check("a").await.unwrap().is_allowed(), "{}", scope.limit());
        }
    }
}

/// At ten times the rate a tenth of the wait is left. The refused check stores the state at the new rate.
pub async fn retry_after_is_exact_under_a_faster_rate(make: Make) {
    for slow in &LIMITS[3..] {
        let (clock, limiter) = open(make);
        let fast = slow.replace("=1/s", "=10/s");
        let (slow, fast) = both(&limiter, slow, &fast);
        slow.check("a").cost(10).await.unwrap();
        clock.advance(Duration::from_millis(250));
        let refused = fast.check("a").await.unwrap();
        // A quarter of a unit came back at the old rate; the rest comes back at the new rate.
        assert_eq!(refused.retry_after(), Some(Duration::from_millis(75)), "{}", fast.limit());
        clock.advance(Duration::from_micros(74_999));
        let too_early = fast.check("a").await.unwrap();
        assert_eq!(too_early.retry_after(), Some(Duration::from_micros(1)), "{}", fast.limit());
        clock.advance(Duration::from_micros(1));
        assert!(fast.check("a").await.unwrap().is_allowed(), "{}", fast.limit());
    }
}

pub async fn retry_after_is_exact_between_any_two_limits(make: Make) {
    for (old, new) in pairs() {
        for cost in [1, 4, 10] {
            let (clock, limiter) = open(make);
            let (before, after) = both(&limiter, old, new);
            clock.advance(Duration::from_millis(7_777));
            before.check("a").cost(10).await.unwrap();
            clock.advance(Duration::from_millis(333));
            let refused = after.check("a").cost(cost).await.unwrap();
            let wait = refused.retry_after().unwrap();
            clock.advance(wait - Duration::from_micros(1));
            let too_early = after.peek("a").cost(cost).await.unwrap();
            assert!(!too_early.is_allowed(), "{old}, then {new}: {cost} after {wait:?}");
            clock.advance(Duration::from_micros(1));
            let in_time = after.check("a").cost(cost).await.unwrap();
            assert!(in_time.is_allowed(), "{old}, then {new}: {cost} after {wait:?}");
        }
    }
}

pub async fn peek_under_another_limit_changes_nothing(make: Make) {
    for (old, new) in pairs() {
        let (clock, limiter) = open(make);
        let (_, untouched) = open(make);
        let faster = sized(new, 3).replace("=1/s", "=10/s").replace("=1m", "=1s");
        let (scope, other) = both(&limiter, old, &faster);
        let alone = named(&untouched, "api", old);
        for scope in [&scope, &alone] {
            scope.check("a").cost(10).await.unwrap();
        }
        assert_eq!(other.peek("a").await.unwrap().remaining(), 0, "{old}, peeked at as {faster}");
        other.entries("a").await.unwrap();
        let among = [other.peek("a"), other.check("b")];
        let refused = limiter.check_all(&among).await.unwrap();
        assert_eq!(refused.refused_by(), Some(0), "{old}, peeked at as {faster}");
        clock.advance(Duration::from_millis(500));
        let at_us = START_US + S / 2;
        let expected = alone.peek("a").at_us(at_us).await.unwrap();
        assert_eq!(scope.peek("a").await.unwrap(), expected, "{old}, peeked at as {faster}");
        let expected = alone.check("a").at_us(at_us).await.unwrap();
        assert_eq!(scope.check("a").await.unwrap(), expected, "{old}, peeked at as {faster}");
    }
}

pub async fn refund_under_another_limit_gives_back_what_the_old_one_would(make: Make) {
    for (old, new) in pairs().chain([(LIMITS[0], "fixed-window limit=20 window=1m")]) {
        let (clock, limiter) = open(make);
        let (before, after) = both(&limiter, old, new);
        let mut state = before.limit().fresh();
        let ask = UnitRequest::new(Cost::new(4).unwrap());
        before.limit().check(&mut state, START_US, ask);
        before.check("a").cost(4).await.unwrap();
        let expected = before.limit().check(&mut state, START_US, ask).receipt.unwrap();
        let receipt = before.check("a").cost(4).await.unwrap().into_receipt().unwrap();
        clock.advance(Duration::from_millis(500));
        let now_us = START_US + S / 2;
        let back = before.limit().refund(&mut state, now_us, expected);
        assert_eq!(after.refund("a", receipt).await, Ok(back), "{old}, then {new}");
        // The refund does not move the key to the other limit.
        clock.advance(Duration::from_millis(500));
        let carried = after.limit().carry_over(before.limit(), state, START_US + S, Cost::ONE);
        let (limit, state) = carried.decides(after.limit());
        let expected = limit.peek(&state, START_US + S, UnitRequest::new(Cost::ONE));
        assert_eq!(after.peek("a").await.unwrap().decided(), &expected, "{old}, then {new}");
    }
}

pub async fn receipt_refunds_under_the_same_algorithm_with_another_size(make: Make) {
    for (old, new) in LIMITS.map(|text| (text, sized(text, 15))) {
        let (_, limiter) = open(make);
        let (before, after) = both(&limiter, old, &new);
        let receipt = before.check("a").cost(4).await.unwrap().into_receipt().unwrap();
        after.check("a").cost(3).await.unwrap();
        let (back, left) = if old.ends_with("shaping") { (0, 8) } else { (4, 12) };
        assert_eq!(after.refund("a", receipt).await, Ok(back), "{old}, then {new}");
        assert_eq!(remaining(&after, "a").await, left, "{old}, then {new}");
    }
}

pub async fn reset_forgets_a_key_under_any_limit(make: Make) {
    for (old, new) in pairs() {
        let (_, limiter) = open(make);
        let (before, after) = both(&limiter, old, new);
        for key in ["a", "b"] {
            before.check(key).cost(10).await.unwrap();
        }
        after.reset("a").await.unwrap();
        for scope in [&before, &after] {
            assert_eq!(remaining(scope, "a").await, 10, "{old}, reset as {new}");
            assert_eq!(remaining(scope, "b").await, 0, "{old}, reset as {new}: another key");
        }
        assert_eq!(after.check("a").await.unwrap().remaining(), 9, "{old}, reset as {new}");
        assert_eq!(before.check("a").await.unwrap().remaining(), 8, "{old}, reset as {new}");
    }
}

pub async fn entries_are_listed_under_the_requested_limit(make: Make) {
    let (clock, limiter) = open(make);
    let (minute, bucket) = both(&limiter, LIMITS[1], LIMITS[3]);
    let second = named(&limiter, "api", "sliding-window-log limit=10 window=1s");
    let entry = |at_us, cost| Entry { at_us, cost: Cost::new(cost).unwrap() };
    minute.check("a").cost(2).await.unwrap();
    clock.advance(Duration::from_secs(1));
    second.check("a").cost(3).await.unwrap();
    let now_us = START_US + S;
    assert_eq!(second.entries("a").await.unwrap(), [entry(now_us, 3)]);
    assert_eq!(bucket.entries("a").await.unwrap(), []);
    bucket.check("b").cost(5).await.unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(minute.entries("b").await.unwrap(), [entry(now_us + 2 * S, 3)], "spent now");
    assert_eq!(remaining(&bucket, "b").await, 7, "the listing changed nothing");
}

/// It stores the carried states of all limits: refusing, admitting and shadow limits.
pub async fn refused_joint_check_carries_over_every_changed_limit(make: Make) {
    let (clock, limiter) = open(make);
    let slow = "token-bucket capacity=10 refill=1/s";
    let fast = "token-bucket capacity=10 refill=10/s";
    let names = ["refuser", "admitter", "shadow"];
    for (name, cost) in names.iter().zip([10, 5, 10]) {
        named(&limiter, name, slow).check("a").cost(cost).await.unwrap();
    }
    let scopes = names.map(|name| named(&limiter, name, fast));
    let checks = [scopes[0].check("a"), scopes[1].check("a"), scopes[2].check("a").shadow()];
    let refused = limiter.check_all(&checks).await.unwrap();
    assert_eq!((refused.is_allowed(), refused.refused_by()), (false, Some(0)));
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
    clock.advance(Duration::from_micros(99_999));
    assert!(!limiter.check_all(&checks).await.unwrap().is_allowed());
    clock.advance(Duration::from_micros(1));
    let admitted = limiter.check_all(&checks).await.unwrap();
    assert!(admitted.is_allowed());
    let left: Vec<u64> = admitted.each().iter().map(|each| each.remaining()).collect();
    // A tenth of a second is one unit at the new rate, and none at the old one.
    assert_eq!(left, [0, 5, 0]);
}

pub async fn same_key_under_two_limits_of_one_name_is_one_charge(make: Make) {
    let (_, limiter) = open(make);
    let (small, large) = both(&limiter, LIMITS[0], "fixed-window limit=20 window=1m");
    let checks = [small.check("a").cost(3), large.check("a").cost(4)];
    let admitted = limiter.check_all(&checks).await.unwrap();
    // The limit of the first part decides, with the sum of the costs.
    assert_eq!(admitted.each().iter().map(|each| each.limit()).collect::<Vec<_>>(), [10, 10]);
    assert_eq!(admitted.each().iter().map(|each| each.remaining()).collect::<Vec<_>>(), [3, 3]);
    assert!(!limiter.check_all(&checks).await.unwrap().is_allowed());
    let checks = [large.check("a").cost(3), small.check("a").cost(4)];
    assert_eq!(limiter.check_all(&checks).await.unwrap().each()[1].remaining(), 6);
    // The limit of a shadow part does not decide.
    let checks = [small.check("a").shadow(), large.check("a").cost(6)];
    let admitted = limiter.check_all(&checks).await.unwrap();
    assert!(admitted.is_allowed());
    assert_eq!(admitted.each().iter().map(|each| each.limit()).collect::<Vec<_>>(), [20, 20]);
    assert_eq!(remaining(&large, "a").await, 0);
}

pub async fn requests_of_a_batch_may_use_different_limits(make: Make) {
    for (one, two) in pairs() {
        let (_, limiter) = open(make);
        let (one, two) = both(&limiter, one, two);
        let requests = [one.check("a").cost(4), two.check("a").cost(4), one.check("a").cost(4)];
        let requests: Vec<_> = requests.iter().map(std::slice::from_ref).collect();
        let answers = limiter.batch(&requests).await.unwrap();
        let decided: Vec<_> = answers
            .iter()
            .map(|answer| {
                let answer = answer.as_ref().unwrap();
                (answer.is_allowed(), answer.each()[0].remaining())
            })
            .collect();
        let pair = format!("{}, then {}", one.limit(), two.limit());
        assert_eq!(decided, [(true, 6), (true, 2), (false, 2)], "{pair}");
    }
}

/// On a new clock the state is carried over first, and then its time restarts.
pub async fn changed_limit_on_a_new_clock_locks_no_key_out(make: Make) {
    for (old, new) in pairs() {
        let (clock, limiter) = open(make);
        let (before, after) = both(&limiter, old, new);
        let mut state = before.limit().fresh();
        let ask = UnitRequest::new(Cost::new(7).unwrap());
        before.limit().check(&mut state, START_US, ask);
        before.check("a").cost(7).await.unwrap();
        let now_us = START_US - 3_600 * S;
        clock.set_us(now_us);
        let carried = after.limit().carry_over(before.limit(), state, now_us, ask.cost);
        let (limit, mut state) = carried.decides(after.limit());
        let expected = limit.check(&mut state, now_us, ask).decision;
        let expected = limit.in_place_of(after.limit(), expected);
        let refused = after.check("a").cost(7).await.unwrap();
        assert_eq!(refused.decided(), &expected, "{old}, then {new}");
        clock.advance(refused.retry_after().unwrap());
        assert!(after.check("a").cost(7).await.unwrap().is_allowed(), "{old}, then {new}");
    }
}
