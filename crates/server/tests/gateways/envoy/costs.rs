//! Costs and limits that Envoy sends with a request: `hits_addend` and limit overrides.

use reqwest::StatusCode;

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::{EnvoyFront, header};
use crate::envoy::page::rate_limits;
use crate::envoy::upstream::SPENT;
use crate::eventually::eventually;

const OK: StatusCode = StatusCode::OK;
const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const TWELVE: &str = "
limits: { twelve: fixed-window limit=12 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: twelve }]
";

fn remaining(front: &EnvoyFront) -> u64 {
    header(&front.get("/quota"), "x-ratelimit-remaining").unwrap().parse().unwrap()
}

#[test]
fn hits_addend_is_the_cost() {
    let front = EnvoyFront::start(TWELVE);
    assert_eq!(front.statuses("/reports", 3), [OK, OK, REFUSED]);
    assert_eq!(remaining(&front), 2, "a refusal costs nothing");
    assert_eq!(front.statuses("/", 3), [OK, OK, REFUSED]);
}

#[test]
fn hits_addend_of_zero_only_peeks() {
    let front = EnvoyFront::start(TWELVE);
    assert_eq!(front.statuses("/quota", 30), [OK; 30]);
    assert_eq!(remaining(&front), 12);
    front.statuses("/", 12);
    assert_eq!(front.statuses("/quota", 2), [REFUSED; 2]);
    assert_eq!(front.upstream.served(), 43);
}

#[test]
fn response_cost_is_charged_when_the_stream_ends() {
    let config = EnvoyConfig::new().route("/chat", &rate_limits("apply_on_stream_done"));
    let front = EnvoyFront::with(TWELVE, config, &[]);
    let chat = |spent| front.get_as("/chat", &[(SPENT, spent)]).status();
    assert_eq!(chat("9"), OK);
    eventually("the response is charged", || (remaining(&front) == 3).then_some(()));
    // A cost above the remaining quota charges nothing.
    assert_eq!(chat("4"), OK);
    let labels = [("rule", "per-address"), ("outcome", "denied")];
    let denied = || front.metrics().value("tollgate_decisions_total", &labels);
    eventually("the response is refused", || (denied() == 1.0).then_some(()));
    assert_eq!(remaining(&front), 3);
    assert_eq!(chat("3"), OK);
    eventually("the response is charged", || (chat("1") == REFUSED).then_some(()));
    assert_eq!(front.counted("error"), 0);
}

const TWO_A_MINUTE: &str = "
limits: { two: token-bucket capacity=2 refill=2/m }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: two }]
";

/// Returns a configuration in which requests to `/partner` have a limit of 4 per hour in their metadata.
fn overridden(rate_limits: &str) -> EnvoyConfig {
    let set = "http_filters:
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: plan
                          value: { limit: { requests_per_unit: 4, unit: HOUR } }";
    EnvoyConfig::new().with("http_filters:", set).route("/partner", rate_limits)
}

#[test]
fn limit_of_a_request_overrides_the_numbers_of_the_rule() {
    for limit in ["dynamic_metadata", "requests_per_unit: 4"] {
        let front = EnvoyFront::with(TWO_A_MINUTE, overridden(&rate_limits(limit)), &[]);
        let answer = front.get("/partner");
        assert_eq!(header(&answer, "x-ratelimit-remaining"), Some("3"), "{limit}");
        let shown = header(&answer, "x-ratelimit-limit");
        assert_eq!(shown, Some("4, 4;w=3600;name=\"per-address\""), "{limit}");
        assert_eq!(front.statuses("/partner", 4), [OK, OK, OK, REFUSED], "{limit}");
        assert_eq!(front.counted("error"), 0, "{limit}");
    }
}

#[test]
fn spent_quota_stays_spent_under_an_overridden_limit() {
    let front = EnvoyFront::with(TWO_A_MINUTE, overridden(&rate_limits("dynamic_metadata")), &[]);
    assert_eq!(front.statuses("/", 3), [OK, OK, REFUSED]);
    assert_eq!(front.statuses("/partner", 3), [OK, OK, REFUSED]);
}

#[test]
fn limit_of_a_request_has_no_effect_when_no_rule_applies() {
    let rules = "
limits: { two: token-bucket capacity=2 refill=2/m }
rules: [{ name: admin, domain: envoy, when: { path: /admin }, key: [ip], limit: two }]
";
    let front = EnvoyFront::with(rules, overridden(&rate_limits("dynamic_metadata")), &[]);
    assert_eq!(front.statuses("/partner", 6), [OK; 6]);
    assert_eq!(header(&front.get("/partner"), "x-ratelimit-limit"), None);
}
