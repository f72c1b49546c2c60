//! Limits hold behind Envoy.

use std::sync::Barrier;
use std::thread;

use reqwest::StatusCode;

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::{EnvoyFront, header};

const THREADS: usize = 8;
const OK: StatusCode = StatusCode::OK;
const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

#[test]
fn concurrent_clients_pass_exactly_the_limit() {
    let front = EnvoyFront::start(
        "
limits: { fifty: fixed-window limit=50 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: fifty }]
",
    );
    let together = Barrier::new(THREADS);
    let passed: usize = thread::scope(|scope| {
        let ask = || {
            together.wait();
            front.statuses("/", 20).iter().filter(|status| **status == OK).count()
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((passed, front.upstream.served()), (50, 50));
    let counted = ["ok", "over_limit", "error"].map(|what| front.counted(what));
    assert_eq!(counted, [50, 110, 0]);
}

#[test]
fn several_descriptors_are_charged_all_or_none() {
    let descriptors = "
- actions: [{ remote_address: {} }]
- actions: [{ request_headers: { header_name: x-tenant, descriptor_key: tenant } }]
";
    let rules = "
limits: { ten: fixed-window limit=10 window=366d, two: fixed-window limit=2 window=366d }
rules:
  - { name: per-address, domain: envoy, key: [ip], limit: ten }
  - { name: per-tenant, domain: envoy, key: [tenant], limit: two }
";
    let front = EnvoyFront::with(rules, EnvoyConfig::new().route("/both", descriptors), &[]);
    let ask = |tenant| front.get_as("/both", &[("x-tenant", tenant)]).status();
    assert_eq!(["a", "a", "a", "a", "b"].map(ask), [OK, OK, REFUSED, REFUSED, OK]);
    // Three requests passed. The two that a tenant's limit refused cost their address nothing.
    assert_eq!(header(&front.get("/quota"), "x-ratelimit-remaining"), Some("7"));
}

#[test]
fn shadow_rule_refuses_nothing_and_is_counted() {
    let front = EnvoyFront::start(
        "
limits: { two: fixed-window limit=2 window=366d, ten: fixed-window limit=10 window=366d }
rules:
  - { name: planned, domain: envoy, key: [ip], limit: two, shadow: true }
  - { name: per-address, domain: envoy, key: [ip], limit: ten }
",
    );
    assert_eq!(front.statuses("/", 6), [OK; 6]);
    let answer = front.get("/");
    assert_eq!(header(&answer, "x-ratelimit-remaining"), Some("3"), "of the rule that is enforced");
    assert_eq!(header(&answer, "ratelimit-policy").map(|all| all.contains("planned")), Some(false));
    assert_eq!(front.counted("over_limit"), 0);
    let labels = [("domain", "envoy"), ("rule", "planned"), ("outcome", "shadow_denied")];
    assert_eq!(front.metrics().value("tollgate_decisions_total", &labels), 5.0);
}

#[test]
fn unmatched_requests_pass_and_are_counted() {
    let rules = "
limits: { none: fixed-window limit=1 window=366d }
rules: [{ name: admin, domain: envoy, when: { path: /admin }, key: [], limit: none }]
";
    let elsewhere = EnvoyConfig::new().with("domain: envoy", "domain: elsewhere");
    for (config, unmatched) in [(EnvoyConfig::new(), 2.0), (elsewhere, 4.0)] {
        let front = EnvoyFront::with(rules, config, &[]);
        front.statuses("/admin", 2);
        assert_eq!(front.statuses("/", 2), [OK; 2]);
        let answer = front.get("/");
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
            assert_eq!(header(&answer, name), None, "{name}");
        }
        let counted = front.metrics().value("tollgate_rls_unmatched_descriptors_total", &[]);
        assert_eq!(counted, unmatched + 1.0);
        assert_eq!(front.counted("error"), 0);
    }
}
