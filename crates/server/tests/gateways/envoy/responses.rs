//! The headers of Envoy and of Tollgate, the body, and the access log.

use reqwest::StatusCode;
use serde_json::Value;

use crate::envoy::front::{EnvoyFront, header};

const RULES: &str = "
limits:
  minute: token-bucket capacity=3 refill=3/m
  day: fixed-window limit=100 window=1d
rules:
  - { name: per-address, domain: envoy, key: [ip], limit: minute }
  - { name: daily, domain: envoy, key: [ip], limit: day }
  - { name: closed-area, domain: envoy, when: { path: /closed }, key: [ip], limit: block }
";

/// Returns a parameter of a policy, such as `r` in `"per-address";r=2;t=20`.
fn parameter(text: &str, policy: &str, name: &str) -> u64 {
    let items = text.split(", ");
    let item = items
        .map(|item| item.split(';'))
        .find_map(|mut parts| (parts.next() == Some(&format!("\"{policy}\""))).then_some(parts));
    let mut parts = item.unwrap_or_else(|| panic!("no {policy} in {text}"));
    let value = parts.find_map(|part| part.strip_prefix(&format!("{name}=")));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

#[test]
fn envoys_headers_agree_with_ours() {
    let front = EnvoyFront::start(RULES);
    for left in [2, 1, 0] {
        let answer = front.get("/");
        assert_eq!(answer.status(), 200);
        let [limit, remaining, reset] = ["limit", "remaining", "reset"]
            .map(|name| header(&answer, &format!("x-ratelimit-{name}")).unwrap());
        assert_eq!(limit, "3, 3;w=60;name=\"per-address\"");
        assert_eq!(remaining, left.to_string());
        // Envoy's own header has the seconds from now. A unit is refilled in 20 s.
        let reset: u64 = reset.parse().unwrap();
        let full = (3 - left) * 20;
        assert!((full - 5..=full).contains(&reset), "{reset} with {left} left");
        let ours = header(&answer, "ratelimit").unwrap();
        assert_eq!(parameter(ours, "per-address", "r"), left);
        let policy = header(&answer, "ratelimit-policy").unwrap();
        assert_eq!(
            [parameter(policy, "per-address", "q"), parameter(policy, "per-address", "w")],
            [3, 60]
        );
        assert_eq!(header(&answer, "retry-after"), None);
    }
}

#[test]
fn refusal_has_a_reason_and_a_retry_time() {
    let front = EnvoyFront::start(RULES);
    front.statuses("/", 3);
    let answer = front.get("/");
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&answer, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&answer, "x-envoy-ratelimited"), Some("true"));
    assert_eq!(parameter(header(&answer, "ratelimit").unwrap(), "per-address", "r"), 0);
    let policy = header(&answer, "ratelimit-policy").unwrap();
    assert_eq!(parameter(policy, "per-address", "q"), 3);
    let wait: u64 = header(&answer, "retry-after").unwrap().parse().unwrap();
    assert!((15..=20).contains(&wait), "{wait}");
    assert_eq!(header(&answer, "content-type"), Some("application/problem+json"));
    let problem: Value = serde_json::from_str(&answer.text().unwrap()).unwrap();
    assert_eq!((&problem["status"], &problem["title"]), (&429.into(), &"Too Many Requests".into()));
    assert_eq!(
        (&problem["rule"], &problem["limit_name"]),
        (&"per-address".into(), &"minute".into())
    );
}

#[test]
fn blocked_request_is_a_403_without_a_wait() {
    let front = EnvoyFront::start(RULES);
    let answer = front.get("/closed");
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    assert_eq!(header(&answer, "x-tollgate-reason"), Some("blocked"));
    assert_eq!(header(&answer, "content-type"), Some("application/problem+json"));
    for invitation in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
        assert_eq!(header(&answer, invitation), None, "{invitation}");
    }
    let problem: Value = serde_json::from_str(&answer.text().unwrap()).unwrap();
    assert_eq!((&problem["status"], &problem["rule"]), (&403.into(), &"closed-area".into()));
    let log = front.envoy.wait_for_log(|log| log.contains("/closed"));
    assert!(log.contains("GET /closed 403 rule=closed-area reason=blocked"), "{log}");
    assert_eq!(front.get("/").status(), 200, "other requests pass");
}

#[test]
fn access_log_names_the_rule() {
    let front = EnvoyFront::start(RULES);
    front.statuses("/page?q=1", 4);
    let log = front.envoy.wait_for_log(|log| log.contains(" 429 "));
    let refused = log.lines().find(|line| line.contains(" 429 ")).unwrap();
    assert_eq!(refused, "GET /page?q=1 429 rule=per-address reason=-");
}

#[test]
fn refused_grpc_client_gets_resource_exhausted() {
    let front = EnvoyFront::start(RULES);
    front.statuses("/", 3);
    let answer = front.get_as("/", &[("content-type", "application/grpc")]);
    assert_eq!(answer.status(), 200, "the HTTP status of a gRPC answer");
    assert_eq!(header(&answer, "grpc-status"), Some("8"));
    assert!(header(&answer, "retry-after").is_some());
}
