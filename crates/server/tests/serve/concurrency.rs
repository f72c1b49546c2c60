//! Concurrency limits, which a check cannot spend.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;

use crate::check::problem;
use crate::openapi::assert_valid;
use crate::rls::{RlsServer, codes, descriptor, headers};
use crate::server::{ServerProcess, body_of};

const RULES: &str = "limits:
  jobs: concurrency limit=2 for=60s
  requests: fixed-window limit=5 window=365d
rules:
  - { name: jobs, domain: api, key: [job], limit: jobs }
  - { name: requests, domain: api, key: [user], limit: requests }
";

#[test]
fn check_of_a_concurrency_limit_is_a_400_that_says_to_reserve() {
    let file = crate::check::rules(RULES);
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let request = json!({"domain": "api", "attributes": {"user": "a", "job": "a"}});
    for (name, body) in [("jobs", json!({"limit": "jobs", "key": "a"})), ("api/jobs", request)] {
        let refused = problem(server.post("/v1/check", body.to_string()).send().unwrap());
        let detail = format!(
            "the limit `{name}` counts what runs at the same time, so it cannot be checked; reserve a unit, and release \
             it at the end"
        );
        assert_eq!(refused, (400, detail));
    }
    // Nothing was charged, and other requests are decided.
    let other = json!({"domain": "api", "attributes": {"user": "a"}}).to_string();
    assert_eq!(server.check(&other)["remaining"], 4);
    // In a batch the request fails alone.
    let batch = json!([{"limit": "jobs", "key": "a"}, {"limit": "requests", "key": "a"}]);
    let answers = body_of(server.post("/v1/check/batch", batch.to_string()).send().unwrap());
    assert_eq!((&answers[0]["status"], &answers[1]["remaining"]), (&json!(400), &json!(4)));
}

#[test]
fn concurrency_limit_is_listed_with_the_most_that_is_held_at_once() {
    let file = crate::check::rules(RULES);
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let jobs = body_of(server.get("/v1/limits/jobs").send().unwrap());
    assert_valid("Limit", &jobs);
    let want = json!({
        "name": "jobs", "limit": "concurrency limit=2 for=1m", "algorithm": "concurrency",
        "bound": {"interval_us": 60_000_000, "max": 2, "formula": "limit, held at any instant"}
    });
    assert_eq!(jobs, want);
    let key = body_of(server.get("/v1/limits/jobs/keys/a").send().unwrap());
    assert_eq!((&key["allowed"], &key["remaining"]), (&json!(true), &json!(2)));
}

/// Envoy lets a request pass if the call fails, so this error is answered with a refusal.
#[test]
fn envoy_gets_a_refusal_for_a_rule_that_it_cannot_check() {
    let limits = RlsServer::start(RULES);
    let refused = limits.ask_all(vec![descriptor(&[("user", "a")]), descriptor(&[("job", "a")])]);
    assert_eq!(codes(&refused), [Code::OverLimit; 2]);
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(headers(&refused)["x-tollgate-reason"], "undecided");
    let user = limits.ask_all(vec![descriptor(&[("user", "a")])]);
    assert_eq!(user.statuses[0].limit_remaining, 4, "the refused call charged nothing");
}
