//! When a lease is renewed, and with what.

use tollgate_lease::LeaseEffect;

use crate::setup::{Driver, LATEST_US, PACE_US, SECOND_US};

#[test]
fn lease_with_few_units_is_renewed_in_the_background() {
    let mut driver = Driver::leased(100);
    driver.pass_us(LATEST_US);
    let hit = driver.hit(98);
    assert!(hit.wakes);
    assert_eq!(driver.leases.next_due(), Some(driver.now.monotonic_us));
    let renewal = driver.renewal();
    assert_eq!((renewal.request.used, renewal.request.need), (98, None));
    assert_eq!(renewal.request.expires_us, Some(77));
    // The demand of two paces: the checks of the last 19.5 ms wanted 106 units.
    assert_eq!(renewal.request.want, 109);
    driver.hit(2); // what is left can be used meanwhile
}

#[test]
fn hits_wake_once_for_a_renewal() {
    let mut driver = Driver::leased(100);
    driver.pass_us(LATEST_US);
    driver.hit(96);
    assert!((0..4).filter(|_| driver.hit(1).wakes).count() <= 1);
}

#[test]
fn hits_while_a_request_is_in_flight_do_not_prevent_the_next_renewal() {
    let mut driver = Driver::leased(100);
    driver.pass_us(LATEST_US);
    driver.hit(98);
    let renewal = driver.renewal();
    driver.hit(1);
    let _ = driver.open(&renewal, 200); // more than it wanted
    driver.pass_us(LATEST_US);
    assert!(driver.hit(198).wakes);
    assert_eq!(driver.leases.next_due(), Some(driver.now.monotonic_us));
}

#[test]
fn lease_that_got_less_than_it_wanted_is_not_renewed_before_a_pace_has_passed() {
    let (mut driver, call) = Driver::hot();
    let sent_us = driver.now.monotonic_us;
    let _ = driver.open(&call, 3);
    driver.hit(2);
    let renewal = driver.renewal();
    assert!(driver.now.monotonic_us >= sent_us + PACE_US);
    assert_eq!(renewal.request.used, 2);
}

#[test]
fn empty_lease_that_got_too_little_leaves_the_request_to_the_next_check() {
    let (mut driver, call) = Driver::hot();
    let _ = driver.open(&call, 3);
    driver.hit(3);
    driver.pass_us(LATEST_US);
    assert_eq!(driver.leases.tick(driver.now), []);
    assert!(driver.ask(1).request.need.is_some());
}

#[test]
fn lease_is_renewed_when_a_third_of_its_time_is_left() {
    let mut driver = Driver::leased(14);
    let opened_us = driver.now.monotonic_us;
    let renewal = loop {
        driver.pass_us(100_000);
        driver.hit(1);
        if let Some(LeaseEffect::Renew(call)) = driver.leases.tick(driver.now).pop() {
            break call;
        }
    };
    let after_us = driver.now.monotonic_us - opened_us;
    assert!((660_000..=780_000).contains(&after_us), "{after_us}");
    assert_eq!(renewal.request.used, after_us / 100_000);
}

#[test]
fn lease_with_far_more_than_it_needs_is_replaced_by_a_smaller_one() {
    let mut driver = Driver::leased(250);
    let effects = loop {
        driver.pass_us(100_000);
        driver.hit(1);
        let effects = driver.leases.tick(driver.now);
        if !effects.is_empty() {
            break effects;
        }
    };
    let [LeaseEffect::End(end), LeaseEffect::Renew(start)] = effects.as_slice() else {
        panic!("expected an end and then a start: {effects:?}")
    };
    assert!(end.used.is_last && end.used.units >= 6);
    assert_eq!((start.request.used, start.request.expires_us), (0, None));
    assert_ne!(start.request.id, end.hold.id);
    assert!(start.request.want <= 2, "{}", start.request.want);
    // Nothing is taken from the old lease any more.
    assert!(matches!(driver.take(1), tollgate_lease::TakeAnswer::Wait));
}

#[test]
fn idle_lease_ends_and_its_key_is_forgotten() {
    let mut driver = Driver::leased(100);
    driver.hit(40);
    let last_us = driver.now.monotonic_us;
    let end = driver.end();
    assert_eq!(driver.now.monotonic_us - last_us, SECOND_US / 2);
    assert_eq!((end.used.units, end.used.is_last), (40, true));
    assert!(driver.leases.is_empty());
    assert_eq!(driver.leases.counters().returned_units, 60);
    assert_eq!(driver.leases.next_due(), None);
}

#[test]
fn jitter_spreads_the_requests_of_processes() {
    let waits: std::collections::BTreeSet<u64> = (0..20)
        .map(|seed| {
            let mut driver = Driver::new();
            driver.leases = tollgate_lease::Leases::new(Default::default(), seed);
            (0..7).for_each(|_| drop(driver.take(1)));
            let call = driver.ask(1);
            let _ = driver.open(&call, 0);
            driver.refuse(1).retry_after_us().unwrap()
        })
        .collect();
    assert!(waits.len() > 10, "{waits:?}");
    assert!(waits.iter().all(|wait_us| (PACE_US..LATEST_US).contains(wait_us)), "{waits:?}");
}
