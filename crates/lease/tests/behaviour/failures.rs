//! A store that fails.

use tollgate_lease::TakeAnswer;

use crate::setup::{Driver, LATEST_US, PACE_US, SECOND_US};

#[test]
fn lease_is_used_up_and_then_checks_fail() {
    let mut driver = Driver::leased(100);
    driver.pass_us(LATEST_US);
    driver.hit(98);
    let renewal = driver.renewal();
    driver.fail(&renewal);
    driver.hit(2);
    assert!(matches!(driver.take(1), TakeAnswer::Fail));
    driver.pass_us(PACE_US);
    assert_eq!(driver.ask(1).request.used, 100);
    assert!(matches!(driver.take(1), TakeAnswer::Wait));
}

#[test]
fn failing_store_is_asked_once_a_pace() {
    let (mut driver, mut call) = Driver::hot();
    for _ in 0..10 {
        driver.fail(&call);
        for _ in 0..9 {
            assert!(matches!(driver.take(1), TakeAnswer::Fail));
            driver.pass_us(PACE_US / 10);
        }
        driver.pass_us(PACE_US / 10);
        call = driver.ask(1);
    }
    assert_eq!(driver.leases.counters().failures, 10);
}

#[test]
fn start_without_an_answer_is_repeated_with_the_same_id() {
    let (mut driver, call) = Driver::hot();
    driver.fail(&call);
    driver.pass_us(PACE_US);
    let next = driver.ask(1);
    assert_eq!((next.request.id, next.request.expires_us), (call.request.id, None));
}

#[test]
fn start_without_an_answer_for_a_lease_time_is_given_up() {
    let (mut driver, call) = Driver::hot();
    driver.fail(&call);
    driver.pass_us(SECOND_US);
    assert_ne!(driver.ask(1).request.id, call.request.id);
}

/// A renewal whose answer was lost may have made the lease longer on the store. Its units are not lost: the next request
/// renews the same lease.
#[test]
fn lease_that_may_be_longer_on_the_store_is_renewed_after_its_end() {
    let (mut driver, call) = Driver::hot();
    let _ = driver.open(&call, 3);
    driver.pass_us(900_000);
    let _ = driver.take(1);
    let renewal = driver.leases.tick(driver.now);
    assert_eq!(renewal.len(), 1);
    let tollgate_lease::LeaseEffect::Renew(renewal) = &renewal[0] else { panic!() };
    driver.fail(renewal);
    driver.pass_us(100_000);
    let next = driver.ask(1);
    assert_eq!((next.request.id, next.request.expires_us), (call.request.id, Some(77)));
}

#[test]
fn request_without_an_answer_is_lost_after_a_lease_time() {
    let (mut driver, _) = Driver::hot();
    driver.pass_us(SECOND_US - 1);
    assert!(matches!(driver.take(1), TakeAnswer::Wait));
    driver.pass_us(1);
    assert!(matches!(driver.take(1), TakeAnswer::Fail));
    driver.pass_us(PACE_US);
    driver.ask(1);
}

#[test]
fn store_that_answers_again_gives_a_lease() {
    let (mut driver, call) = Driver::hot();
    driver.fail(&call);
    driver.pass_us(PACE_US);
    let next = driver.ask(1);
    let _ = driver.open(&next, 5);
    driver.hit(5);
}
