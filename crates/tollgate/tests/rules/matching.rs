//! Which requests a rule is for.

use crate::setup::Fixture;

/// One rule for everybody, with this `when`.
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

#[test]
fn when_wants_values_lists_globs_prefixes_and_presence() {
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
fn a_rule_without_when_applies_if_its_key_can_be_made() {
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
fn one_that_names_the_same_value_otherwise_is_somebody_else() {
    let rules = Fixture::new(
        "limits: { one: fixed-window limit=1 window=1d }\n\
         rules: [{ name: it, domain: api, key: [{ first_of: [api_key, ip] }], limit: one }]\n",
    );
    assert!(rules.check(&[("api_key", "x")]).is_allowed());
    assert!(rules.check(&[("ip", "x")]).is_allowed());
    assert!(!rules.check(&[("ip", "x")]).is_allowed());
}

#[test]
fn another_domain_has_other_rules_and_an_unknown_one_none() {
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

#[test]
fn of_two_attributes_with_one_name_the_later_counts() {
    let rules = rule_when("{ method: GET }");
    assert_eq!(rules.applied(&[("method", "PUT"), ("method", "GET")]), ["it"]);
    assert!(rules.applied(&[("method", "GET"), ("method", "PUT")]).is_empty());
}
