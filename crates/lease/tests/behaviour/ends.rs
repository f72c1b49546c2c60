//! When a lease is over.

use tollgate_core::{EndedHold, LeaseState};
use tollgate_lease::TakeAnswer;

use crate::setup::{Driver, SECOND_US, answer};

/// The lease lasts 1 s, and its margin is 12 ms.
const LAST_US: u64 = SECOND_US - 12_000 - 1;

#[test]
fn lease_is_over_when_the_monotonic_clock_says_so() {
    let mut driver = Driver::leased(100);
    driver.now.monotonic_us += LAST_US;
    driver.hit(1);
    driver.now.monotonic_us += 1;
    assert!(matches!(driver.take(1), TakeAnswer::Ask(_)));
    assert_eq!(driver.leases.counters().expired_units, 99);
}

#[test]
fn lease_is_over_when_the_wall_clock_says_so() {
    let mut driver = Driver::leased(100);
    driver.now.wall_us += LAST_US;
    driver.hit(1);
    driver.now.wall_us += 1; // as after a suspend that the monotonic clock did not count
    assert!(matches!(driver.take(1), TakeAnswer::Ask(_)));
}

#[test]
fn wall_clock_that_is_set_back_does_not_prolong_a_lease() {
    let mut driver = Driver::leased(100);
    driver.now.wall_us -= 3_600 * SECOND_US;
    driver.now.monotonic_us += LAST_US + 1;
    assert!(matches!(driver.take(1), TakeAnswer::Ask(_)));
}

#[test]
fn lease_time_counts_from_before_the_request_was_sent() {
    let (mut driver, call) = Driver::hot();
    driver.pass_us(300_000);
    let _ = driver.open(&call, 100);
    driver.pass_us(LAST_US - 300_000);
    driver.hit(1);
    driver.pass_us(1);
    assert!(matches!(driver.take(1), TakeAnswer::Ask(_)));
}

#[test]
fn lease_after_one_that_is_over_has_a_fresh_id() {
    let (mut driver, call) = Driver::hot();
    let _ = driver.open(&call, 100);
    driver.hit(10);
    driver.pass_us(2 * SECOND_US);
    let next = driver.ask(1);
    assert_ne!(next.request.id, call.request.id);
    // The old lease is charged in full at its expiry, so nothing is settled.
    assert_eq!((next.request.used, next.request.expires_us), (0, None));
}

#[test]
fn lease_that_the_store_has_ended_is_dropped_and_a_fresh_one_asked_for_at_once() {
    let mut driver = Driver::leased(100);
    driver.pass_us(20_000);
    driver.hit(98);
    let renewal = driver.renewal();
    let _ = driver.reply(&renewal, &answer(LeaseState::Ended(EndedHold::Unknown)));
    let next = driver.ask(1);
    assert_ne!(next.request.id, renewal.request.id);
    assert_eq!(next.request.expires_us, None);
    assert_eq!(driver.leases.counters().expired_units, 2);
}

#[test]
fn leases_end_when_the_process_shuts_down() {
    let mut driver = Driver::leased(100);
    driver.hit(30);
    let ends = driver.leases.end_all();
    assert_eq!((ends.len(), ends[0].used.units, ends[0].used.is_last), (1, 30, true));
    assert!(driver.leases.is_empty());
    assert!(matches!(driver.take(1), TakeAnswer::Strict));
}

#[test]
fn lease_that_is_just_being_opened_ends_too() {
    let (mut driver, call) = Driver::hot();
    let ends = driver.leases.end_where(|key| key == crate::setup::KEY);
    assert_eq!((ends[0].hold.id, ends[0].used.units), (call.request.id, 0));
    let _ = driver.open(&call, 100); // the answer comes too late
    assert!(driver.leases.is_empty());
}

#[test]
fn only_the_selected_leases_end() {
    let mut driver = Driver::leased(100);
    assert_eq!(driver.leases.end_where(|key| key == "another"), []);
    driver.hit(1);
}
