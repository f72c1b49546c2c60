//! The charges of requests: costs, tiers, overrides, shadow rules, several rules at once.

use std::time::Duration;

use tollgate::rules::{Attributes, Descriptor};

use crate::setup::{Fixture, attributes, refuser};

const LIMITS: &str = "limits:
  small: fixed-window limit=3 window=1d
  large: fixed-window limit=10 window=1d
  bucket: token-bucket capacity=2 refill=1/s
";

fn fixture(rules: &str) -> Fixture {
    Fixture::new(&format!("{LIMITS}{rules}"))
}

#[test]
fn all_rules_that_apply_are_charged_or_none() {
    let rules = fixture(
        "rules:
  - { name: narrow, domain: api, key: [ip], limit: small }
  - { name: wide, domain: api, key: [], limit: large }
",
    );
    assert_eq!(rules.admitted(5, &[("ip", "a")]), 3);
    assert_eq!(rules.admitted(5, &[("ip", "b")]), 3);
    assert_eq!(rules.admitted(5, &[("ip", "c")]), 3);
    // If the refused requests had been charged, the wide limit would be spent.
    let last = rules.check(&[("ip", "d")]);
    assert!(last.is_allowed());
    assert_eq!(last.remaining(), Some(0));
    let refused = rules.check(&[("ip", "d")]);
    assert_eq!(refuser(&refused).as_deref(), Some("wide"));
    let standing: Vec<_> = refused
        .rules()
        .map(|part| (part.is_allowed(), part.decision().unwrap().remaining()))
        .collect();
    assert_eq!(standing, [(true, 2), (false, 0)]);
}

/// With peeks a login is refused after too many failures, and only failures are charged.
#[test]
fn peek_is_refused_by_units_already_spent_and_spends_nothing() {
    let rules = fixture(
        "rules:
  - { name: narrow, domain: api, key: [ip], limit: small }
  - { name: wide, domain: api, key: [], limit: large, cost: 2 }
  - { name: watching, domain: api, key: [ip], limit: small, shadow: true }
",
    );
    let a = || Descriptor::new(attributes(&[("ip", "a")]));
    let check = |each: &[Descriptor<'_>]| rules.rules.check_each("api", each).now().unwrap();
    let left = |ruling: &tollgate::rules::Ruling| -> Vec<u64> {
        ruling.rules().map(|part| part.decision().unwrap().remaining()).collect()
    };
    for _ in 0..5 {
        let peeked = check(&[a().peek()]);
        assert!(peeked.is_allowed());
        assert_eq!(left(&peeked), [3, 10, 3]);
    }
    let charged = check(&[a().cost(3)]);
    assert_eq!((charged.is_allowed(), left(&charged)), (true, vec![0, 7, 0]));
    let refused = check(&[a().peek()]);
    assert_eq!(refuser(&refused).as_deref(), Some("narrow"));
    assert_eq!(left(&refused), [0, 7, 0]);
    // A refused peek also refuses the charge beside it.
    let b = Descriptor::new(attributes(&[("ip", "b")]));
    let refused = check(&[b.clone(), a().peek()]);
    assert_eq!(refused.refused_by().map(|part| part.request()), Some(1));
    assert!(check(&[b.peek()]).is_allowed());

    // Only refused peeks are counted. `allowed` has one charge, and one charge of a request that another descriptor
    // refused.
    let counts = rules.rules.counts();
    let of = |name: &str| counts.iter().find(|(rule, _)| rule.name() == name).unwrap().1;
    let three = |name| (of(name).allowed, of(name).denied, of(name).shadow_denied);
    assert_eq!(three("narrow"), (2, 2, 0));
    assert_eq!(three("wide"), (2, 0, 0));
    assert_eq!(three("watching"), (2, 0, 2));
}

#[test]
fn refund_gives_back_charges_and_not_peeks() {
    let rules = fixture("rules:\n  - { name: it, domain: api, key: [ip], limit: large }\n");
    let of = |ip| Descriptor::new(attributes(&[("ip", ip)]));
    let check = |each: &[Descriptor<'_>]| rules.rules.check_each("api", each).now().unwrap();
    check(&[of("a").cost(4), of("b").cost(4)]);
    // The key `b` is peeked at and then charged.
    let ruling = check(&[of("a").peek(), of("b").peek(), of("b").cost(3)]);
    assert!(ruling.is_allowed());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(ruling.refund()).unwrap(), 3);
    assert_eq!(runtime.block_on(check(&[of("a").peek()]).refund()).unwrap(), 0);
    for ip in ["a", "b"] {
        assert_eq!(check(&[of(ip).peek()]).remaining(), Some(6), "{ip}");
    }
}

#[test]
fn refusing_rule_is_the_one_with_the_longest_wait() {
    let rules = fixture(
        "rules:
  - { name: soon, domain: api, key: [], limit: bucket }
  - { name: late, domain: api, key: [], limit: small }
",
    );
    assert_eq!(rules.admitted(2, &[]), 2);
    let refused = rules.check(&[]);
    assert_eq!(refuser(&refused).as_deref(), Some("soon"));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
    rules.clock.advance(Duration::from_secs(1));
    assert!(rules.check(&[]).is_allowed());
    assert_eq!(refuser(&rules.check(&[])).as_deref(), Some("late"));
}

#[test]
fn cost_comes_from_the_route_or_the_call() {
    let rules = fixture(
        "rules:
  - name: it
    domain: api
    key: []
    limit: large
    cost: { \"POST /reports\": 4, \"/reports/**\": 3, \"GET /reports/all\": 9, default: 2 }
",
    );
    let cost = |request: &[(&str, &str)]| {
        let attributes = attributes(request);
        rules.rules.explain("api", &attributes)[0].outcome.as_ref().unwrap().cost
    };
    assert_eq!(cost(&[("method", "POST"), ("path", "/reports")]), 4);
    assert_eq!(cost(&[("method", "GET"), ("path", "/reports")]), 2);
    // The first route that matches counts, not the most specific one.
    assert_eq!(cost(&[("method", "GET"), ("path", "/reports/all")]), 3);
    assert_eq!(cost(&[]), 2);
    let ruling = rules.check(&[]);
    assert_eq!((ruling.limit(), ruling.remaining()), (Some(10), Some(8)), "in units");
    assert_eq!(ruling.requests_remaining(), Some(4), "8 units remain, and a request costs 2");
    let request = Attributes::new();
    let ruling = rules.rules.check("api", &request).cost(7).now().unwrap();
    assert!(ruling.is_allowed());
    assert_eq!(ruling.rules().next().unwrap().decision().unwrap().remaining(), 1);
    assert!(rules.rules.check("api", &request).cost(0).now().is_err());
    let never = rules.rules.check("api", &request).cost(11).now().unwrap();
    assert!(!never.is_allowed());
    assert_eq!(never.retry_after(), None);
}

#[test]
fn tiers_come_from_the_key_table_and_from_the_caller() {
    let rules = fixture(
        "api_keys: { k_pro: pro, k_banned: banned, k_inside: inside }
rules:
  - name: it
    domain: api
    key: [{ first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: large, banned: block, inside: allow }, default: small }
",
    );
    let claimed = |key: &str| {
        let request = Attributes::new().with("ip", "i").claimed("api_key", key.to_owned());
        rules.rules.check("api", &request).now().unwrap()
    };
    let part = |ruling: &tollgate::rules::Ruling| {
        let part = ruling.rules().next().unwrap();
        (part.limit_name().map(str::to_owned), String::from_utf8(part.key().to_vec()).unwrap())
    };
    // A claimed key that is in the table is verified.
    assert_eq!(part(&claimed("k_pro")), (Some("large".into()), "api_key=k_pro".into()));
    assert_eq!(part(&claimed("k_other")), (Some("small".into()), "ip=i".into()));
    assert!(!claimed("k_banned").is_allowed());
    assert_eq!(claimed("k_banned").retry_after(), None);
    assert_eq!(refuser(&claimed("k_banned")).as_deref(), Some("it"));
    assert!((0..100).all(|_| claimed("k_inside").is_allowed()));
    // The caller's own tier overrides that of the table. A client's claim does not.
    let known = attributes(&[("api_key", "k_pro"), ("tier", "inside")]);
    assert_eq!(rules.rules.check("api", &known).now().unwrap().remaining(), None);
    let claiming = Attributes::new().with("api_key", "k_pro").claimed("tier", "inside");
    assert_eq!(
        part(&rules.rules.check("api", &claiming).now().unwrap()).0.as_deref(),
        Some("large")
    );
}

#[test]
fn override_applies_to_its_key_only() {
    let rules = fixture(
        "rules:
  - name: it
    domain: api
    key: [{ first_of: [api_key, ip] }, tenant]
    limit: small
    overrides:
      - { key: { api_key: partner, tenant: t }, limit: large }
      - { key: { ip: 203.0.113.9, tenant: t }, limit: block }
      - { key: { api_key: inside, tenant: t }, limit: allow }
",
    );
    let client = |name, value| [(name, value), ("tenant", "t")];
    assert_eq!(rules.admitted(20, &client("api_key", "partner")), 10);
    assert_eq!(rules.admitted(20, &client("ip", "203.0.113.9")), 0);
    assert_eq!(rules.admitted(20, &client("api_key", "inside")), 20);
    assert_eq!(rules.admitted(20, &client("api_key", "203.0.113.9")), 3);
    assert_eq!(rules.admitted(20, &[("api_key", "partner"), ("tenant", "other")]), 3);
}

/// Changing the tier back and forth gains nothing.
#[test]
fn client_keeps_spent_units_when_its_tier_changes() {
    let rules = fixture(
        "rules:
  - { name: it, domain: api, key: [user], limit: { by: tier, tiers: { pro: large }, default: small } }
",
    );
    let (free, pro) = ([("user", "u"), ("tier", "free")], [("user", "u"), ("tier", "pro")]);
    assert_eq!(rules.admitted(2, &free), 2);
    assert_eq!(rules.check(&pro).remaining(), Some(7));
    assert!(!rules.check(&free).is_allowed(), "3 of 3 are spent");
    assert_eq!(rules.admitted(20, &pro), 7);
    assert_eq!(rules.admitted(20, &free), 0);
}

#[test]
fn shadow_rule_counts_and_never_refuses() {
    let rules = fixture(
        "rules:
  - { name: watching, domain: api, key: [], limit: small, shadow: true }
  - { name: blocking, domain: api, when: { ip: 203.0.113.66 }, key: [], limit: block, shadow: true }
  - { name: real, domain: api, key: [], limit: large }
",
    );
    assert_eq!(rules.admitted(12, &[("ip", "203.0.113.66")]), 10);
    let counts: Vec<_> = rules.rules.counts();
    let of = |at: usize| (counts[at].1.allowed, counts[at].1.denied, counts[at].1.shadow_denied);
    // The shadow rule was spent, so it would also have refused the two requests that the enforced rule refused.
    assert_eq!([of(0), of(1), of(2)], [(3, 0, 9), (0, 0, 12), (10, 2, 0)]);
}

#[test]
fn blocked_request_charges_no_limit() {
    let rules = fixture(
        "rules:
  - { name: all, domain: api, key: [], limit: small }
  - { name: bad, domain: api, when: { ip: [203.0.113.66, 203.0.113.67] }, key: [], limit: block }
",
    );
    let blocked = rules.check(&[("ip", "203.0.113.66")]);
    assert_eq!(refuser(&blocked).as_deref(), Some("bad"));
    assert_eq!((blocked.retry_after(), blocked.requests_remaining()), (None, Some(0)));
    assert_eq!((blocked.limit(), blocked.remaining()), (None, None), "no limit decided");
    assert!(blocked.is_blocked());
    assert!(blocked.rules().next().unwrap().decision().is_none());
    let allowed = rules.check(&[("ip", "good")]);
    assert!(!allowed.is_blocked());
    assert_eq!(rules.admitted(9, &[("ip", "good")]), 2);
}

#[test]
fn several_sets_of_attributes_are_charged_as_one_request() {
    let rules = fixture(
        "rules:
  - { name: each, domain: api, key: [ip], limit: small }
  - { name: all, domain: api, key: [], limit: large }
",
    );
    let request = [attributes(&[("ip", "a")]), attributes(&[("ip", "b")])];
    let check = || rules.rules.check_sets("api", &request).now().unwrap();
    let first = check();
    // The wide rule applies twice: one charge of 2.
    let remaining: Vec<_> =
        first.rules().map(|part| part.decision().unwrap().remaining()).collect();
    assert_eq!(remaining, [2, 8, 2, 8]);
    assert_eq!(first.rules().map(|part| part.request()).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert!(check().is_allowed());
    assert_eq!(rules.admitted(1, &[("ip", "a")]), 1);
    let refused = check();
    assert_eq!(refuser(&refused).as_deref(), Some("each"));
    assert_eq!(refused.refused_by().unwrap().key(), b"ip=a");
    assert_eq!(rules.admitted(5, &[("ip", "b")]), 1, "nothing was charged to `b`");
}

#[test]
fn limit_by_name_is_separate_from_what_rules_spend() {
    let rules = fixture("rules: [{ name: small, domain: api, key: [], limit: small }]\n");
    assert_eq!(rules.admitted(9, &[]), 3);
    let small = rules.rules.limit("small").unwrap();
    assert_eq!(small.check("").now().unwrap().remaining(), 2);
    assert!(rules.rules.limit("unheard-of").is_none());
}

#[test]
fn scope_of_a_charge_is_found_by_its_name() {
    let rules = fixture(
        "rules:
  - { name: each, domain: api, key: [ip], limit: { by: tier, tiers: { pro: large }, default: allow } }
  - { name: none, domain: api, key: [ip], limit: block, when: { path: /admin } }
",
    );
    let ruling = rules.check(&[("ip", "a"), ("tier", "pro")]);
    let part = ruling.rules().next().unwrap();
    let (name, key) = (part.scope().unwrap().name(), part.key());
    let written = part.decision().unwrap().receipt().unwrap();

    let found = rules.rules.scope(name).unwrap();
    let receipt = found.receipt(key, written.cost(), written.place()).unwrap();
    assert_eq!(found.name(), "api/each");
    assert_eq!(found.peek(key).now().unwrap().remaining(), 9);
    assert_eq!(found.refund_now(key, receipt).unwrap(), 1);
    assert_eq!(rules.rules.scope("small").unwrap().name(), "small");
    for none in ["api/none", "each", "api/small", ""] {
        assert!(rules.rules.scope(none).is_none(), "{none}");
    }
}
