//! The responses to Envoy without the store.

use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use prost::Message;
use serde_json::json;
use tollgate_launcher::{Flavour, Launch, Proxy, Server as Redis};

use super::raw::{RawClient, call, framed, whole};
use super::{RlsServer, codes, costing, descriptor, headers, metadata, remaining, request};
use crate::eventually::eventually;
use crate::grpc::run;
use crate::metrics::scrape;

const RULES: &str = "
limits:
  ten: fixed-window limit=10 window=365d
  two: fixed-window limit=2 window=365d
rules:
  - { name: open, domain: api, key: [open], limit: ten }
  - { name: closed, domain: api, key: [closed], limit: ten, on_store_failure: closed }
  - { name: local, domain: api, key: [local], limit: two, on_store_failure: { local: { processes: 2 } } }
";

/// A long deadline, because the machine can be busy.
const LONG_DEADLINE: [&str; 2] = ["--store-deadline", "10s"];

fn redis() -> Redis {
    Launch::new(Flavour::Redis).start().unwrap()
}

#[test]
fn without_the_store_each_rules_policy_decides() {
    let mut redis = redis();
    let limits = RlsServer::start_with(RULES, &["--store", &redis.url()]);
    redis.kill();
    limits.server.wait_for_log(|log| log.contains("the store fails"));
    let ask = |name| limits.ask_all(vec![descriptor(&[(name, "a")])]);

    let open = ask("open");
    assert_eq!((open.overall_code(), codes(&open)), (Code::Ok, vec![Code::Ok]));
    assert_eq!((headers(&open).len(), &open.statuses[0].current_limit), (0, &None));
    assert_eq!(metadata(&open)["degraded"], true);

    assert_eq!(ask("local").overall_code(), Code::Ok);
    let local = ask("local");
    assert_eq!((local.overall_code(), codes(&local)), (Code::OverLimit, vec![Code::OverLimit]));
    assert!(headers(&local).contains_key("retry-after"));

    let closed = limits.ask_all(vec![descriptor(&[("closed", "a")]), descriptor(&[("open", "a")])]);
    assert_eq!(
        (closed.overall_code(), codes(&closed)),
        (Code::OverLimit, vec![Code::OverLimit; 2])
    );
    let fields = headers(&closed);
    assert_eq!(fields["x-tollgate-reason"], "store-failed");
    assert_eq!(fields["content-type"], "application/problem+json");
    assert!(fields["retry-after"].parse::<u64>().unwrap() >= 1, "{fields:?}");
    assert_eq!(metadata(&closed), json!({"reason": "store-failed"}));
    let problem: serde_json::Value = serde_json::from_slice(&closed.raw_body).unwrap();
    assert_eq!(problem["detail"], "the store failed, and this request is not decided without it");
    assert_eq!(problem["status"], 429);

    let counted = [("endpoint", "rls"), ("status", "503")];
    assert_eq!(scrape(&limits.server).value("tollgate_requests_total", &counted), 1.0);
    limits.server.wait_for_log(|log| log.contains("a request failed"));
}

/// Sends a request with a deadline, but waits for the answer without one.
fn ask_within(limits: &RlsServer, timeout: &str, name: &str) -> RateLimitResponse {
    let message = request(vec![descriptor(&[(name, "a")])]).encode_to_vec();
    let answer = run(async {
        let mut raw = RawClient::connect(&limits.server).await;
        raw.ask(call(&[("grpc-timeout", timeout)], whole(framed(&message)))).await
    });
    assert_eq!(answer.grpc, Some(0), "{answer:?}");
    RateLimitResponse::decode(&answer.body[5..]).unwrap()
}

#[test]
fn server_gives_up_on_a_stalled_store_before_the_caller_does() {
    let redis = redis();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let limits =
        RlsServer::start_with(RULES, &[&LONG_DEADLINE[..], &["--store", &proxy.url()]].concat());
    assert_eq!(remaining(&limits.ask_all(vec![descriptor(&[("open", "a")])])), [9]);
    proxy.delay(|| Duration::from_secs(3_600));
    let began = Instant::now();
    let open = ask_within(&limits, "500m", "open");
    assert_eq!((open.overall_code(), &metadata(&open)["degraded"]), (Code::Ok, &json!(true)));
    let closed = ask_within(&limits, "500000u", "closed");
    assert_eq!(closed.overall_code(), Code::OverLimit);
    assert_eq!(headers(&closed)["x-tollgate-reason"], "store-failed");
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}

#[test]
fn callers_short_deadline_does_not_skip_the_store() {
    let redis = redis();
    let limits =
        RlsServer::start_with(RULES, &[&LONG_DEADLINE[..], &["--store", &redis.url()]].concat());
    let message = request(vec![descriptor(&[("open", "a")])]).encode_to_vec();
    let decided = || {
        let labels = [("rule", "open"), ("outcome", "denied"), ("degraded", "false")];
        scrape(&limits.server).value("tollgate_decisions_total", &labels)
    };
    // On a busy machine some calls miss the deadline and are perhaps not answered. They are still charged.
    eventually("the store decides", || {
        run(async {
            let mut raw = RawClient::connect(&limits.server).await;
            for _ in 0..20 {
                raw.ask(call(&[("grpc-timeout", "3m")], whole(framed(&message)))).await;
            }
        });
        (decided() > 0.0).then_some(())
    });
}

#[test]
fn peeks_and_charges_agree_on_the_store_and_in_memory() {
    let redis = redis();
    let limits =
        RlsServer::start_with(RULES, &[&LONG_DEADLINE[..], &["--store", &redis.url()]].concat());
    let both = || vec![costing(0, &[("local", "a")]), costing(3, &[("open", "a")])];
    assert_eq!(remaining(&limits.ask_all(both())), [2, 7]);
    limits.ask_all(vec![costing(2, &[("local", "a")])]);
    let refused = limits.ask_all(both());
    assert_eq!(codes(&refused), [Code::OverLimit, Code::Ok]);
    assert_eq!(remaining(&limits.ask_all(vec![costing(0, &[("open", "a")])])), [7]);
}

#[test]
fn override_on_the_store_changes_the_numbers_of_a_limit() {
    let redis = redis();
    let limits =
        RlsServer::start_with(RULES, &[&LONG_DEADLINE[..], &["--store", &redis.url()]].concat());
    let day = envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Day;
    let answer = limits.ask_all(vec![super::limited(40, day, &[("open", "a")])]);
    assert_eq!(remaining(&answer), [39]);
    assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 40);
}
