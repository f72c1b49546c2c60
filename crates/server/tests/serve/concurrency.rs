//! Concurrency limits, which a check cannot spend.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;

use crate::check::problem;
use crate::openapi::assert_valid;
use crate::rls::{RlsServer, codes, descriptor};
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
            "`{name}` limits what runs at the same time, so it cannot be checked; reserve with POST /v1/reserve, and settle \
             the hold with POST /v1/settle when the work has ended"
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

/// Envoy does not say when a request has ended.
#[test]
fn places_that_envoy_takes_are_held_for_the_time_of_the_limit() {
    let limits = RlsServer::start(RULES);
    let ask = || limits.ask_all(vec![descriptor(&[("user", "a")]), descriptor(&[("job", "a")])]);
    for left in [1, 0] {
        let allowed = ask();
        assert_eq!(allowed.overall_code(), Code::Ok);
        assert_eq!(allowed.statuses[1].limit_remaining, left);
    }
    let refused = ask();
    assert_eq!(codes(&refused), [Code::Ok, Code::OverLimit]);
    assert_eq!(refused.statuses[0].limit_remaining, 3, "the refused call charged nothing");
    let wait = refused.statuses[1].duration_until_reset.as_ref().unwrap().seconds;
    assert!((1..=60).contains(&wait), "{wait}");
}

#[test]
fn places_that_a_proxy_takes_are_held_for_the_time_of_the_rule() {
    let file = crate::check::rules(
        "identity: { trusted_proxies: [127.0.0.1] }
limits: { jobs: concurrency limit=2 for=60s }
rules: [{ name: jobs, domain: api, key: [ip], limit: jobs, hold_for: 1h }]",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let ask = || {
        let request = server.get("/v1/authorize").header("x-forwarded-method", "GET");
        let request = request.header("x-forwarded-uri", "/").header("x-forwarded-for", "192.0.2.1");
        request.header("x-forwarded-host", "a.example").send().unwrap()
    };
    assert_eq!(
        [ask().status(), ask().status(), ask().status()].map(|status| status.as_u16()),
        [200, 200, 429]
    );
    let refused = ask();
    let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3_500..=3_600).contains(&wait), "{wait}");
}
