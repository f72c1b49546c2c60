//! The memory of a table, and the terms that are accepted.

use tollgate_lease::{LeaseTerms, Leases, TableSize, TakeAnswer};

use crate::setup::{Driver, SECOND_US, cost, terms};

#[test]
fn table_has_at_most_the_leases_that_fit() {
    let mut driver = Driver::new();
    driver.leases = Leases::new(TableSize { leases: 10, counted_keys: 64 }, 1);
    let (mut asked, mut strict) = (0, 0);
    for round in 0..20 {
        for key in 0..100 {
            let key = format!("user:{key}");
            match driver.leases.take(driver.now, &key, &driver.terms, cost(1)) {
                TakeAnswer::Ask(_) => asked += 1,
                TakeAnswer::Strict => strict += 1,
                TakeAnswer::Wait => {}
                other => panic!("{round}: {other:?}"),
            }
            assert!(driver.leases.len() <= 10);
        }
    }
    assert_eq!(asked, 10);
    assert!(strict > 20 * 90 - 10);
}

#[test]
fn idle_keys_make_room_for_others() {
    let mut driver = Driver::new();
    driver.leases = Leases::new(TableSize { leases: 1, counted_keys: 64 }, 1);
    for key in ["a", "b", "c"] {
        let answers: Vec<_> =
            (0..8).map(|_| driver.leases.take(driver.now, key, &driver.terms, cost(1))).collect();
        assert!(matches!(answers[7], TakeAnswer::Ask(_)), "{key}: {:?}", answers[7]);
        driver.pass_us(2 * SECOND_US); // the request is lost
        driver.leases.tick(driver.now);
        driver.pass_us(2 * SECOND_US);
        driver.leases.tick(driver.now);
        assert!(driver.leases.is_empty(), "{key}");
    }
}

#[test]
fn many_different_keys_leave_nothing_behind() {
    let mut driver = Driver::new();
    for key in 0..100_000 {
        let key = format!("user:{key}");
        let answer = driver.leases.take(driver.now, &key, &driver.terms, cost(1));
        assert!(matches!(answer, TakeAnswer::Strict));
        driver.pass_us(1);
    }
    assert!(driver.leases.is_empty());
    assert_eq!(driver.leases.next_due(), None);
}

#[test]
fn limits_that_cannot_be_leased_are_refused() {
    let error = |limit: &str| LeaseTerms::new(limit.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        error("leaky-bucket mode=shaping capacity=10 leak=1/s"),
        "a shaping leaky bucket cannot have holds; use `mode=policing` or a token bucket"
    );
    assert_eq!(
        error("concurrency limit=10 for=60s"),
        "a concurrency limit cannot be leased; reserve its units instead"
    );
}

#[test]
fn terms_out_of_range_are_refused() {
    let text =
        |result: Result<LeaseTerms, tollgate_lease::TermsError>| result.unwrap_err().to_string();
    assert_eq!(text(terms().lease_for_us(99_999)), "the lease time is 99999 us; use 100ms to 1h");
    assert_eq!(text(terms().lease_for_us(0)), "the lease time is 0 us; use 100ms to 1h");
    assert_eq!(text(terms().pace_us(99)), "the pace is 99 us; use at least 100us");
    assert_eq!(
        text(terms().pace_us(100_001)),
        "the pace of 100001 us is more than a tenth of the lease time of 1000000 us; use a shorter pace or a longer lease"
    );
    assert_eq!(text(terms().max_share(0)), "the share is 0%; use 1% to 100%");
    assert_eq!(text(terms().max_share(101)), "the share is 101%; use 1% to 100%");
    assert!(terms().lease_for_us(3_600 * SECOND_US).is_ok());
    assert!(terms().pace_us(100).unwrap().lease_for_us(100_000).unwrap().max_share(100).is_ok());
}

#[test]
fn limits_too_small_for_a_share_are_strict() {
    let mut driver = Driver::new();
    driver.terms = LeaseTerms::new("fixed-window limit=3 window=1s".parse().unwrap()).unwrap();
    assert!((0..100).all(|_| matches!(driver.take(1), TakeAnswer::Strict)));
    assert!(driver.leases.is_empty());
}

#[test]
fn counters_say_what_happened() {
    let mut driver = Driver::leased(100);
    driver.hit(40);
    driver.hit(20);
    let counters = driver.leases.counters();
    assert_eq!((counters.held, counters.hits, counters.asks), (1, 2, 1));
    assert_eq!((counters.leased_units, counters.used_units), (100, 60));
    driver.leases.end_all();
    let counters = driver.leases.counters();
    assert_eq!((counters.held, counters.returned_units, counters.background_calls), (0, 40, 1));
    assert_eq!(counters.calls_saved(), 1);
}
