//! The metrics of rules, limits and the store, without a socket.

use std::time::Duration;

use tollgate::Redis;
use tollgate::rules::{Attributes, Config};
use tollgate_launcher::{Flavour, Launch};

use super::*;
use crate::budget::Budget;
use crate::parts::ServerParts;

#[allow(dead_code)]
#[path = "../../tests/serve/prometheus.rs"]
mod prometheus;

use prometheus::Page;

const RULES: &str = "
limits:
  two: fixed-window limit=2 window=366d
rules:
  - { name: open, domain: api, when: { is: open }, key: [who], limit: two, on_store_failure: open }
  - { name: closed, domain: api, when: { is: closed }, key: [who], limit: two, on_store_failure: closed }
  - name: local
    domain: api
    when: { is: local }
    key: [who]
    limit: two
    on_store_failure: { local: { processes: 2 } }
  - { name: watching, domain: api, when: { is: local }, key: [who], limit: two, shadow: true }
  - { name: blocking, domain: api, when: { is: bad }, key: [], limit: block }
";

fn page(parts: &ServerParts) -> Page {
    Page::parse(&parts.api.metrics_page.render())
}

/// Sends checks of a client. After a refusal the deny cache refuses the same client without the store, so tests that
/// need the store use another one.
async fn check(parts: &ServerParts, who: &str, is: &str, times: usize) {
    let request = Attributes::new().with("who", who).with("is", is);
    for _ in 0..times {
        // The result is on the page.
        let _ = parts.api.rules.rules().check("api", &request).await;
    }
}

/// Returns a rule's counts: allowed, denied and shadow denied by the store, the same three without the store, and
/// failed.
fn decided(page: &Page, rule: &str) -> [u64; 7] {
    let outcomes = ["allowed", "denied", "shadow_denied"];
    let by_store = outcomes.map(|outcome| (outcome, "false"));
    let degraded = outcomes.map(|outcome| (outcome, "true"));
    let all = [&by_store[..], &degraded[..], &[("failed", "false")]].concat();
    let counts = all.into_iter().map(|(outcome, degraded)| {
        let labels =
            [("domain", "api"), ("rule", rule), ("outcome", outcome), ("degraded", degraded)];
        page.value("tollgate_decisions_total", &labels) as u64
    });
    counts.collect::<Vec<_>>().try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_decision_of_a_rule_is_counted_in_one_outcome() {
    let mut server = Launch::new(Flavour::Redis).start().unwrap();
    // A long deadline, so that no check misses it on a busy machine.
    let builder = Redis::at(&server.url()).unwrap();
    let limiter = builder.deadline(Duration::from_secs(5)).build().unwrap();
    let parts = crate::parts::tests::on(&limiter, RULES);
    check(&parts, "a", "open", 5).await;
    check(&parts, "a", "closed", 1).await;
    check(&parts, "a", "local", 3).await;
    check(&parts, "a", "bad", 4).await;
    let before = page(&parts);
    assert_eq!(decided(&before, "open"), [2, 3, 0, 0, 0, 0, 0]);
    assert_eq!(decided(&before, "closed"), [1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(decided(&before, "local"), [2, 1, 0, 0, 0, 0, 0]);
    assert_eq!(decided(&before, "watching"), [2, 0, 1, 0, 0, 0, 0]);
    assert_eq!(decided(&before, "blocking"), [0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(before.value("tollgate_store_errors_total", &[]), 0.0);

    server.kill();
    let failures = 7 + 3 + 4;
    check(&parts, "b", "open", 7).await;
    check(&parts, "b", "closed", 3).await;
    check(&parts, "b", "local", 4).await;
    check(&parts, "b", "bad", 1).await;
    let after = page(&parts);
    assert_eq!(decided(&after, "open"), [2, 3, 0, 7, 0, 0, 0]);
    assert_eq!(decided(&after, "closed"), [1, 0, 0, 0, 0, 0, 3]);
    // The share of this process: half of 2 units.
    assert_eq!(decided(&after, "local"), [2, 1, 0, 1, 3, 0, 0]);
    assert_eq!(decided(&after, "watching"), [2, 0, 1, 1, 0, 3, 0]);
    assert_eq!(decided(&after, "blocking"), [0, 5, 0, 0, 0, 0, 0]);
    assert_eq!(after.value("tollgate_store_errors_total", &[]), f64::from(failures));
    // Once the breaker is open, requests fail at once.
    let kind = |kind: &str| after.value("tollgate_store_errors_total", &[("kind", kind)]);
    assert!(kind("unreachable") >= 1.0 && kind("breaker_open") >= 1.0, "{after:?}");
    let breaker = |state: &str| after.value("tollgate_store_breaker", &[("state", state)]);
    assert_eq!(breaker("closed") + breaker("open") + breaker("half_open"), 1.0);
    assert_eq!(breaker("closed"), 0.0);
    assert_eq!(after.value("tollgate_store_waiting", &[]), 0.0);
}

#[tokio::test]
async fn a_removed_rule_is_not_on_the_page() {
    let parts = crate::parts::tests::in_memory(RULES);
    check(&parts, "b", "open", 3).await;
    assert_eq!(decided(&page(&parts), "open")[..2], [2, 1]);
    let fewer = RULES.lines().filter(|line| !line.contains("closed")).collect::<Vec<_>>();
    let config = Config::parse("rules.yaml", fewer.join("\n")).unwrap();
    parts.api.rules.rules().replace(&config).unwrap();
    let page = page(&parts);
    assert_eq!(decided(&page, "open")[..2], [2, 1], "other rules keep their counts");
    assert!(
        !page.series().iter().any(|series| series.contains("\"rule\": \"closed\"")),
        "{page:?}"
    );
    assert_eq!(page.value("tollgate_rules_generation", &[]), 2.0);
}

#[tokio::test]
async fn names_with_quotes_and_backslashes_stay_different() {
    let domains = ["a\"b", "a\\b", "a\\\\b", "a\\\"b", "a\\nb", "a{b},c=\"d"];
    let mut rules = String::from("limits: { two: fixed-window limit=2 window=1d }\nrules:\n");
    for domain in domains {
        rules += &format!("  - {{ name: it, domain: {domain:?}, key: [], limit: two }}\n");
    }
    let page = page(&crate::parts::tests::in_memory(&rules));
    for domain in domains {
        assert_eq!(page.value("tollgate_decisions_total", &[("domain", domain)]), 0.0);
    }
}

fn recorded(metrics: &Metrics) -> String {
    let mut text = MetricsText::default();
    metrics.write_recorded(&mut text);
    text.into_string()
}

#[test]
fn only_calls_of_a_remote_store_are_timed() {
    let metrics = Metrics::new(StoreKind::Redis);
    metrics.store_answered(metrics.store_call());
    let page = Page::parse(&recorded(&metrics));
    let calls = "tollgate_store_call_duration_seconds_count";
    assert_eq!(page.value(calls, &[("store", "redis")]), 1.0);
    let metrics = Metrics::new(StoreKind::Memory);
    assert_eq!(metrics.store_call(), None);
    metrics.store_answered(None);
    assert!(!recorded(&metrics).contains("store_call"), "calls of the memory store are not timed");
}

#[tokio::test]
async fn a_duration_is_in_the_bucket_of_its_bound() {
    let metrics = Metrics::new(StoreKind::Memory);
    let took = Duration::from_micros(100);
    metrics.request(RequestEndpoint::Check, StatusCode::OK, took);
    metrics.request(
        RequestEndpoint::Check,
        StatusCode::IM_A_TEAPOT,
        took + Duration::from_nanos(1),
    );
    let page = Page::parse(&recorded(&metrics));
    let count = |le: &str| {
        let labels = [("endpoint", "check"), ("store", "memory"), ("le", le)];
        page.value("tollgate_request_duration_seconds_bucket", &labels)
    };
    assert_eq!((count("0.00005"), count("0.0001"), count("0.00025")), (0.0, 1.0, 2.0));
    let status = |status| page.value("tollgate_requests_total", &[("status", status)]);
    assert_eq!((status("200"), status("4xx")), (1.0, 1.0));
}

#[tokio::test]
async fn a_page_takes_memory_of_its_budget_until_it_is_dropped() {
    let limits =
        (0..40).map(|number| format!("  limit-{number}: fixed-window limit=2 window=1s\n"));
    let limits = format!("limits:\n{}rules: []\n", limits.collect::<String>());
    let page = crate::parts::tests::in_memory(&limits).api.metrics_page;
    // Enough for one page of about 50 KiB.
    let budget = Budget::new(64 << 10);
    let first = page.body(&budget).await.unwrap().unwrap();
    assert!(page.body(&budget).await.unwrap().is_err());
    drop(first);
    assert!(page.body(&budget).await.unwrap().is_ok());
}
