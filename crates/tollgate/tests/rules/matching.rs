//! The requests to which a rule applies.

use std::future::IntoFuture;

use tollgate::rules::Attributes;

use crate::setup::{Fixture, refuser};

/// Rules with one rule that has an empty key and this `when`.
fn rule_when(when: &str) -> Fixture {
    Fixture::new(&format!(
        "limits: {{ all: fixed-window limit=1000000 window=1d }}\n\
         rules: [{{ name: it, domain: api, when: {when}, key: [], limit: all }}]\n"
    ))
}

fn rule_key(key: &str) -> Fixture {
    Fixture::new(&format!(
        "limits: {{ all: fixed-window limit=1000000 window=1d }}\n\
         rules: [{{ name: it, domain: api, key: {key}, limit: all }}]\n"
    ))
}

/// With thousands of rules the index must find the candidates, and also the rule without conditions.
#[test]
fn matching_rules_decide_among_thousands() {
    let limits = "{ few: fixed-window limit=2 window=1d, more: fixed-window limit=9 window=1d }";
    let rule = |nth: usize| {
        let (path, limit) = (nth / 2, if nth.is_multiple_of(2) { "more" } else { "few" });
        let when = format!("{{ path: /{path} }}");
        format!("  - {{ name: r{nth}, domain: api, when: {when}, key: [ip], limit: {limit} }}\n")
    };
    let rules: String = (0..2_100).map(rule).collect();
    let all = "  - { name: all, domain: api, key: [], limit: more }\n";
    let fixture = Fixture::new(&format!("limits: {limits}\nrules:\n{rules}{all}"));
    let request = [("path", "/1049"), ("ip", "192.0.2.1")];
    assert_eq!(fixture.applied(&request), ["r2098", "r2099", "all"]);
    assert_eq!(fixture.admitted(5, &request), 1, "one was admitted above");
    assert_eq!(refuser(&fixture.check(&request)).as_deref(), Some("r2099"));
}

#[test]
fn when_matches_values_lists_globs_prefixes_and_presence() {
    let get = ("method", "GET");
    for (when, like, unlike) in [
        ("{ method: GET }", vec![vec![get]], vec![vec![("method", "get")], vec![]]),
        (
            "{ method: [GET, HEAD] }",
            vec![vec![get], vec![("method", "HEAD")]],
            vec![vec![("method", "PUT")]],
        ),
        (
            "{ path: /v1/** }",
            vec![vec![("path", "/v1/a/b")], vec![("path", "/v1/")]],
            vec![vec![("path", "/v1")], vec![("path", "/v2/a")], vec![get]],
        ),
        (
            "{ path: [/a, { prefix: /b }, /c/*] }",
            vec![vec![("path", "/a")], vec![("path", "/bb")], vec![("path", "/c/x")]],
            vec![vec![("path", "/aa")], vec![("path", "/c/x/y")]],
        ),
        ("{ path: { exact: \"/a*\" } }", vec![vec![("path", "/a*")]], vec![vec![("path", "/ab")]]),
        (
            "{ path: { none_of: [/a, /b/**] } }",
            vec![vec![("path", "/aa")], vec![("path", "")], vec![("path", "/b")]],
            vec![vec![("path", "/a")], vec![("path", "/b/c")], vec![get], vec![]],
        ),
        ("{ api_key: { present: true } }", vec![vec![("api_key", "")]], vec![vec![get]]),
        ("{ api_key: { present: false } }", vec![vec![], vec![get]], vec![vec![("api_key", "k")]]),
        (
            "{ method: GET, path: /a }",
            vec![vec![("path", "/a"), get]],
            vec![vec![get], vec![("path", "/a")], vec![get, ("path", "/b")]],
        ),
        (
            "{ header.x-version: 2 }",
            vec![vec![("header.x-version", "2")]],
            vec![vec![("header.x-version", "2.0")]],
        ),
    ] {
        let rules = rule_when(when);
        for request in like {
            assert_eq!(rules.applied(&request), ["it"], "{when} {request:?}");
        }
        for request in unlike {
            assert!(rules.applied(&request).is_empty(), "{when} {request:?}");
        }
    }
}

#[test]
fn rule_without_when_applies_if_its_key_can_be_made() {
    let rules = rule_key("[ip, { first_of: [api_key, user] }]");
    let key = |request: &[(&str, &str)]| {
        let ruling = rules.check(request);
        ruling.rules().next().map(|part| String::from_utf8_lossy(part.key()).into_owned())
    };
    assert_eq!(key(&[("user", "u"), ("ip", "i")]).as_deref(), Some("ip=i,user=u"));
    assert_eq!(
        key(&[("user", "u"), ("api_key", "k"), ("ip", "i")]).as_deref(),
        Some("ip=i,api_key=k")
    );
    assert_eq!(key(&[("ip", "i")]), None);
    assert_eq!(key(&[("user", "u")]), None);
}

#[test]
fn same_value_under_another_attribute_is_another_key() {
    let rules = Fixture::new(
        "limits: { one: fixed-window limit=1 window=1d }\n\
         rules: [{ name: it, domain: api, key: [{ first_of: [api_key, ip] }], limit: one }]\n",
    );
    assert!(rules.check(&[("api_key", "x")]).is_allowed());
    assert!(rules.check(&[("ip", "x")]).is_allowed());
    assert!(!rules.check(&[("ip", "x")]).is_allowed());
}

#[test]
fn domains_have_separate_rules_and_an_unknown_one_has_none() {
    let rules = Fixture::new(
        "limits: { one: fixed-window limit=1 window=1d }\n\
         rules:\n  - { name: it, domain: api, key: [], limit: one }\n  - { name: it, domain: web, key: [], limit: one }\n",
    );
    assert_eq!(rules.admitted(2, &[]), 1);
    let nothing = tollgate::rules::Attributes::new();
    assert!(rules.rules.check("web", &nothing).now().unwrap().is_allowed());
    for _ in 0..3 {
        let ruling = rules.rules.check("unheard-of", &nothing).now().unwrap();
        assert!(ruling.is_allowed() && ruling.rules().next().is_none());
        assert_eq!(ruling.remaining(), None);
    }
}

/// A value that was said counts for `when`. A claimed identity does not.
#[test]
fn claimed_key_does_not_change_which_rules_apply() {
    let rules = Fixture::new(
        "limits: { few: fixed-window limit=5 window=1d, many: fixed-window limit=500 window=1d }
rules:
  - { name: keys, domain: api, when: { api_key: { present: true } }, key: [api_key], limit: many }
  - { name: addresses, domain: api, when: { api_key: { present: false } }, key: [ip], limit: few }
  - { name: pros, domain: api, when: { tier: pro }, key: [ip], limit: many }
  - { name: debuggers, domain: api, when: { header.x-debug: yes }, key: [ip], limit: few }
",
    );
    let applied = |request: &Attributes<'_>| -> Vec<String> {
        let ruling = rules.rules.check("api", request).now().unwrap();
        ruling.rules().map(|part| part.name().name().to_owned()).collect()
    };
    let request = || Attributes::new().with("ip", "i");
    assert_eq!(applied(&request().claimed("api_key", "invented")), ["addresses"]);
    assert_eq!(applied(&request().claimed("tier", "pro")), ["addresses"]);
    assert_eq!(applied(&request().with("api_key", "k")), ["keys"]);
    assert_eq!(applied(&request().said("header.x-debug", "yes")), ["addresses", "debuggers"]);
    assert_eq!(applied(&request().claimed("header.x-debug", "yes")), ["addresses"]);
    // A claim does not replace a known value, before or after it.
    assert_eq!(applied(&request().claimed("ip", "x")), ["addresses"]);
    assert_eq!(applied(&Attributes::new().claimed("ip", "x").with("ip", "i")), ["addresses"]);
    let admitted = (0..100).filter(|attempt| {
        let request = request().claimed("ip", attempt.to_string());
        rules.rules.check("api", &request).now().unwrap().is_allowed()
    });
    assert_eq!(admitted.count(), 0, "the checks above have spent the limit");
}

#[test]
fn debug_output_contains_no_secret() {
    let rules = Fixture::new(
        "api_keys: { sk_secret: pro }
limits: { it: fixed-window limit=5 window=1d }
rules:
  - name: it
    domain: api
    key: [api_key]
    limit: it
    overrides: [{ key: { api_key: sk_secret_too }, limit: block }]
",
    );
    for key in ["sk_secret", "sk_secret_too", "sk_secret_of_a_request"] {
        let request = Attributes::new().with("api_key", key);
        let ruling = rules.rules.check("api", &request).now().unwrap();
        let parts: Vec<_> = ruling.rules().collect();
        let answer = rules.rules.check("api", &request).into_future();
        let printed = format!("{ruling:?} {parts:?} {answer:?} {:?} {request:?}", rules.rules);
        assert!(!printed.contains("sk_secret"), "{printed}");
    }
}

#[test]
fn invalid_request_is_an_error_and_not_a_store_failure() {
    let mut text = "limits: { it: fixed-window limit=5 window=1d }\nrules:\n".to_owned();
    for rule in 0..300 {
        text += &format!("  - {{ name: r{rule}, domain: api, key: [ip], limit: it }}\n");
    }
    let rules = Fixture::new(&text);
    let request = Attributes::new().with("ip", "i");
    let error = rules.rules.check("api", &request).now().unwrap_err();
    assert_eq!(error.to_string(), "257 limits in one check; use at most 256");
    let few = text.lines().take(12).collect::<Vec<_>>().join("\n");
    let rules = Fixture::new(&few);
    let long = Attributes::new().with("ip", "i".repeat(1 << 20));
    let error = rules.rules.check("api", &long).now().unwrap_err().to_string();
    assert!(error.contains("bytes of keys for one request"), "{error}");
    assert!(rules.rules.check("api", &request).cost(0).now().is_err());
    let without_ip = Attributes::new();
    assert!(
        rules.rules.check("api", &without_ip).cost(0).now().is_err(),
        "also if no rule applies"
    );
    assert!(rules.rules.counts().iter().all(|(_, counts)| counts.failed == 0));
}

#[test]
fn later_attribute_wins_when_a_name_is_repeated() {
    let rules = rule_when("{ method: GET }");
    assert_eq!(rules.applied(&[("method", "PUT"), ("method", "GET")]), ["it"]);
    assert!(rules.applied(&[("method", "GET"), ("method", "PUT")]).is_empty());
}
