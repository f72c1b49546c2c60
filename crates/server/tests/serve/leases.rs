//! Leased rules and limits on a real Redis, through every front end.

use std::time::Duration;

use reqwest::blocking::Response;
use rustix::process::Signal;
use serde_json::{Value, json};
use tollgate_launcher::{Flavour, Launch, Server as Redis};

use crate::eventually::eventually;
use crate::metrics::scrape;
use crate::openapi::assert_valid;
use crate::rls::{RlsServer, descriptor, metadata};
use crate::server::{ServerProcess, body_of};

/// No lease ends during a test, nothing is refilled, and the deadline is long because the machine can be busy.
const RULES: &str = "
defaults: { on_store_failure: closed, deadline: 30s, lease: { for: 1h } }
identity: { trusted_proxies: [127.0.0.1] }
limits:
  named: { algorithm: fixed-window, limit: 100000, window: 366d, mode: leased }
  many: sliding-window-counter limit=100000 window=366d
  few: token-bucket capacity=1000 refill=1/d
rules:
  - { name: leased, domain: api, key: [client], limit: many, mode: leased }
  - { name: strict, domain: api, when: { both: '1' }, key: [client], limit: few }
  - { name: proxied, domain: web, key: [ip], limit: many, mode: leased, lease: { for: 1h, max_share: 5%, pace: 20ms } }
";

const SECRET: (&str, &str) = ("TOLLGATE_RECEIPT_SECRET", "known to all of these servers");

const LIMIT: u64 = 100_000;

fn launch() -> Redis {
    Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"))
}

fn start(redis: &Redis) -> RlsServer {
    let store = ["--store", &redis.url(), "--store-deadline", "30s"];
    RlsServer::start_with(RULES, &[&store[..], &["--drain-delay", "0s"]].concat())
}

/// Starts a server that accepts receipts of other servers.
fn start_with_secret(redis: &Redis, file: &tempfile::NamedTempFile) -> ServerProcess {
    let path = file.path().to_str().unwrap();
    let store = ["--store", &redis.url(), "--store-deadline", "30s"];
    ServerProcess::start_with(&[&["--config", path], &store[..]].concat(), &[SECRET])
}

fn rules_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), RULES).unwrap();
    file
}

fn by_name(key: &str) -> String {
    json!({ "limit": "named", "key": key }).to_string()
}

fn by_rules(attributes: &Value) -> String {
    json!({ "domain": "api", "attributes": attributes }).to_string()
}

/// Repeats a check until a lease decides it. Returns that decision, and the number of checks.
fn until_leased(server: &ServerProcess, body: &str) -> (Value, u64) {
    let mut checks = 0;
    let decision = eventually("a leased decision", || {
        checks += 1;
        let decision = server.check(body);
        assert_eq!(decision["allowed"], true, "{decision}");
        (decision["leased"] == true).then_some(decision)
    });
    (decision, checks)
}

fn peek(server: &ServerProcess, name: &str, key: &str) -> Value {
    body_of(server.get(&format!("/v1/limits/{name}/keys/{key}")).send().unwrap())
}

#[test]
fn check_of_a_leased_limit_or_rule_says_so() {
    let redis = launch();
    let server = start(&redis).server;
    let (by_name, checks) = until_leased(&server, &by_name("a"));
    assert_valid("Decision", &by_name);
    assert!(checks > 8, "a key is leased only if it is checked often: {checks}");
    assert_eq!((&by_name["limit"], &by_name["remaining"]), (&json!(LIMIT), &json!(LIMIT - checks)));

    let (ruling, _) = until_leased(&server, &by_rules(&json!({ "client": "a" })));
    assert_valid("Ruling", &ruling);
    assert_eq!(ruling["rules"][0]["leased"], true, "{ruling}");
    // One of two rules is leased.
    let (mixed, _) = until_leased(&server, &by_rules(&json!({ "client": "a", "both": "1" })));
    let leased = [0, 1].map(|at| mixed["rules"][at]["leased"].clone());
    assert_eq!(leased, [json!(true), Value::Null], "{mixed}");

    let strict = server.check(r#"{"limit":"few","key":"a"}"#);
    assert_eq!(strict["leased"], Value::Null, "{strict}");
}

#[test]
fn batch_of_leased_limits_says_so() {
    let redis = launch();
    let server = start(&redis).server;
    let _ = until_leased(&server, &by_name("a"));
    let checks: Vec<_> = [by_name("a"), by_rules(&json!({ "client": "b" })), by_name("a")].into();
    let body = format!("[{}]", checks.join(","));
    eventually("leased decisions in a batch", || {
        let answers = body_of(server.post("/v1/check/batch", body.as_str()).send().unwrap());
        let is_leased = |at: usize| answers[at]["leased"] == true && answers[at]["allowed"] == true;
        (0..3).all(is_leased).then_some(())
    });
}

#[test]
fn envoy_and_forward_authentication_use_leases() {
    let redis = launch();
    let limits = start(&redis);
    eventually("a leased answer to Envoy", || {
        let answer = limits.ask_all(vec![descriptor(&[("client", "a")])]);
        let metadata = metadata(&answer);
        assert_eq!(metadata["rules"][0]["allowed"], true, "{metadata}");
        (metadata["leased"] == true).then_some(())
    });
    let count = |domain: &str, leased: &str| -> f64 {
        let page = scrape(&limits.server);
        let want = [("domain", domain), ("outcome", "allowed"), ("leased", leased)];
        let counted = page
            .of("tollgate_decisions_total")
            .filter(|sample| want.iter().all(|(label, value)| sample.labels[*label] == *value));
        counted.map(|sample| sample.value).sum()
    };
    assert!(count("api", "true") >= 1.0);
    let mut checks = 0.0;
    eventually("a leased answer to a proxy", || {
        let request = limits.server.get("/v1/authorize/web").header("x-forwarded-method", "GET");
        let request =
            request.header("x-forwarded-uri", "/a").header("x-forwarded-for", "192.0.2.1");
        assert_eq!(request.send().unwrap().status(), 200);
        checks += 1.0;
        (count("web", "true") >= 1.0).then_some(())
    });
    assert_eq!(count("web", "true") + count("web", "false"), checks);
}

#[test]
fn lease_of_a_limit_or_rule_is_described() {
    let redis = launch();
    let server = start(&redis).server;
    let limit = |name: &str| body_of(server.get(&format!("/v1/limits/{name}")).send().unwrap());
    let named = limit("named");
    assert_valid("LimitAnswer", &named);
    let formula = "min(max_unused, remaining / (2 * holders))";
    let lease = json!({ "for_us": 3_600_000_000_u64, "pace_us": 10_000, "max_unused": 25_000, "formula": formula });
    assert_eq!(named["lease"], lease, "{named}");
    assert_eq!(named["bound"]["max"], 200_000, "the bound is that of a strict limit");
    assert_eq!(limit("many")["lease"], Value::Null, "only rules lease it");
    let rule = limit("web%2Fproxied");
    assert_valid("LimitAnswer", &rule);
    let lease = json!({ "for_us": 3_600_000_000_u64, "pace_us": 20_000, "max_unused": 5_000, "formula": formula });
    assert_eq!(rule["limits"][0]["lease"], lease, "{rule}");
    assert_eq!(limit("api%2Fstrict")["limits"][0]["lease"], Value::Null);

    let in_memory = RlsServer::start(RULES).server;
    for name in ["named", "web%2Fproxied"] {
        let text = in_memory.get(&format!("/v1/limits/{name}")).send().unwrap().text().unwrap();
        assert!(!text.contains("lease\""), "nothing is leased in memory: {text}");
    }
}

#[test]
fn counters_of_leases_are_in_metrics_and_operations() {
    let redis = launch();
    let server = start(&redis).server;
    let operations = || body_of(server.get("/v1/operations").send().unwrap());
    assert_eq!(operations()["leases"]["held"], 0);
    let (_, checks) = until_leased(&server, &by_name("a"));
    let page = scrape(&server);
    let value = |name: &str, labels: &[(&str, &str)]| page.value(name, labels);
    assert_eq!(value("tollgate_leases", &[]), 1.0);
    let hits = value("tollgate_lease_decisions_total", &[("outcome", "hit")]);
    assert_eq!(hits, 1.0, "{page:?}");
    assert!(value("tollgate_lease_units_total", &[("kind", "leased")]) >= 1.0);
    assert_eq!(value("tollgate_lease_units_total", &[("kind", "used")]), 1.0);
    assert_eq!(value("tollgate_lease_store_failures_total", &[]), 0.0);
    let allowed = |leased| {
        let labels = [("limit", "named"), ("outcome", "allowed"), ("leased", leased)];
        value("tollgate_limit_decisions_total", &labels)
    };
    assert_eq!((allowed("true"), allowed("true") + allowed("false")), (1.0, checks as f64));
    // Decisions of leases do not wait for the store.
    let waited = value("tollgate_store_call_duration_seconds_count", &[]);
    assert_eq!(waited, checks as f64 - 1.0);

    let operations = operations();
    assert_valid("Operations", &operations);
    let leases = &operations["leases"];
    assert_eq!(
        (&leases["held"], &leases["hits"], &leases["used_units"]),
        (&json!(1), &json!(1), &json!(1))
    );
    let limits = |list: &str, name: &str| {
        let of = operations[list].as_array().unwrap();
        of.iter().find(|own| own["name"] == name).unwrap()["limits"][0]["leased"].clone()
    };
    assert_eq!(limits("limits", "named"), true);
    assert_eq!(
        [limits("rules", "api/leased"), limits("rules", "api/strict")],
        [json!(true), Value::Null]
    );

    let in_memory = RlsServer::start(RULES).server;
    assert_eq!(body_of(in_memory.get("/v1/operations").send().unwrap())["leases"], Value::Null);
    assert_eq!(scrape(&in_memory).of("tollgate_leases").count(), 0);
}

fn refund(server: &ServerProcess, receipt: &str) -> (u16, Value) {
    let response: Response =
        server.post("/v1/refund", json!({ "receipt": receipt }).to_string()).send().unwrap();
    (response.status().as_u16(), body_of(response))
}

#[test]
fn leased_receipt_is_refunded_at_its_server_until_the_charge_is_settled() {
    let (redis, file) = (launch(), rules_file());
    let (server, other) = (start_with_secret(&redis, &file), start_with_secret(&redis, &file));
    let receipt = || {
        let (decision, _) = until_leased(&server, &by_name("a"));
        decision["receipt"].as_str().unwrap().to_owned()
    };
    // The background may settle a charge just before its refund.
    let refunded = eventually("a refund", || {
        let receipt = receipt();
        let (status, answer) = refund(&server, &receipt);
        assert_eq!(status, 200, "{answer}");
        assert_valid("Refunded", &answer);
        (answer == json!({ "refunded": 1 })).then_some(receipt)
    });
    assert_eq!(refund(&server, &refunded).0, 409, "a receipt works once");

    let says_why = |(status, answer): (u16, Value)| {
        assert_eq!((status, &answer["refunded"]), (200, &json!(0)), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("leased units"), "{answer}");
        assert_valid("Refunded", &answer);
    };
    says_why(refund(&other, &receipt()));

    // Until the server has told the store of the charge.
    let late = receipt();
    let calls =
        || scrape(&server).value("tollgate_lease_store_calls_total", &[("kind", "background")]);
    let before = calls();
    eventually("a renewal", || {
        server.check(&by_name("a"));
        (calls() > before).then_some(())
    });
    says_why(refund(&server, &late));
}

#[test]
fn stopping_server_gives_its_leases_back() {
    let redis = launch();
    let (server, other) = (start(&redis).server, start(&redis).server);
    let mut checks = until_leased(&server, &by_name("a")).1;
    for _ in 0..20 {
        checks += u64::from(server.check(&by_name("a"))["allowed"] == true);
    }
    let held = peek(&other, "named", "a")["remaining"].as_u64().unwrap();
    assert!(held < LIMIT - checks, "the server holds units: {held}");
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
    assert_eq!(peek(&other, "named", "a")["remaining"], LIMIT - checks, "{log}");
}

#[test]
fn server_stops_in_time_if_the_store_does_not_take_leases_back() {
    let redis = launch();
    let server = start(&redis).server;
    let _ = until_leased(&server, &by_name("a"));
    redis.freeze();
    let began = std::time::Instant::now();
    server.signal(Signal::TERM);
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
    assert!(log.contains("leases"), "{log}");
    // A second for the leases, and one for the tasks at the end; the deadline of the store is 30 s.
    assert!(began.elapsed() < Duration::from_secs(20), "{log}");
}
