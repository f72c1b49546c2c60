//! The responses to Envoy.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use serde_json::json;

use super::{
    RlsServer, codes, costing, descriptor, headers, limited, metadata, remaining, request,
};
use crate::metrics::scrape;

/// Rules whose windows end once per year, so almost never while a test runs.
const RULES: &str = "
limits:
  two: fixed-window limit=2 window=365d
  ten: fixed-window limit=10 window=365d
  hour: token-bucket capacity=3600 refill=1/s
rules:
  - { name: per-user, domain: api, key: [user], limit: ten }
  - { name: per-team, domain: api, key: [team], limit: two }
  - { name: watched, domain: api, key: [user], limit: two, shadow: true }
  - { name: free, domain: api, key: [vip], limit: allow }
  - { name: nobody, domain: api, key: [banned], limit: block }
  - { name: hourly, domain: api, key: [hourly], limit: hour }
";

#[test]
fn status_has_the_limit_the_remaining_quota_and_the_reset_time() {
    let limits = RlsServer::start(RULES);
    let answer = limits.ask_all(vec![
        descriptor(&[("user", "a")]),
        descriptor(&[("hourly", "a")]),
        descriptor(&[("nothing", "a")]),
    ]);
    assert_eq!(answer.overall_code(), Code::Ok);
    assert_eq!(codes(&answer), [Code::Ok; 3]);
    let [user, hourly, nothing] = &answer.statuses[..] else { panic!("{answer:?}") };
    let limit = |name: &str, requests_per_unit, unit: Unit| {
        Some(RateLimit { name: name.to_owned(), requests_per_unit, unit: unit.into() })
    };
    assert_eq!(user.current_limit, limit("per-user", 10, Unit::Year));
    assert_eq!(user.limit_remaining, 9);
    let reset = user.duration_until_reset.as_ref().unwrap();
    assert!((1..=365 * 86_400).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    assert_eq!(hourly.current_limit, limit("hourly", 3_600, Unit::Hour));
    assert_eq!(hourly.limit_remaining, 3_599);
    // The time is just under a second. It is rounded up, because Envoy would round it down to 0.
    assert_eq!(hourly.duration_until_reset.as_ref().unwrap().seconds, 1);
    let ok = DescriptorStatus { code: Code::Ok.into(), ..Default::default() };
    assert_eq!(*nothing, ok);
}

#[test]
fn one_refusal_refuses_all_and_nothing_is_charged() {
    let limits = RlsServer::start(RULES);
    let both = || vec![descriptor(&[("user", "a")]), descriptor(&[("team", "t")])];
    limits.ask_all(both());
    limits.ask_all(both());
    let refused = limits.ask_all(both());
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(codes(&refused), [Code::Ok, Code::OverLimit]);
    assert_eq!(remaining(&refused), [8, 0]);
    // The user's quota is unchanged by the refusal.
    let user = limits.ask_all(vec![descriptor(&[("user", "a")])]);
    assert_eq!(remaining(&user), [7]);
}

#[test]
fn refusal_has_headers_and_a_body_for_the_client() {
    let limits = RlsServer::start(RULES);
    let team = || vec![costing(2, &[("team", "t")])];
    let allowed = limits.ask_all(team());
    let fields = headers(&allowed);
    assert_eq!(fields["ratelimit-policy"], "\"per-team\";q=2;w=31536000");
    assert!(fields["ratelimit"].starts_with("\"per-team\";r=0;t="), "{fields:?}");
    assert_eq!(fields.len(), 2, "{fields:?}");
    assert!(allowed.raw_body.is_empty());

    let refused = limits.ask_all(team());
    let fields = headers(&refused);
    assert_eq!(fields["ratelimit-policy"], "\"per-team\";q=2;w=31536000");
    assert_eq!(fields["content-type"], "application/problem+json");
    let wait: u64 = fields["retry-after"].parse().unwrap();
    assert!((1..=365 * 86_400).contains(&wait), "{wait}");
    assert_eq!(fields.len(), 4, "{fields:?}");
    let problem: serde_json::Value = serde_json::from_slice(&refused.raw_body).unwrap();
    assert_eq!(
        (&problem["status"], &problem["violated-policies"]),
        (&json!(429), &json!(["per-team"]))
    );
    assert_eq!((&problem["rule"], &problem["limit_name"]), (&json!("per-team"), &json!("two")));
}

#[test]
fn rules_are_named_in_metadata_and_shadow_rules_only_there() {
    let limits = RlsServer::start(RULES);
    let user = || vec![descriptor(&[("user", "a")])];
    let rule = |name, shadow, allowed, remaining: f64| json!({"name": name, "shadow": shadow, "allowed": allowed, "remaining": remaining});
    let answer = limits.ask_all(user());
    let both = [rule("per-user", false, true, 9.0), rule("watched", true, true, 1.0)];
    assert_eq!(metadata(&answer), json!({"rules": both}));
    limits.ask_all(user());
    let answer = limits.ask_all(user());
    assert_eq!(answer.overall_code(), Code::Ok);
    let both = [rule("per-user", false, true, 7.0), rule("watched", true, false, 0.0)];
    assert_eq!(metadata(&answer), json!({"rules": both}));
    assert!(!headers(&answer)["ratelimit"].contains("watched"));
    assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().name, "per-user");

    let refused = limits.ask_all(vec![costing(8, &[("user", "a")])]);
    assert_eq!(metadata(&refused)["rule"], "per-user");
    assert_eq!(metadata(&refused)["limit_name"], "ten");
}

#[test]
fn metadata_lists_no_more_than_sixteen_rules() {
    let mut rules = "limits: { ten: fixed-window limit=10 window=365d }\nrules:\n".to_owned();
    for number in 0..20 {
        rules += &format!("  - {{ name: rule-{number}, domain: api, key: [user], limit: ten }}\n");
    }
    let answer = RlsServer::start(&rules).ask_all(vec![descriptor(&[("user", "a")])]);
    assert_eq!(metadata(&answer)["rules"].as_array().unwrap().len(), 16);
    assert_eq!(headers(&answer)["ratelimit"].split(", ").count(), 8);
}

#[test]
fn rule_that_allows_or_blocks_shows_no_limit() {
    let limits = RlsServer::start(RULES);
    let vip = limits.ask_all(vec![descriptor(&[("vip", "a")])]);
    assert_eq!((vip.overall_code(), &vip.statuses[0].current_limit), (Code::Ok, &None));
    assert_eq!(headers(&vip).len(), 0);
    let banned = limits.ask_all(vec![descriptor(&[("banned", "a")]), descriptor(&[("user", "b")])]);
    assert_eq!(banned.overall_code(), Code::OverLimit);
    assert_eq!(codes(&banned), [Code::OverLimit, Code::Ok]);
    assert_eq!(banned.statuses[0].current_limit, None);
    assert_eq!(metadata(&banned)["rule"], "nobody");
    assert_eq!(metadata(&banned)["reason"], "blocked");
    let fields = headers(&banned);
    assert_eq!(fields["x-tollgate-reason"], "blocked");
    assert_eq!(fields["content-type"], "application/problem+json");
    assert_eq!(fields.len(), 2, "waiting does not help: {fields:?}");
    let problem: serde_json::Value = serde_json::from_slice(&banned.raw_body).unwrap();
    assert_eq!((&problem["status"], &problem["rule"]), (&json!(403), &json!("nobody")));
}

#[test]
fn status_shows_the_tightest_rule_in_its_own_units() {
    let rules = "
limits:
  one: fixed-window limit=1 window=300d
  large: token-bucket capacity=1 refill=1/365d
  ten: fixed-window limit=10 window=365d
  nine: fixed-window limit=9 window=365d
rules:
  - { name: ten, domain: api, key: [a], limit: ten }
  - { name: nine, domain: api, key: [a], limit: nine }
  - { name: sooner, domain: api, key: [b], limit: one }
  - { name: later, domain: api, key: [b], limit: large }
  - { name: dear, domain: api, key: [c], limit: ten, cost: 3 }
  - { name: cheap, domain: api, key: [c], limit: nine, cost: 2 }
";
    let limits = RlsServer::start(rules);
    let shown = |entries: &[(&str, &str)]| {
        let answer = limits.ask_all(vec![descriptor(entries)]);
        answer.statuses[0].current_limit.clone().unwrap().name
    };
    assert_eq!(shown(&[("a", "x")]), "nine");
    assert_eq!(shown(&[("b", "x")]), "later", "the rule that resets later is shown");
    assert_eq!(shown(&[("b", "x")]), "later");
    let answer = limits.ask_all(vec![descriptor(&[("c", "x")])]);
    assert_eq!(
        answer.statuses[0].current_limit.as_ref().unwrap().name,
        "dear",
        "the rule allows two more requests of cost 3"
    );
    assert_eq!(
        answer.statuses[0].limit_remaining, 7,
        "the other rule allows three more requests of cost 2"
    );
}

#[test]
fn hits_addend_of_a_descriptor_overrides_that_of_the_request() {
    let limits = RlsServer::start(RULES);
    let user = |name| descriptor(&[("user", name)]);
    let mut message = request(vec![user("a"), costing(5, &[("user", "b")])]);
    message.hits_addend = 3;
    assert_eq!(remaining(&limits.ask(message)), [7, 5]);
    let mut unset = request(vec![user("a")]);
    unset.hits_addend = 0;
    assert_eq!(remaining(&limits.ask(unset)), [6], "a request's hits_addend of 0 means unset");
}

#[test]
fn cost_of_the_rule_applies_when_envoy_sends_none() {
    let rules = "
limits: { ten: fixed-window limit=10 window=365d }
rules: [{ name: dear, domain: api, key: [user], limit: ten, cost: 4 }]
";
    let limits = RlsServer::start(rules);
    assert_eq!(remaining(&limits.ask_all(vec![descriptor(&[("user", "a")])])), [6]);
    assert_eq!(remaining(&limits.ask_all(vec![costing(1, &[("user", "a")])])), [5]);
}

#[test]
fn zero_hits_only_peek() {
    let limits = RlsServer::start(RULES);
    let look = || vec![costing(0, &[("team", "t")])];
    assert_eq!(remaining(&limits.ask_all(look())), [2]);
    let charged = limits.ask_all(vec![descriptor(&[("team", "t")])]);
    assert_eq!(remaining(&charged), [1]);
    assert_eq!(remaining(&limits.ask_all(look())), [1]);
    limits.ask_all(vec![descriptor(&[("team", "t")])]);
    let refused = limits.ask_all(look());
    assert_eq!((refused.overall_code(), remaining(&refused)), (Code::OverLimit, vec![0]));
    assert!(headers(&refused).contains_key("retry-after"));
}

#[test]
fn peek_among_charges_refuses_all_or_none() {
    let limits = RlsServer::start(RULES);
    let both = || vec![costing(0, &[("team", "t")]), descriptor(&[("user", "a")])];
    assert_eq!(remaining(&limits.ask_all(both())), [2, 9]);
    limits.ask_all(vec![costing(2, &[("team", "t")])]);
    let refused = limits.ask_all(both());
    assert_eq!(codes(&refused), [Code::OverLimit, Code::Ok]);
    assert_eq!(remaining(&limits.ask_all(vec![descriptor(&[("user", "a")])])), [8]);
}

#[test]
fn override_changes_the_numbers_of_a_limit_and_not_its_algorithm() {
    let limits = RlsServer::start(RULES);
    let answer = limits.ask_all(vec![
        limited(40, RateLimitUnit::Day, &[("user", "a")]),
        limited(7, RateLimitUnit::Minute, &[("hourly", "a")]),
        limited(7, RateLimitUnit::Minute, &[("nothing", "a")]),
        limited(7, RateLimitUnit::Minute, &[("vip", "a")]),
    ]);
    assert_eq!(answer.overall_code(), Code::Ok);
    let fields: Vec<_> =
        answer.statuses.iter().map(|status| status.current_limit.clone()).collect();
    let limit = |name: &str, requests_per_unit, unit: Unit| {
        Some(RateLimit { name: name.to_owned(), requests_per_unit, unit: unit.into() })
    };
    let want = [limit("per-user", 40, Unit::Day), limit("hourly", 7, Unit::Minute), None, None];
    assert_eq!(fields, want);
    assert_eq!(remaining(&answer)[..2], [39, 6]);
    let fields = headers(&answer);
    assert!(fields["ratelimit-policy"].contains("\"hourly\";q=7;w=60"), "{fields:?}");
}

/// If the server answered with an error, Envoy would let the request pass.
#[test]
fn override_that_the_algorithm_cannot_have_is_a_refusal() {
    let rules = "
limits: { log: sliding-window-log limit=10 window=1h }
rules: [{ name: logged, domain: api, key: [user], limit: log }]
";
    let limits = RlsServer::start(rules);
    let answer = limits.ask_all(vec![limited(1_000_000, RateLimitUnit::Second, &[("user", "a")])]);
    assert_eq!(codes(&answer), [Code::OverLimit]);
    assert_eq!(headers(&answer)["x-tollgate-reason"], "undecided");
    assert_eq!(codes(&limits.ask_all(vec![descriptor(&[("user", "a")])])), [Code::Ok]);
}

#[test]
fn rule_that_applies_twice_is_listed_once_as_the_tightest() {
    let rules = "
limits: { ten: fixed-window limit=10 window=365d }
rules: [{ name: per-user, domain: api, key: [user], limit: ten }]
";
    let limits = RlsServer::start(rules);
    let answer = limits.ask_all(vec![costing(2, &[("user", "a")]), costing(7, &[("user", "b")])]);
    assert_eq!(remaining(&answer), [8, 3]);
    assert_eq!(headers(&answer)["ratelimit-policy"], r#""per-user";q=10;w=31536000"#);
    let fields = headers(&answer)["ratelimit"];
    assert!(fields.starts_with(r#""per-user";r=3;t="#) && !fields.contains(','), "{fields}");
}

#[test]
fn delayed_requests_are_refused() {
    let rules = "
limits: { even: leaky-bucket mode=shaping capacity=100 leak=1/1h }
rules: [{ name: even, domain: api, key: [user], limit: even }]
";
    let limits = RlsServer::start(rules);
    let user = || vec![descriptor(&[("user", "a")])];
    assert_eq!(limits.ask_all(user()).overall_code(), Code::Ok);
    let refused = limits.ask_all(user());
    assert_eq!(refused.overall_code(), Code::OverLimit);
    let wait: u64 = headers(&refused)["retry-after"].parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
}

#[test]
fn unmatched_descriptors_are_allowed_and_counted() {
    let limits = RlsServer::start(RULES);
    let unmatched =
        || scrape(&limits.server).value("tollgate_rls_unmatched_descriptors_total", &[]);
    assert_eq!(unmatched(), 0.0);
    let some = vec![
        descriptor(&[("user", "a")]),
        descriptor(&[("nothing", "a")]),
        descriptor(&[("nothing", "b")]),
    ];
    let answer = limits.ask_all(some);
    assert_eq!(codes(&answer), [Code::Ok; 3]);
    assert_eq!(unmatched(), 2.0);
    let mut message = request(vec![descriptor(&[("user", "a")])]);
    message.domain = "unknown".to_owned();
    let answer = limits.ask(message);
    assert_eq!((answer.overall_code(), codes(&answer)), (Code::Ok, vec![Code::Ok]));
    assert_eq!((metadata(&answer), headers(&answer).len()), (serde_json::Value::Null, 0));
    assert_eq!(unmatched(), 3.0);
    // A descriptor that matches only a shadow rule is not unmatched.
    limits.ask_all(vec![descriptor(&[("vip", "a")])]);
    assert_eq!(unmatched(), 3.0);
}
