//! `POST /v1/check/batch`.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_launcher::{Flavour, Launch, Proxy};

use crate::check::{problem, rules, slow};
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

fn batch(server: &ServerProcess, body: &Value) -> Vec<Value> {
    let response = server.post("/v1/check/batch", body.to_string()).send().unwrap();
    assert_eq!(response.status(), 200);
    let answers = body_of(response);
    assert_valid("BatchAnswer", &answers);
    answers.as_array().unwrap().clone()
}

#[test]
fn checks_of_a_batch_are_decided_separately_and_in_order() {
    let server = slow();
    let ask = |cost: u64| json!({"limit": "login", "key": "a", "cost": cost});
    let body =
        json!([ask(3), ask(3), ask(2), {"domain": "api", "attributes": {"ip": "::1"}}, ask(1)]);
    let answers = batch(&server, &body);
    let allowed: Vec<_> = answers.iter().map(|answer| answer["allowed"].as_bool()).collect();
    assert_eq!(allowed, [Some(true), Some(false), Some(true), Some(true), Some(false)]);
    assert_eq!(answers[3]["rules"][0]["rule"], "per-client");
    assert_eq!((&answers[3]["limit"], &answers[3]["remaining"]), (&json!(60), &json!(59)));
    assert_eq!(answers[3]["requests_remaining"], 59);
}

#[test]
fn bad_check_of_a_batch_fails_alone() {
    let server = slow();
    let good = json!({"limit": "free", "key": "a"});
    let body = json!([
        good, {"limit": "nope", "key": "a"}, good, {"limit": "free", "key": "a", "costs": 1},
        {"limit": "free", "key": "a", "cost": 0}, 7, null, [], {"domain": "nope"}, good
    ]);
    let answers = batch(&server, &body);
    let statuses: Vec<_> = answers.iter().map(|answer| answer["status"].as_u64()).collect();
    let (bad, gone) = (Some(400), Some(404));
    assert_eq!(statuses, [None, gone, None, bad, bad, bad, bad, bad, gone, None]);
    assert_eq!(answers[9]["remaining"], 57, "a bad check charges nothing");
    assert!(answers[3]["detail"].as_str().unwrap().contains("unknown field `costs`"));
}

#[test]
fn batch_has_1_to_1000_requests() {
    let server = slow();
    let many = |count: usize| json!(vec![json!({"limit": "partner", "key": "a"}); count]);
    let answers = batch(&server, &many(1_000));
    assert_eq!(answers.len(), 1_000);
    assert_eq!(answers.iter().filter(|answer| answer["allowed"] == true).count(), 1_000);
    for (body, want) in [
        (many(1_001).to_string(), "too many requests; send at most 1000"),
        ("[]".to_owned(), "expected an array of 1 to 1000 requests"),
        ("{}".to_owned(), "expected an array of 1 to 1000 requests"),
        ("7".to_owned(), "expected an array of 1 to 1000 requests"),
        ("[1,".to_owned(), "; send JSON"),
        ("".to_owned(), "; send JSON"),
    ] {
        let (status, detail) = problem(server.post("/v1/check/batch", body).send().unwrap());
        assert_eq!(status, 400);
        assert!(detail.contains(want), "{detail}");
    }
    let left = server.check(r#"{"limit":"partner","key":"a"}"#)["remaining"].as_u64();
    assert_eq!(left, Some(8_999), "the refused batches charged nothing");
}

#[test]
fn body_of_a_batch_can_be_longer_than_of_a_check() {
    let server = slow();
    let long = |bytes: usize| json!([{"limit": "free", "key": "k".repeat(bytes)}]);
    assert_eq!(batch(&server, &long(1_000_000))[0]["allowed"], true);
    let response = server.post("/v1/check/batch", long(1 << 20).to_string()).send().unwrap();
    let (status, detail) = problem(response);
    assert_eq!((status, &*detail), (413, "the body is too long; send at most 1048576 bytes"));
}

#[test]
fn batch_sends_many_checks_to_the_store_at_once() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let file = rules(
        "defaults: { on_store_failure: closed, deadline: 20s }\n\
         limits: { few: sliding-window-log limit=5 window=1h }\nrules: []",
    );
    let config = file.path().to_str().unwrap();
    let server = ServerProcess::start(&["--config", config, "--store", &proxy.url()]);
    server.check(r#"{"limit":"few","key":"warm"}"#);
    let before = proxy.scripts_passed();
    let keys = (0..200).map(|number| json!({"limit": "few", "key": format!("k{}", number % 2)}));
    let answers = batch(&server, &keys.collect());
    let allowed: Vec<_> = answers.iter().map(|answer| answer["allowed"].as_bool()).collect();
    let want: Vec<_> = (0..200).map(|number| Some(number < 10)).collect();
    assert_eq!(allowed, want, "answers are in the order of the checks");
    let scripts = proxy.scripts_passed() - before;
    assert!(scripts < 50, "{scripts} round trips for 200 checks");

    let ask = || server.check(r#"{"limit":"few","key":"k0"}"#);
    let mut refusals = (0..100).map(|_| ask());
    assert!(
        refusals.any(|refused| refused["cached"] == true),
        "a refusal from the deny cache is marked `cached`"
    );
}

#[test]
fn check_that_fails_in_the_store_has_its_own_problem() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let file = rules(
        "limits: { open: fixed-window limit=5 window=1h, closed: fixed-window limit=5 window=1h }\n\
         rules:\n  - { name: a, domain: a, key: [], limit: open, on_store_failure: open }\n\
         \x20 - { name: b, domain: b, key: [], limit: closed, on_store_failure: closed }",
    );
    let server =
        ServerProcess::start(&["--config", file.path().to_str().unwrap(), "--store", &redis.url()]);
    redis.kill();
    let body = json!([{"domain": "a"}, {"domain": "b"}, {"domain": "a"}]);
    let answers = batch(&server, &body);
    assert_eq!((&answers[0]["allowed"], &answers[0]["degraded"]), (&json!(true), &json!(true)));
    assert_eq!(answers[1]["status"], 503);
    assert_eq!(answers[2]["allowed"], true);

    let by_name = server.check(r#"{"limit":"open","key":""}"#);
    assert_eq!((&by_name["allowed"], &by_name["degraded"]), (&json!(true), &json!(true)));
    let response = server.post("/v1/check", r#"{"domain":"b"}"#).send().unwrap();
    let retry_after = response.headers()["retry-after"].to_str().unwrap().to_owned();
    assert!(retry_after.parse::<u64>().unwrap() >= 1, "{retry_after}");
    let (status, detail) = problem(response);
    assert_eq!(status, 503);
    assert!(!detail.contains("127.0.0.1"), "{detail}");
}

/// If all checks were sent to the store at once, the last ones would miss the deadline only because they queue behind the
/// first ones, and a limit that fails open would then allow them.
#[test]
fn long_batch_on_a_slow_store_is_decided_completely() {
    let redis = Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"));
    let proxy = Proxy::start(redis.addr()).unwrap();
    proxy.delay(|| Duration::from_millis(50));
    let file = rules("limits: { few: sliding-window-log limit=5 window=366d }\nrules: []");
    let (path, store) = (file.path().to_str().unwrap(), proxy.url());
    let flags = ["--config", path, "--store", &store, "--store-deadline", "400ms"];
    let server = ServerProcess::start(&flags);
    // Each check has its own key, because a refusal from the deny cache needs no store.
    let key = |number: usize| json!({"limit": "few", "key": format!("user:{number}"), "cost": 5});
    let body: Vec<_> = (0..1_000).map(key).collect();
    let answers = batch(&server, &body.into());
    assert_eq!(answers.len(), 1_000);
    assert!(answers.iter().all(|answer| answer["remaining"] == 0 && answer["degraded"].is_null()));
}
