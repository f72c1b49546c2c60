//! Holds of several limits: reserved all or none, settled and extended together, and made again elsewhere.
//!
//! For stores that have holds: [`hold_suite!`](crate::hold_suite) runs these.

use std::time::Duration;

use tollgate_core::{EndedHold, HoldError};
use tollgate_limiter::{
    Error, Hold, HoldSettlement, JointHold, JointHoldDecision, Limiter, ReservationPart, Scope,
};

use crate::holds::LIMITS;
use crate::store::{Make, S, START_US, named, open};

const SECOND: Duration = Duration::from_secs(1);

/// Two names with the same limit.
fn pair(limiter: &Limiter, text: &str) -> (Scope, Scope) {
    (named(limiter, "first", text), named(limiter, "second", text))
}

async fn reserve_all(parts: &[ReservationPart<'_>], limiter: &Limiter) -> JointHoldDecision {
    limiter.reserve_all(parts).await.unwrap()
}

async fn hold_all(parts: &[ReservationPart<'_>], limiter: &Limiter) -> JointHold {
    reserve_all(parts, limiter).await.into_hold().unwrap()
}

async fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").await.unwrap().remaining()
}

async fn both(first: &Scope, second: &Scope) -> (u64, u64) {
    (remaining(first).await, remaining(second).await)
}

fn charged(settled: &[HoldSettlement]) -> Vec<u64> {
    settled.iter().map(HoldSettlement::charged_units).collect()
}

pub async fn refused_reservation_of_several_limits_holds_and_charges_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        second.check("a").cost(6).await.unwrap();
        for parts in [
            [first.reserve("a").cost(5).into(), second.reserve("a").cost(5).into()],
            [first.reserve("a").cost(5).into(), second.check("a").cost(5).into()],
            [first.check("a").cost(5).into(), second.reserve("a").cost(5).into()],
            [first.reserve("a").cost(5).into(), second.peek("a").cost(5).into()],
        ] {
            let refused = reserve_all(&parts, &limiter).await;
            assert!(!refused.is_allowed() && refused.hold().is_none(), "{text}");
            assert_eq!(refused.decision().refused_by(), Some(1), "{text}");
            assert_eq!(refused.retry_after(), refused.decision().each()[1].retry_after(), "{text}");
            assert_eq!(both(&first, &second).await, (10, 4), "{text}");
            assert!(first.state("a").await.unwrap().holds.is_empty(), "{text}");
        }
    }
}

pub async fn reservation_reports_the_tightest_limit_and_each_limits_own_state(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [first.reserve("a").cost(6).into(), second.check("a").cost(3).into()];
        let reserved = reserve_all(&parts, &limiter).await;
        let decision = reserved.decision();
        assert_eq!((decision.limit(), decision.remaining()), (Some(10), Some(4)), "{text}");
        assert_eq!(decision.requests_remaining(), Some(0), "{text}");
        let each: Vec<u64> = decision.each().iter().map(|each| each.remaining()).collect();
        assert_eq!(each, [4, 7], "{text}");
        // Only what was charged at once can be refunded.
        let receipts = decision.each().iter().map(|each| each.receipt().is_some());
        assert_eq!(receipts.collect::<Vec<_>>(), [false, true], "{text}");
    }
}

pub async fn joint_hold_is_settled_with_the_use_of_each_limit(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [first.reserve("a").cost(6).into(), second.reserve("a").cost(5).into()];
        let hold = hold_all(&parts, &limiter).await;
        assert_eq!(both(&first, &second).await, (4, 5), "{text}");
        let used = |so_far: [u64; 2]| {
            let mut used = so_far.into_iter();
            move |_: &_| used.next().unwrap()
        };
        let in_part = hold.settle_part(used([2, 1])).await.unwrap();
        assert_eq!(charged(&in_part), [2, 1], "{text}");
        assert_eq!(both(&first, &second).await, (4, 5), "{text}: the rest stays held");
        let settled = hold.settle(used([3, 5])).await.unwrap();
        assert_eq!(charged(&settled), [1, 4], "{text}");
        assert_eq!(both(&first, &second).await, (7, 5), "{text}");
        let receipt = settled.into_iter().next_back().unwrap().into_receipt().unwrap();
        assert_eq!(second.refund("a", receipt).await, Ok(4), "{text}");
    }
}

pub async fn released_joint_hold_charges_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [first.reserve("a").cost(6).into(), second.reserve("a").cost(5).into()];
        let released = hold_all(&parts, &limiter).await.release().await.unwrap();
        assert_eq!(charged(&released), [0, 0], "{text}");
        assert_eq!(both(&first, &second).await, (10, 10), "{text}");
    }
}

pub async fn each_part_of_a_joint_hold_expires_at_its_own_time(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let hold = hold_all(
            &[
                first.reserve("a").cost(6).hold_for(SECOND).into(),
                second.reserve("a").cost(5).hold_for(3 * SECOND).into(),
            ],
            &limiter,
        )
        .await;
        let expiries: Vec<u64> = hold.holds().iter().map(|hold| hold.expires_at_us()).collect();
        assert_eq!(expiries, [START_US + S, START_US + 3 * S], "{text}");
        clock.set_us(START_US + S);
        let settled = hold.settle(|_| 1).await.unwrap();
        assert_eq!(settled[0].ended(), Some(EndedHold::Expired), "{text}");
        assert_eq!((settled[1].ended(), settled[1].charged_units()), (None, 1), "{text}");
        assert_eq!(both(&first, &second).await, (4, 9), "{text}");
    }
}

pub async fn joint_extension_extends_all_holds_or_none(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [first.reserve("a").cost(2).into(), second.reserve("a").cost(6).into()];
        let hold = hold_all(&parts, &limiter).await;
        clock.set_us(START_US + S / 2);
        let refused = hold.extend(|_| (5, SECOND)).await.unwrap();
        assert_eq!((refused.is_granted(), refused.ended()), (false, None), "{text}");
        assert_eq!(refused.retry_after(), refused.each()[1].retry_after(), "{text}");
        assert!(refused.retry_after().is_some(), "{text}");
        assert!(refused.each()[0].decided().is_allowed() && !refused.each()[0].is_granted());
        assert_eq!(both(&first, &second).await, (8, 4), "{text}");
        let granted = hold.extend(|_| (4, SECOND)).await.unwrap();
        assert!(granted.is_granted(), "{text}");
        assert_eq!(both(&first, &second).await, (4, 0), "{text}");
        for hold in hold.holds() {
            assert_eq!(hold.expires_at_us(), START_US + 3 * S / 2, "{text}");
        }
        // More time is never refused.
        assert!(hold.extend(|_| (0, 9 * SECOND)).await.unwrap().is_granted(), "{text}");
        first.reset("a").await.unwrap();
        let ended = hold.extend(|_| (0, SECOND)).await.unwrap();
        assert_eq!((ended.is_granted(), ended.ended()), (false, Some(EndedHold::Unknown)));
        assert_eq!(hold.holds()[1].expires_at_us(), START_US + S / 2 + 9 * S, "{text}");
    }
}

pub async fn shadow_part_of_a_reservation_refuses_nothing(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = || {
            let shadow = second.reserve("a").cost(7).shadow();
            [first.reserve("a").cost(2).into(), shadow.into()]
        };
        let fits = hold_all(&parts(), &limiter).await;
        assert_eq!((fits.holds().len(), fits.of_part(1).is_some()), (2, true), "{text}");
        let reserved = reserve_all(&parts(), &limiter).await;
        assert!(reserved.is_allowed(), "{text}");
        assert!(!reserved.decision().each()[1].is_allowed(), "{text}");
        let hold = reserved.into_hold().unwrap();
        assert_eq!((hold.holds().len(), hold.of_part(1).is_none()), (1, true), "{text}");
        assert_eq!(both(&first, &second).await, (6, 3), "{text}");
        // Refused by the enforced part: the shadow holds nothing.
        let parts = [first.reserve("a").cost(7).into(), second.reserve("a").shadow().into()];
        assert!(!reserve_all(&parts, &limiter).await.is_allowed(), "{text}");
        assert_eq!(both(&first, &second).await, (6, 3), "{text}");
    }
}

pub async fn parts_of_one_key_are_one_hold_for_the_longest_time(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [
            first.reserve("a").cost(2).hold_for(SECOND).into(),
            first.check("a").cost(1).into(),
            second.check("a").into(),
            first.reserve("a").cost(3).hold_for(2 * SECOND).into(),
            first.peek("a").cost(9).into(),
        ];
        let reserved = reserve_all(&parts, &limiter).await;
        let each: Vec<u64> =
            reserved.decision().each().iter().map(|each| each.remaining()).collect();
        assert_eq!(each, [4, 4, 9, 4, 4], "{text}");
        let hold = reserved.into_hold().unwrap();
        let of_parts: Vec<bool> = (0..6).map(|part| hold.of_part(part).is_some()).collect();
        assert_eq!(of_parts, [true, true, false, true, false, false], "{text}");
        assert_eq!(hold.holds()[0].expires_at_us(), START_US + 2 * S, "{text}");
        // The unit of the check is charged in addition to what was used.
        assert_eq!(charged(&hold.settle(|_| 4).await.unwrap()), [5], "{text}");
        assert_eq!(both(&first, &second).await, (5, 9), "{text}");
    }
}

pub async fn reservation_without_holds_is_a_check(make: Make) {
    let (_, limiter) = open(make);
    let (first, second) = pair(&limiter, LIMITS[0]);
    let parts = [first.check("a").cost(3).into(), second.peek("a").into()];
    let hold = hold_all(&parts, &limiter).await;
    assert!(hold.is_empty());
    assert_eq!(hold.settle(|_| 9).await.unwrap(), []);
    assert_eq!(both(&first, &second).await, (7, 10));
    let nothing = reserve_all(&[], &limiter).await;
    assert!(nothing.is_allowed() && nothing.hold().is_some_and(JointHold::is_empty));
}

pub async fn hold_made_again_from_its_reference_is_settled_once(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let parts = [first.reserve("a").cost(6).into(), second.reserve("a").cost(5).into()];
        let hold = hold_all(&parts, &limiter).await;
        let references: Vec<_> = hold.holds().iter().map(|hold| hold.reference()).collect();
        drop(hold);
        let again = || {
            let holds = [&first, &second].into_iter().zip(&references);
            JointHold::of(holds.map(|(scope, own)| scope.hold("a", *own).unwrap()).collect())
        };
        let longer = again().unwrap();
        assert!(longer.extend(|_| (0, 90 * SECOND)).await.unwrap().is_granted(), "{text}");
        // The old references are good as well: they only tell an expired hold from an unknown one.
        clock.set_us(START_US + 70 * S);
        assert_eq!(charged(&again().unwrap().settle(|_| 2).await.unwrap()), [2, 2], "{text}");
        for ended in again().unwrap().settle(|_| 2).await.unwrap() {
            assert_eq!(ended.ended(), Some(EndedHold::Expired), "{text}");
        }
        for ended in longer.settle(|_| 2).await.unwrap() {
            assert_eq!(ended.ended(), Some(EndedHold::Unknown), "{text}");
        }
        assert_eq!(both(&first, &second).await, (8, 8), "{text}");
    }
}

pub async fn operations_on_holds_are_made_at_the_time_given(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let (first, second) = pair(&limiter, text);
        let at_us = START_US + 600 * S;
        let parts = [
            first.reserve("a").cost(6).hold_for(SECOND).at_us(at_us).into(),
            second.reserve("a").cost(5).hold_for(SECOND).into(),
        ];
        let hold = hold_all(&parts, &limiter).await;
        for hold in hold.holds() {
            assert_eq!(hold.expires_at_us(), at_us + S, "{text}");
        }
        let hold = hold.at_us(at_us + S - 1);
        assert!(hold.extend(|_| (1, SECOND)).await.unwrap().is_granted(), "{text}");
        let mut holds = hold.at_us(at_us + 2 * S - 2).into_holds();
        assert_eq!(holds.pop().unwrap().settle(4).await.unwrap().charged_units(), 4, "{text}");
        let late = holds.pop().unwrap().at_us(at_us + 2 * S - 1).settle(4).await.unwrap();
        assert_eq!(late.ended(), Some(EndedHold::Expired), "{text}");
    }
}

pub async fn concurrency_limit_is_reserved_beside_other_limits_and_released_when_dropped(
    make: Make,
) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let jobs = named(&limiter, "jobs", "concurrency limit=2 for=5m");
        let tokens = named(&limiter, "tokens", text);
        let parts = || {
            let tokens = tokens.reserve("a").cost(3).hold_for(SECOND);
            [jobs.reserve("a").into(), tokens.into()]
        };
        let hold = hold_all(&parts(), &limiter).await;
        let expiries: Vec<u64> = hold.holds().iter().map(|hold| hold.expires_at_us()).collect();
        assert_eq!(expiries, [START_US + 300 * S, START_US + S], "{text}");
        let settled = hold.settle(|_| 2).await.unwrap();
        assert_eq!(charged(&settled), [0, 2], "{text}: nothing is charged to a concurrency limit");
        assert_eq!(both(&jobs, &tokens).await, (2, 8), "{text}");
        drop(hold_all(&parts(), &limiter).await);
        assert_eq!(both(&jobs, &tokens).await, (2, 5), "{text}: the others are left to expire");
        let left = hold_all(&parts(), &limiter).await;
        let references = left.into_holds().into_iter().map(Hold::into_reference);
        let place = references.into_iter().next().unwrap();
        assert_eq!(both(&jobs, &tokens).await, (1, 2), "{text}");
        drop(jobs.hold("a", place).unwrap());
        assert_eq!(remaining(&jobs).await, 1, "{text}: a hold that was made again stays");
        // Nothing is held when the other limit refuses.
        assert!(!reserve_all(&parts(), &limiter).await.is_allowed(), "{text}");
        assert_eq!(both(&jobs, &tokens).await, (1, 2), "{text}");
        let checked = limiter.reserve_all(&[jobs.check("a").into()]).await;
        assert_eq!(checked.unwrap_err(), Error::MustReserve { scope: "jobs".to_owned() });
        let looked = [jobs.peek("a").cost(2).into(), tokens.reserve("a").into()];
        assert_eq!(reserve_all(&looked, &limiter).await.decision().refused_by(), Some(0));
    }
}

pub async fn invalid_part_of_a_reservation_holds_nothing(make: Make) {
    let (_, limiter) = open(make);
    let (first, second) = pair(&limiter, LIMITS[0]);
    let reserve = async |part: ReservationPart<'_>| {
        limiter.reserve_all(&[first.reserve("a").into(), part]).await.unwrap_err()
    };
    assert!(matches!(reserve(second.reserve("a").cost(0).into()).await, Error::Cost(_)));
    assert!(matches!(reserve(second.check("a").cost(0).into()).await, Error::Cost(_)));
    let no_time = reserve(second.reserve("a").hold_for(Duration::ZERO).into()).await;
    assert_eq!(no_time, Error::Hold(HoldError::NoTime));
    let shaping = named(&limiter, "shaping", "leaky-bucket capacity=10 leak=1/s mode=shaping");
    assert_eq!(reserve(shaping.reserve("a").into()).await, Error::Hold(HoldError::Shaping));
    let long = vec![0; tollgate_limiter::MAX_KEY_BYTES + 1];
    assert!(matches!(reserve(second.reserve(&long).into()).await, Error::KeyTooLong { .. }));
    let (_, elsewhere) = open(make);
    let other = named(&elsewhere, "other", LIMITS[0]);
    assert_eq!(reserve(other.reserve("a").into()).await, Error::DifferentLimiters);
    assert_eq!(both(&first, &second).await, (10, 10));
    // A shaping limit can be charged next to a hold.
    let parts = [first.reserve("a").into(), shaping.check("a").cost(3).into()];
    assert!(reserve_all(&parts, &limiter).await.is_allowed());
}

pub async fn holds_of_one_key_cannot_be_joined(make: Make) {
    let (_, limiter) = open(make);
    let (first, second) = pair(&limiter, LIMITS[0]);
    let hold = async |scope: &Scope| scope.reserve("a").await.unwrap().into_hold().unwrap();
    let twice = JointHold::of(vec![hold(&first).await, hold(&second).await, hold(&first).await]);
    assert_eq!(twice.unwrap_err(), Error::SameKeyTwice { scope: "first".to_owned() });
    let (_, elsewhere) = open(make);
    let other = named(&elsewhere, "other", LIMITS[0]);
    let apart = JointHold::of(vec![hold(&first).await, hold(&other).await]);
    assert_eq!(apart.unwrap_err(), Error::DifferentLimiters);
}
