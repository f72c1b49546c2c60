//! Rules that replace others.

use crate::setup::{Fixture, attributes, refuser};

const LIMITS: &str = "limits:
  small: fixed-window limit=3 window=1d
  large: fixed-window limit=10 window=1d
";

fn fixture(rules: &str) -> Fixture {
    Fixture::new(&format!("{LIMITS}rules:\n{rules}"))
}

#[test]
fn replaced_rule_neither_refuses_nor_is_charged() {
    let rules = fixture(
        "  - { name: per-user, domain: api, key: [user], limit: small }
  - { name: banned, domain: api, when: { user: alice }, key: [], limit: block }
  - { name: vip, domain: api, when: { user: alice }, key: [user], limit: large, replaces: [per-user, banned] }
",
    );
    let (alice, bob) = ([("user", "alice")], [("user", "bob")]);
    assert_eq!(rules.applied(&alice), ["vip"]);
    assert_eq!(rules.admitted(20, &alice), 9);
    assert_eq!(refuser(&rules.check(&alice)).as_deref(), Some("vip"));
    assert_eq!(rules.applied(&bob), ["per-user"]);
    assert_eq!(rules.admitted(20, &bob), 2);
    let counted: Vec<_> = rules.rules.counts().into_iter().map(|(_, own)| own.allowed).collect();
    assert_eq!(counted, [3, 0, 10], "a replaced rule is not counted");
}

#[test]
fn rule_matching_one_descriptor_replaces_for_all() {
    let rules = fixture(
        "  - { name: per-user, domain: api, key: [user], limit: small }
  - { name: per-path, domain: api, key: [path], limit: small }
  - { name: special, domain: api, key: [special], limit: large, replaces: [per-user] }
",
    );
    let sets = [&[("user", "a"), ("path", "/")][..], &[("special", "x")]].map(attributes);
    let ruling = rules.rules.check_sets("api", &sets).now().unwrap();
    let applied: Vec<_> = ruling.rules().map(|part| (part.request(), part.name().name())).collect();
    assert_eq!(applied, [(0, "per-path"), (1, "special")]);
    assert_eq!(ruling.rules().last().unwrap().key(), b"special=x");
}

#[test]
fn replacing_rule_may_itself_be_replaced() {
    let rules = fixture(
        "  - { name: a, domain: api, when: { a: { present: true } }, key: [], limit: small, replaces: [b] }
  - { name: b, domain: api, when: { b: { present: true } }, key: [], limit: small, replaces: [c] }
  - { name: c, domain: api, key: [], limit: small }
",
    );
    assert_eq!(rules.applied(&[("a", ""), ("b", "")]), ["a"]);
    assert_eq!(rules.applied(&[("a", "")]), ["a", "c"], "only a rule that applies replaces");
    assert_eq!(rules.applied(&[("b", "")]), ["b"]);
}

#[test]
fn shadow_rule_does_not_replace_an_enforced_rule() {
    let rules = fixture(
        "  - { name: enforced, domain: api, key: [], limit: small }
  - { name: watched, domain: api, key: [], limit: small, shadow: true }
  - { name: watching, domain: api, key: [], limit: large, shadow: true, replaces: [enforced, watched] }
",
    );
    assert_eq!(rules.applied(&[]), ["enforced", "watching"]);
}

const LISTS: &str = "  - { name: per-user, domain: api, key: [user], limit: small }
  - { name: banned, domain: api, when: { user: [mallory, eve] }, key: [user], limit: block }
  - { name: monitoring, domain: api, when: { user: [monitor, mallory] }, key: [], limit: allow, replaces: all }
  - { name: gone, domain: api, when: { user: [mallory, trudy] }, key: [user], limit: block, replaces: all }
  - { name: elsewhere, domain: web, key: [user], limit: small }
";

#[test]
fn replaces_all_exempts_from_every_other_rule_of_the_domain() {
    let rules = fixture(LISTS);
    assert_eq!(rules.applied(&[("user", "monitor")]), ["monitoring"]);
    assert_eq!(rules.admitted(20, &[("user", "monitor")]), 20);
    assert_eq!(rules.applied(&[("user", "alice")]), ["per-user"]);
    assert_eq!(refuser(&rules.check(&[("user", "eve")])).as_deref(), Some("banned"));
    let request = attributes(&[("user", "monitor")]);
    let other_domain = rules.rules.check("web", &request).now().unwrap();
    assert_eq!(other_domain.rules().next().unwrap().name().name(), "elsewhere");
}

#[test]
fn rules_that_replace_all_do_not_replace_each_other() {
    let rules = fixture(LISTS);
    let both = [("user", "mallory")];
    assert_eq!(rules.applied(&both), ["monitoring", "gone"]);
    assert_eq!(refuser(&rules.check(&both)).as_deref(), Some("gone"));
    let why: Vec<_> = rules
        .rules
        .explain("api", &attributes(&both))
        .into_iter()
        .filter_map(|own| own.outcome.err())
        .map(|why| why.to_string())
        .collect();
    assert_eq!(why, ["`monitoring` replaces it"; 2]);
}

#[test]
fn shadow_rule_that_replaces_all_replaces_shadow_rules_only() {
    let rules = fixture(
        "  - { name: enforced, domain: api, key: [], limit: small }
  - { name: watched, domain: api, key: [], limit: small, shadow: true }
  - { name: watching, domain: api, key: [], limit: allow, shadow: true, replaces: all }
",
    );
    assert_eq!(rules.applied(&[]), ["enforced", "watching"]);
}
