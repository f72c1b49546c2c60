//! What is written is what is read.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate_core::Cost;

use super::*;
use crate::OnFailure;
use crate::rules::config::{
    Choice, Condition, Costs, KeyPart, Override, Route, Rule, Spend, Tiers, Wanted,
};
use crate::rules::pattern::Pattern;

const TEXT: &str = r#"
defaults: { domain: api, on_store_failure: closed, deadline: 10ms }
limits:
  free: { algorithm: token-bucket, capacity: 60, refill: 1/s }
  pro: token-bucket capacity=600 refill=10/s
api_keys: { k_1: pro, 2: gold }
rules:
  - name: plain
    key: []
    limit: pro
  - name: all
    domain: web
    when:
      method: [GET, { exact: "*" }, { prefix: P }]
      path: /v1/**
      version: 1.0
      flag: true
      here: { present: true }
      gone: { present: false }
      any: { any_of: [x, { glob: y }] }
    key: [tenant, { first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: pro, banned: block, gold: allow }, default: free }
    cost: { "POST /reports": 10, "**/export": 5, default: 2 }
    shadow: true
    on_store_failure: { local: { processes: 4 } }
    deadline: 5ms
    overrides:
      - { key: { ip: 203.0.113.9, tenant: 7 }, limit: block }
"#;

fn plain() -> Rule {
    Rule {
        name: "plain".into(),
        domain: "api".into(),
        when: vec![],
        key: vec![],
        limit: Choice { tiers: None, default: Spend::Limit(1) },
        cost: Costs { routes: vec![], default: Cost::ONE },
        is_shadow: false,
        on_store_failure: Some(OnFailure::Closed),
        deadline: Some(Duration::from_millis(10)),
        overrides: vec![],
    }
}

fn all() -> Rule {
    let cost = |units| Cost::new(units).unwrap();
    let exact = |text: &str| Pattern::Exact(text.into());
    let condition = |attribute: &str, wanted| Condition { attribute: attribute.into(), wanted };
    let any_of = |attribute, patterns| condition(attribute, Wanted::AnyOf(patterns));
    let part =
        |names: &[&str]| KeyPart { first_of: names.iter().map(|&name| name.into()).collect() };
    Rule {
        name: "all".into(),
        domain: "web".into(),
        when: vec![
            any_of("method", vec![exact("GET"), exact("*"), Pattern::Prefix("P".into())]),
            any_of("path", vec![Pattern::of("/v1/**")]),
            any_of("version", vec![exact("1.0")]),
            any_of("flag", vec![exact("true")]),
            condition("here", Wanted::Present),
            condition("gone", Wanted::Absent),
            any_of("any", vec![exact("x"), exact("y")]),
        ],
        key: vec![part(&["tenant"]), part(&["api_key", "ip"])],
        limit: Choice {
            tiers: Some(Tiers {
                by: "tier".into(),
                of: vec![
                    ("pro".into(), Spend::Limit(1)),
                    ("banned".into(), Spend::Block),
                    ("gold".into(), Spend::Allow),
                ],
            }),
            default: Spend::Limit(0),
        },
        cost: Costs {
            routes: vec![
                (Route { method: Some("POST".into()), path: exact("/reports") }, cost(10)),
                (Route { method: None, path: Pattern::of("**/export") }, cost(5)),
            ],
            default: cost(2),
        },
        is_shadow: true,
        on_store_failure: Some(OnFailure::Local { processes: 4 }),
        deadline: Some(Duration::from_millis(5)),
        // In the order of the rule's key, not as written.
        overrides: vec![Override {
            key: vec![("tenant".into(), "7".into()), ("ip".into(), "203.0.113.9".into())],
            spend: Spend::Block,
        }],
    }
}

#[test]
fn everything_in_a_file_is_read_as_it_is_meant() {
    let config = Config::parse("limits.yaml", TEXT).unwrap();
    let limits: Vec<_> = config.limits.iter().map(|it| (&*it.name, it.limit.to_string())).collect();
    let expected = [
        ("free", "token-bucket capacity=60 refill=1/s".to_owned()),
        ("pro", "token-bucket capacity=600 refill=10/s".to_owned()),
    ];
    assert_eq!(limits, expected);
    assert_eq!(config.rules, [plain(), all()]);
    let keys = [("k_1", "pro"), ("2", "gold")].map(|(key, tier)| (key.into(), tier.into()));
    assert_eq!(config.api_keys, keys.into());
    assert!(config.warnings.is_empty());
}

#[test]
fn without_defaults_a_store_that_fails_lets_through_and_has_its_own_deadline() {
    let text = "rules: [{ name: a, domain: d, key: [], limit: allow }]";
    let config = Config::parse("limits.yaml", text).unwrap();
    let rule = &config.rules[0];
    assert_eq!((rule.on_store_failure, rule.deadline), (None, None));
}

#[test]
fn a_file_of_keys_that_may_not_be_read_says_who_must_be_let() {
    let problems = Config::load_with(Path::new("limits.yaml"), |path, _| match path.to_str() {
        Some("limits.yaml") => Ok(b"limits: {}\napi_keys_file: keys.yaml\n".to_vec()),
        _ => Err(ErrorKind::PermissionDenied.into()),
    });
    let expected = "error: limits.yaml:2:16: `keys.yaml` cannot be read: permission denied\n  \
                    let this user read it\n1 error";
    assert_eq!(problems.unwrap_err().to_string(), expected);
}
