//! How a check is decided.

use tollgate_core::{LeaseState, Verdict};
use tollgate_lease::{TakeAnswer, TakeOneOfSeveral};

use crate::setup::{Driver, KEY, LATEST_US, PACE_US, SECOND_US, answer, cost, open_state, refusal};

#[test]
fn keys_are_strict_until_the_eighth_check_within_a_lease_time() {
    let mut driver = Driver::new();
    for _ in 0..7 {
        assert!(matches!(driver.take(1), TakeAnswer::Strict));
        driver.pass_us(100_000);
    }
    let call = driver.ask(3);
    assert!(call.request.id.is_lease());
    assert_eq!((call.request.expires_us, call.request.used), (None, 0));
    assert_eq!((call.request.need, call.request.most), (Some(cost(3)), 250));
}

#[test]
fn keys_that_are_seldom_asked_for_stay_strict() {
    let mut driver = Driver::new();
    for _ in 0..100 {
        assert!(matches!(driver.take(1), TakeAnswer::Strict));
        driver.pass_us(150_000);
    }
    assert!(driver.leases.is_empty());
}

#[test]
fn open_lease_admits_checks_and_says_what_remains() {
    let mut driver = Driver::leased(100);
    driver.pass_us(1_000);
    let hit = driver.hit(30);
    assert_eq!(hit.decision.verdict, Verdict::Allowed { delay_us: 0 });
    assert_eq!((hit.decision.limit, hit.decision.remaining), (1_000, 570));
    assert_eq!(hit.decision.reset_after_us, 499_000);
    assert_eq!(hit.receipt.cost(), cost(30));
}

#[test]
fn checks_wait_for_the_request_in_flight() {
    let (mut driver, call) = Driver::hot();
    assert!(matches!(driver.take(1), TakeAnswer::Wait));
    let _ = driver.open(&call, 1);
    let again = driver.leases.take_again(driver.now, crate::setup::KEY, &driver.terms, cost(1));
    assert!(matches!(again, TakeAnswer::Hit(_)), "{again:?}");
}

#[test]
fn checks_that_waited_wait_again_only_if_the_store_gave_all() {
    for gave_all in [true, false] {
        let (mut driver, call) = Driver::hot();
        let unused = if gave_all { call.request.want } else { 0 };
        let _ = driver.open(&call, unused);
        driver.pass_us(LATEST_US);
        let _ = driver.ask(unused + 1);
        let waited = cost(unused + 1);
        let again = driver.leases.take_again(driver.now, crate::setup::KEY, &driver.terms, waited);
        match gave_all {
            true => assert!(matches!(again, TakeAnswer::Wait), "{again:?}"),
            false => assert!(matches!(again, TakeAnswer::Refuse(_)), "{again:?}"),
        }
    }
}

#[test]
fn empty_lease_refuses_until_a_pace_has_passed() {
    let (mut driver, call) = Driver::hot();
    let _ = driver.open(&call, 2); // fewer than it wanted
    driver.hit(2);
    driver.pass_us(4_000);
    let refused = driver.refuse(1);
    let wait_us = refused.retry_after_us().unwrap();
    assert!((PACE_US - 4_000..=LATEST_US - 4_000).contains(&wait_us), "{wait_us}");
    assert_eq!(refused.remaining, 0);
    driver.pass_us(wait_us);
    let next = driver.ask(1);
    assert_eq!((next.request.used, next.request.expires_us), (2, Some(77)));
    assert_eq!(next.request.id, call.request.id);
}

#[test]
fn refusal_says_the_wait_of_the_store_if_that_is_longer() {
    let (mut driver, call) = Driver::hot();
    let _ = driver.reply(&call, &refusal(LeaseState::None, 0, 300_000));
    driver.pass_us(1_000);
    assert_eq!(driver.refuse(1).retry_after_us(), Some(299_000));
}

#[test]
fn refusal_of_a_larger_cost_says_nothing_of_smaller_ones() {
    let (mut driver, _) = Driver::hot();
    driver.pass_us(2 * SECOND_US); // the request is lost
    assert!(matches!(driver.take(50), TakeAnswer::Fail));
    driver.pass_us(PACE_US);
    let call = driver.ask(50);
    let _ = driver.reply(&call, &refusal(LeaseState::None, 20, 300_000));
    assert_eq!(driver.refuse(50).retry_after_us(), Some(300_000));
    assert!(driver.refuse(10).retry_after_us().unwrap() <= LATEST_US);
}

#[test]
fn lease_that_did_not_last_a_pace_asks_at_once_for_more() {
    let (mut driver, call) = Driver::hot();
    let want = call.request.want;
    let _ = driver.open(&call, want);
    driver.hit(want);
    let next = driver.ask(1);
    assert!(next.request.want >= (2 * want).min(250), "{} after {want}", next.request.want);
}

#[test]
fn costs_above_the_share_of_a_process_are_strict() {
    let mut driver = Driver::leased(250);
    assert!(matches!(driver.take(251), TakeAnswer::Strict));
    driver.hit(250);
}

#[test]
fn check_on_other_terms_ends_the_lease_and_is_strict() {
    let mut driver = Driver::leased(100);
    driver.hit(30);
    driver.terms = driver.terms.max_share(50).unwrap();
    let TakeAnswer::Changed(end) = driver.take(1) else { panic!("the lease goes on") };
    assert_eq!((end.used.units, end.used.is_last), (30, true));
    assert!(driver.leases.is_empty());
    assert!(matches!(driver.take(1), TakeAnswer::Strict));
}

#[test]
fn limit_of_several_never_waits_and_its_request_decides_no_check() {
    let mut driver = Driver::leased(30);
    let several = |driver: &mut Driver, units: u64| {
        driver.leases.take_one_of_several(driver.now, KEY, &driver.terms, cost(units))
    };
    let TakeOneOfSeveral::Hit(hit) = several(&mut driver, 30) else { panic!("no hit") };
    assert_eq!(driver.leases.refund(driver.now, KEY, hit.receipt), 30);
    driver.hit(30);
    driver.pass_us(LATEST_US);
    let TakeOneOfSeveral::Store(Some(call)) = several(&mut driver, 1) else { panic!("no request") };
    assert_eq!((call.request.need, call.request.used), (None, 30));
    assert!(matches!(several(&mut driver, 1), TakeOneOfSeveral::Store(None)), "it is in flight");
    let _ = driver.reply(&call, &answer(open_state(0, SECOND_US)));
    assert!(matches!(several(&mut driver, 1), TakeOneOfSeveral::Refuse(_)), "the pace");
}

#[test]
fn need_that_only_the_own_lease_prevents_is_asked_again_without_it() {
    let mut driver = Driver::leased(3);
    driver.pass_us(LATEST_US);
    let first = driver.ask(6);
    // 4 remain, and 3 are in the lease: 6 would fit without it.
    let effects = driver.reply(&first, &refusal(open_state(3, SECOND_US), 4, 2_000));
    let (end, again) = (effects.end.unwrap(), effects.ask_again.unwrap());
    assert_eq!((end.hold.id, end.used.is_last), (first.request.id, true));
    assert_eq!(again.request.need, first.request.need);
    assert_ne!(again.request.id, first.request.id);
    assert!(matches!(driver.take(1), TakeAnswer::Wait)); // nothing is taken from the old lease
    let effects = driver.reply(&again, &refusal(open_state(2, SECOND_US), 4, 2_000));
    assert!(effects.end.is_none() && effects.ask_again.is_none()); // only once
}

#[test]
fn units_used_while_a_request_is_in_flight_are_subtracted() {
    let mut driver = Driver::leased(100);
    driver.pass_us(LATEST_US);
    driver.hit(97);
    let renewal = driver.renewal();
    assert_eq!(renewal.request.used, 97);
    driver.hit(2);
    let _ = driver.open(&renewal, 50); // 50 when it was sent, and 2 of them were used since
    assert!(!matches!(driver.take(49), TakeAnswer::Hit(_)));
    driver.hit(48);
}

#[test]
fn answers_to_earlier_requests_and_repeated_answers_change_nothing() {
    let (mut driver, first) = Driver::hot();
    driver.fail(&first);
    driver.pass_us(2 * LATEST_US);
    let second = driver.ask(1);
    let _ = driver.open(&first, 200);
    assert!(matches!(driver.take(1), TakeAnswer::Wait));
    let _ = driver.open(&second, 10);
    driver.hit(10);
    let _ = driver.open(&second, 10);
    assert!(!matches!(driver.take(1), TakeAnswer::Hit(_)));
}

#[test]
fn refund_works_until_the_units_are_in_a_settlement() {
    let mut driver = Driver::leased(100);
    let (first, second) = (driver.hit(60).receipt, driver.hit(36).receipt);
    assert_eq!(driver.leases.refund(driver.now, crate::setup::KEY, first), 60);
    driver.hit(64);
    driver.pass_us(LATEST_US);
    let renewal = driver.renewal();
    assert_eq!(renewal.request.used, 100);
    assert_eq!(driver.leases.refund(driver.now, crate::setup::KEY, second), 0);
    let counters = driver.leases.counters();
    assert_eq!((counters.used_units, counters.refunded_units), (160, 60));
}

#[test]
fn refund_of_a_lease_that_is_over_gives_nothing() {
    let mut driver = Driver::leased(100);
    let receipt = driver.hit(1).receipt;
    driver.pass_us(SECOND_US);
    assert_eq!(driver.leases.refund(driver.now, crate::setup::KEY, receipt), 0);
}

#[test]
fn short_lease_at_the_end_of_a_window_waits_for_the_next_window() {
    let (mut driver, call) = Driver::hot();
    driver.pass_us(200);
    let _ = driver.reply(&call, &answer(open_state(200, 1_500)));
    // 1.5 ms are shorter than the margin. The window ends at most 1.5 ms after the request was sent.
    assert_eq!(driver.refuse(1).retry_after_us(), Some(1_300));
    driver.pass_us(1_300);
    assert_eq!(driver.ask(1).request.expires_us, None);
}
