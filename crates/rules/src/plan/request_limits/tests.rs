//! Limits that requests bring with them are kept, up to a bound.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate_limiter::{Limiter, ManualClock};

use super::MAX_KEPT;
use crate::{Attributes, Config, Descriptor, Rules};

const TEXT: &str = "
limits: { it: fixed-window limit=10 window=1d }
rules: [{ name: it, domain: api, key: [], limit: it }]
";

const DAY: Duration = Duration::from_secs(86_400);

fn rules() -> (Rules, Config) {
    let config = Config::parse("rules.yaml", TEXT).unwrap();
    (Rules::new(&Limiter::memory(), &config).unwrap(), config)
}

fn remaining(rules: &Rules, units: u64) -> Option<u64> {
    let asked = [Descriptor::new(Attributes::new()).limited_to(units, DAY)];
    rules.check_each("api", &asked).at_us(1).now().unwrap().requests_remaining()
}

#[test]
fn limits_of_requests_are_made_once_for_equal_numbers() {
    let (rules, _) = rules();
    assert_eq!([20, 20, 30, 20].map(|units| remaining(&rules, units)), [19, 18, 27, 16].map(Some));
    assert_eq!(rules.plan().limits_kept(), 2);
    let _ = rules.check("api", &Attributes::new()).now().unwrap();
    remaining(&rules, 0);
    assert_eq!(rules.plan().limits_kept(), 2, "neither is a limit of a request's");
}

#[test]
fn limits_of_requests_beyond_the_bound_decide_without_being_kept() {
    let (rules, _) = rules();
    // OK because the bound fits u64.
    let many = MAX_KEPT as u64 + 10;
    for number in 1..=many {
        let units = 10_000 + number;
        assert_eq!(remaining(&rules, units), Some(units - number), "{number}");
    }
    assert_eq!(rules.plan().limits_kept(), MAX_KEPT);
    assert_eq!(remaining(&rules, 100_000), Some(100_000 - many - 1));
}

/// A limiter holds 32,768 limits. Limits that are no longer in use make room for others, and their keys keep their
/// state.
#[test]
fn limits_of_requests_with_ever_new_numbers_do_not_exhaust_the_limiter() {
    let text = TEXT.replace("key: []", "key: [user]");
    let config = Config::parse("rules.yaml", text).unwrap();
    let limiter = Limiter::builder().clock(&ManualClock::at_us(1)).build();
    let rules = Rules::new(&limiter, &config).unwrap();
    let users: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    for (number, user) in (1..=40_000).zip(users.iter().cycle()) {
        let asked = Descriptor::new(Attributes::new().with("user", user));
        let asked = [asked.limited_to(1_000 + number, DAY)];
        let ruling = rules.check_each("api", &asked).now().unwrap();
        assert_eq!(
            ruling.requests_remaining(),
            Some(1_000 + number - number.div_ceil(100)),
            "{number}"
        );
    }
}

#[test]
fn replacing_rules_drops_limits_of_requests_and_keeps_spending() {
    let (rules, config) = rules();
    assert_eq!(remaining(&rules, 20), Some(19));
    rules.replace(&config).unwrap();
    assert_eq!(rules.plan().limits_kept(), 0);
    assert_eq!(remaining(&rules, 20), Some(18));
}
