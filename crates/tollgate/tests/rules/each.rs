//! Requests of several descriptors, each with its own cost and limit.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tollgate::rules::{Attributes, Descriptor, Ruling};
use tollgate::{Error, Limit};

use crate::setup::{Fixture, NOON_US, attributes, refuser};

const MINUTE: Duration = Duration::from_secs(60);

const ALGORITHMS: [&str; 6] = [
    "fixed-window limit=50 window=1h",
    "sliding-window-log limit=50 window=1h",
    "sliding-window-counter limit=50 window=1h",
    "token-bucket capacity=50 refill=1/m",
    "leaky-bucket capacity=50 leak=1/m",
    "leaky-bucket capacity=50 leak=1/m mode=shaping",
];

/// Rules with one rule, which has this limit and these other fields.
fn limited(limit: &str, fields: &str) -> Fixture {
    Fixture::new(&format!(
        "limits: {{ own: {limit} }}\nrules: [{{ name: it, domain: api, key: [], limit: own{fields} }}]\n"
    ))
}

/// A descriptor with a limit of the request.
fn with_limit(units: u64, per: Duration) -> [Descriptor<'static>; 1] {
    [Descriptor::new(Attributes::new()).limited_to(units, per)]
}

fn check(fixture: &Fixture, each: &[Descriptor<'_>]) -> Ruling {
    fixture.rules.check_each("api", each).now().unwrap()
}

#[test]
fn request_limit_keeps_the_rules_algorithm_and_name() {
    for (limit, wanted) in ALGORITHMS.into_iter().zip([
        "fixed-window limit=120 window=1m",
        "sliding-window-log limit=120 window=1m",
        "sliding-window-counter limit=120 window=1m",
        "token-bucket capacity=120 refill=2/s",
        "leaky-bucket capacity=120 leak=2/s",
        "leaky-bucket capacity=120 leak=2/s mode=shaping",
    ]) {
        let fixture = limited(limit, "");
        let ruling = check(&fixture, &with_limit(120, MINUTE));
        let part = ruling.rules().next().unwrap();
        assert_eq!(part.limit(), Some(&wanted.parse::<Limit>().unwrap()));
        assert_eq!((part.limit_name(), part.scope().unwrap().name()), (Some("own"), "api/it"));
        assert_eq!(part.decision().unwrap().remaining(), 119, "{limit}");
    }
}

#[test]
fn request_limit_of_0_units_denies_without_a_store_request() {
    let fixture = limited("fixed-window limit=5 window=1d", "");
    let each = [Descriptor::new(Attributes::new()), with_limit(0, MINUTE)[0].clone()];
    let ruling = check(&fixture, &each);
    assert!(!ruling.is_allowed());
    assert_eq!((ruling.retry_after(), refuser(&ruling).as_deref()), (None, Some("it")));
    assert_eq!(ruling.refused_by().unwrap().request(), 1);
    assert!(ruling.rules().all(|part| part.decision().is_none()));
    assert_eq!(
        check(&fixture, &each[..1]).requests_remaining(),
        Some(4),
        "the denied request charged nothing"
    );
    let watching = limited("fixed-window limit=5 window=1d", ", shadow: true");
    let ruling = check(&watching, &with_limit(0, MINUTE));
    assert!(ruling.is_allowed() && !ruling.rules().next().unwrap().is_allowed());
}

#[test]
fn rule_without_a_limit_ignores_the_requests_limit() {
    for (spend, is_allowed) in [("allow", true), ("block", false)] {
        let fixture = Fixture::new(&format!(
            "rules: [{{ name: it, domain: api, key: [], limit: {spend} }}]\n"
        ));
        for units in [0, 1] {
            assert!(
                (0..3).all(|_| check(&fixture, &with_limit(units, MINUTE)).is_allowed() == is_allowed)
            );
        }
        let other_domain = fixture.rules.check_each("web", &with_limit(0, MINUTE)).now().unwrap();
        assert!(other_domain.is_allowed(), "no rule applies");
    }
}

#[test]
fn invalid_request_limit_is_an_error_with_rule_and_remedy() {
    let day = Duration::from_secs(86_400);
    for (limit, units, per, wanted) in [
        (
            ALGORITHMS[1],
            70_000,
            MINUTE,
            "the request's numbers do not fit the limit `api/it`: `limit=70000` is above the 65536 that a sliding-window-log keeps; use sliding-window-counter",
        ),
        (
            ALGORITHMS[0],
            1 << 53,
            MINUTE,
            "the request's numbers do not fit the limit `api/it`: `limit` is 2^53 or more; use at most 9007199254740991",
        ),
        (
            ALGORITHMS[2],
            1,
            367 * day,
            "the request's numbers do not fit the limit `api/it`: `window` is above 366 days; use a shorter window",
        ),
        (
            ALGORITHMS[3],
            1,
            Duration::ZERO,
            "the request's numbers do not fit the limit `api/it`: `rate` is zero; use a value above zero",
        ),
    ] {
        let fixture = limited(limit, "");
        let error = fixture.rules.check_each("api", &with_limit(units, per)).now().unwrap_err();
        assert!(matches!(error, Error::LimitedTo { .. }));
        assert_eq!(error.to_string(), wanted);
    }
}

#[test]
fn first_limit_wins_when_two_are_given_for_a_key() {
    let fixture = limited("fixed-window limit=5 window=1d", "");
    let [ten] = with_limit(10, MINUTE);
    let [twenty] = with_limit(20, MINUTE);
    let ruling = check(&fixture, &[ten, twenty]);
    let remaining: Vec<_> =
        ruling.rules().map(|part| part.decision().unwrap().remaining()).collect();
    assert_eq!(remaining, [8, 8]);
}

#[test]
fn rules_report_the_attributes_that_they_use() {
    let fixture = Fixture::new(
        "limits: { own: fixed-window limit=5 window=1d }
rules:
  - name: it
    domain: api
    when: { plan: { none_of: [free] }, region: { present: false } }
    key: [tenant, { first_of: [user, ip] }]
    limit: { by: level, tiers: { high: own }, default: allow }
",
    );
    for name in ["plan", "region", "tenant", "user", "ip", "level", "path", "method"] {
        assert!(fixture.rules.uses_attribute(name), "{name}");
    }
    assert!(!fixture.rules.uses_attribute("descriptor_keys"));
}

/// Every field of a ruling.
fn fields(ruling: &Ruling) -> String {
    let parts: Vec<_> = ruling
        .rules()
        .map(|part| (part.request(), part.key(), part.cost(), part.limit(), part.decision()))
        .collect();
    format!("{:?} {:?} {parts:?}", ruling.verdict(), ruling.requests_remaining())
}

proptest! {
    /// At one instant, so that no unit comes back.
    #[test]
    fn rule_limit_and_request_limit_share_spent_units(
        limit in select(&ALGORITHMS[..]),
        units in 1..100_u64,
        per_s in select(&[1, 60, 3_600, 86_400][..]),
        spent in 1..=50_u64,
    ) {
        let fixture = limited(limit, "");
        let own = [Descriptor::new(Attributes::new())];
        prop_assert!(check(&fixture, &[own[0].clone().cost(spent)]).is_allowed());
        let ruling = check(&fixture, &with_limit(units, Duration::from_secs(per_s)));
        prop_assert_eq!(ruling.is_allowed(), spent < units);
        let spent = spent + u64::from(ruling.is_allowed());
        prop_assert_eq!(ruling.requests_remaining(), Some(units.saturating_sub(spent)));
        let ruling = check(&fixture, &own);
        prop_assert_eq!(ruling.is_allowed(), spent < 50);
        prop_assert_eq!(ruling.requests_remaining(), Some(49_u64.saturating_sub(spent)));
    }

    #[test]
    fn descriptors_without_a_request_limit_are_decided_as_plain_attributes(
        requests in prop::collection::vec(
            prop::collection::vec(
                (select(&["ip", "path", "tier", "other"][..]), select(&["a", "b", "/v1/c"][..])),
                0..3,
            ),
            1..30,
        ),
        sets in 1..4_usize,
    ) {
        let fixtures = [(); 2].map(|()| Fixture::new("
limits:
  small: fixed-window limit=3 window=1d
  large: token-bucket capacity=8 refill=1/s
rules:
  - { name: by-ip, domain: api, key: [ip], limit: { by: tier, tiers: { a: large, b: block }, default: small } }
  - { name: by-path, domain: api, when: { path: { none_of: [/v1/**] } }, key: [path], limit: small, cost: 2 }
  - { name: watching, domain: api, key: [], limit: small, shadow: true }
  - { name: special, domain: api, when: { ip: { exact: b } }, key: [other], limit: small, replaces: [by-ip, watching] }
"));
        for (at, requests) in requests.chunks(sets).enumerate() {
            // OK because there are at most 30 requests.
            let now_us = NOON_US + 100_000 * at as u64;
            let plain: Vec<_> = requests.iter().map(|request| attributes(request)).collect();
            let each: Vec<_> = plain.iter().cloned().map(Descriptor::new).collect();
            let plain = fixtures[0].rules.check_sets("api", &plain).at_us(now_us).now().unwrap();
            let each = fixtures[1].rules.check_each("api", &each).at_us(now_us).now().unwrap();
            prop_assert_eq!(fields(&plain), fields(&each));
        }
    }
}
