//! `POST /v1/check`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::blocking::Response;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tollgate_launcher::{Flavour, Launch, Proxy};

use crate::eventually::eventually;
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

/// Returns the status and the detail of a problem.
pub(crate) fn problem(response: Response) -> (u16, String) {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status().as_u16();
    let problem = body_of(response);
    assert_eq!(problem["status"], status);
    assert_valid("Problem", &problem);
    (status, problem["detail"].as_str().unwrap().to_owned())
}

fn check(server: &ServerProcess, body: Value) -> Value {
    let answer = server.check(&body.to_string());
    assert_valid("CheckAnswer", &answer);
    answer
}

#[test]
fn server_without_arguments_decides() {
    let server = ServerProcess::start(&[]);
    let decision = server.check(r#"{"limit":"free","key":"user:42","cost":5}"#);
    assert_eq!(decision["allowed"], true);
    assert_eq!(decision["remaining"], 55);
}

#[test]
fn decision_has_every_field() {
    let server = slow();
    let response = server.post("/v1/check", r#"{"limit":"login","key":"a","cost":2}"#);
    let response = response.send().unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let text = response.text().unwrap();
    let want = r#"{"allowed":true,"limit":5,"remaining":3,"retry_after_us":null,"reset_after_us":900000000,"delay_us":0"#;
    assert!(text.starts_with(want), "{text}");

    let refused = check(&server, json!({"limit": "login", "key": "a", "cost": 4}));
    assert_eq!(refused["allowed"], false);
    assert_eq!(refused["remaining"], 3);
    assert!(refused["retry_after_us"].as_u64().is_some_and(|wait| wait <= 900_000_000));
    let never = check(&server, json!({"limit": "login", "key": "a", "cost": 6}));
    assert_eq!(never["allowed"], false);
    assert_eq!(never["retry_after_us"], Value::Null);
    assert_eq!(check(&server, json!({"limit": "login", "key": "b"}))["remaining"], 4);
}

#[test]
fn caller_sets_its_maximum_wait() {
    let file = rules(
        "limits: { mail: leaky-bucket capacity=10 leak=1/h mode=shaping }\n\
         rules: [{ name: r, domain: d, key: [], limit: mail }]",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let mail = |max_wait_us: Value| {
        let mut body = json!({"limit": "mail", "key": ""});
        if !max_wait_us.is_null() {
            body["max_wait_us"] = max_wait_us;
        }
        check(&server, body)
    };
    assert_eq!(mail(json!(0))["allowed"], true);
    assert_eq!(mail(json!(0))["allowed"], false);
    let waits = mail(Value::Null);
    assert_eq!(waits["allowed"], true);
    assert!(waits["delay_us"].as_u64().unwrap() > 3_500_000_000);

    let without_wait = json!({"domain": "d", "max_wait_us": 0});
    assert_eq!(check(&server, without_wait.clone())["allowed"], true);
    assert_eq!(check(&server, without_wait)["allowed"], false);
    let waits = check(&server, json!({"domain": "d"}));
    assert!(waits["delay_us"].as_u64().unwrap() > 3_500_000_000);
    assert_eq!(waits["rules"][0]["delay_us"], waits["delay_us"]);
}

#[test]
fn every_rule_that_applies_is_charged_and_listed() {
    let server = slow();
    let login = json!({"domain": "api", "attributes": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}});
    let answer = check(&server, login.clone());
    assert_eq!(answer["allowed"], true);
    assert_eq!((&answer["limit"], &answer["remaining"]), (&json!(5), &json!(4)));
    assert_eq!((&answer["rule"], &answer["generation"]), (&Value::Null, &json!(1)));
    let names: Vec<_> = answer["rules"].as_array().unwrap().iter().map(|it| &it["rule"]).collect();
    assert_eq!(names, ["login-attempts", "per-client", "whole-service"]);
    let first = &answer["rules"][0];
    let want = json!({
        "rule": "login-attempts", "limit_name": "login", "cost": 1, "shadow": false, "allowed": true,
        "limit": 5, "remaining": 4, "retry_after_us": null, "reset_after_us": 900_000_000, "delay_us": 0
    });
    assert_eq!(first, &want);
    assert_eq!(answer["rules"][2]["shadow"], true);

    for _ in 0..4 {
        check(&server, login.clone());
    }
    let refused = check(&server, login);
    assert_eq!((&refused["allowed"], &refused["rule"]), (&json!(false), &json!("login-attempts")));
    assert_eq!((&refused["limit"], &refused["remaining"]), (&json!(5), &json!(0)));
    assert!(refused["retry_after_us"].as_u64().unwrap() > 0);
    assert_eq!(refused["rules"][1]["remaining"], 55, "a refusal costs nothing");
}

#[test]
fn rule_that_blocks_has_no_limit_and_waiting_does_not_help() {
    let server = slow();
    let blocked = json!({"domain": "api", "attributes": {"path": "/", "ip": "203.0.113.66"}});
    let answer = check(&server, blocked);
    assert_eq!((&answer["allowed"], &answer["rule"]), (&json!(false), &json!("per-client")));
    assert_eq!((&answer["blocked"], &answer["requests_remaining"]), (&json!(true), &json!(0)));
    for nothing in ["limit", "remaining", "retry_after_us"] {
        assert_eq!(answer[nothing], Value::Null, "{nothing}");
    }
    let blocks = &answer["rules"][0];
    for nothing in ["limit_name", "limit", "remaining", "retry_after_us", "reset_after_us"] {
        assert_eq!(blocks[nothing], Value::Null, "{nothing}");
    }
    assert_eq!(answer["rules"][1]["limit_name"], "everyone");
    assert_eq!(answer["rules"][1]["remaining"], Value::Null, "the store was not queried");
}

#[test]
fn domain_can_be_omitted_when_there_is_only_one() {
    let text = "limits: { two: fixed-window limit=2 window=366d }\n\
                rules: [{ name: r, domain: d, key: [ip], limit: two }]";
    let file = rules(text);
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let body = json!({"attributes": {"ip": "203.0.113.9"}});
    assert_eq!(check(&server, body.clone())["rules"][0]["rule"], "r");
    let named = json!({"domain": "d", "attributes": {"ip": "203.0.113.9"}});
    assert_eq!(check(&server, named)["remaining"], 0);
    let batch = server.post("/v1/check/batch", json!([body]).to_string()).send().unwrap();
    assert_eq!(body_of(batch)[0]["allowed"], false);

    let several = text.replace("}]", "}, { name: s, domain: e, key: [ip], limit: two }]");
    for text in [&*several, "rules: []"] {
        let file = rules(text);
        let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
        let (status, detail) = problem(server.post("/v1/check", body.to_string()).send().unwrap());
        assert_eq!(status, 400, "{text}");
        for remedy in [r#"name one: {"domain":"api", …}"#, "if there are no rules, add rules"] {
            assert!(detail.contains(remedy), "{detail}");
        }
        let batch = server.post("/v1/check/batch", json!([body]).to_string()).send().unwrap();
        let problems = body_of(batch);
        assert_eq!((&problems[0]["status"], &problems[0]["detail"]), (&json!(400), &json!(detail)));
    }
}

#[test]
fn rules_cost_applies_unless_the_caller_sets_one() {
    let server = slow();
    let mut report = json!({
        "domain": "api", "attributes": {"method": "POST", "path": "/reports", "ip": "203.0.113.9"}
    });
    assert_eq!(check(&server, report.clone())["rules"][0]["cost"], 10);
    report["cost"] = json!(3);
    let answer = check(&server, report);
    assert_eq!(answer["rules"][0]["cost"], 3);
    // The first request of cost 10 left 50 of 60, and this one leaves 47: 15 more requests of cost 3 are allowed.
    assert_eq!((&answer["limit"], &answer["remaining"]), (&json!(60), &json!(47)));
    assert_eq!(answer["requests_remaining"], 15);
    assert_eq!(answer["rules"][0]["remaining"], 47);
}

#[test]
fn requests_are_allowed_when_no_rule_applies() {
    let file = rules(
        "limits: { a: fixed-window limit=1 window=1h }\nrules: [{ name: r, domain: d, key: [user], limit: a }]",
    );
    let own = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let answer = check(&own, json!({"domain": "d"}));
    assert_eq!((&answer["allowed"], &answer["rules"]), (&json!(true), &json!([])));
    assert_eq!((&answer["limit"], &answer["remaining"]), (&Value::Null, &Value::Null));
}

/// Returns the remaining units of the quota that a request charges. The number shows which quota it is.
fn remaining_after(server: &ServerProcess, body: Value) -> u64 {
    check(server, body)["rules"][0]["remaining"].as_u64().unwrap()
}

#[test]
fn known_api_key_has_its_own_quota() {
    let server = slow();
    let ask = |body: Value| remaining_after(&server, body);
    let known = json!({"domain": "api", "attributes": {"ip": "203.0.113.9", "api_key": "k_123"}});
    assert_eq!(ask(known.clone()), 599);
    assert_eq!(ask(known), 598);
    for (invented, want) in [("x1", 59), ("x2", 58), ("x3", 57)] {
        let attributes = json!({"ip": "203.0.113.9", "api_key": invented});
        assert_eq!(ask(json!({"domain": "api", "attributes": attributes})), want, "{invented}");
    }
    let unverified =
        json!({"domain": "api", "attributes": {"ip": "203.0.113.9"}, "said": {"api_key": "x4"}});
    assert_eq!(ask(unverified), 56, "an identity in `said` is unverified too");
}

/// As in the middleware. If the rule did not apply, such requests would not be limited.
#[test]
fn requests_without_an_address_share_one_quota() {
    let file = rules(
        "limits: { a: fixed-window limit=10 window=366d }\nrules: [{ name: r, domain: d, key: [ip], limit: a }]",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let none = json!({"domain": "d"});
    let unverified = json!({"domain": "d", "said": {"ip": "203.0.113.9"}});
    let verified = json!({"domain": "d", "verified": {"api_key": "k_1"}});
    for (body, want) in [(none, 9), (unverified, 8), (verified, 7)] {
        assert_eq!(remaining_after(&server, body), want);
    }
}

#[test]
fn client_headers_and_unknown_methods_do_not_make_keys() {
    let file = rules(
        "limits: { a: fixed-window limit=10 window=366d }\n\
         rules:\n\
         - { name: r, domain: d, key: [{ first_of: [header.x-user, method, ip] }], limit: a }",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let ask = |attributes: Value| json!({"domain": "d", "attributes": attributes});
    for (user, method, want) in [("a", "STEAL", 9), ("b", "STEAL2", 8)] {
        assert_eq!(
            remaining_after(&server, ask(json!({"header.x-user": user, "method": method}))),
            want
        );
    }
    let common = ask(json!({"header.x-user": "c", "method": "GET"}));
    assert_eq!(
        remaining_after(&server, common),
        9,
        "a common method makes a key, because there are few common methods"
    );
    let vouched = json!({"domain": "d", "verified": {"header.x-user": "a"}});
    assert_eq!(remaining_after(&server, vouched), 9);
}

#[test]
fn invented_keys_without_an_address_are_limited() {
    let server = slow();
    let ask = |attributes: Value| {
        remaining_after(&server, json!({"domain": "api", "attributes": attributes}))
    };
    assert_eq!(ask(json!({"api_key": "x1"})), 59);
    assert_eq!(ask(json!({"api_key": "x2"})), 58);
    assert_eq!(ask(json!({"jwt.sub": "x3"})), 57);
    let unverified = json!({"domain": "api", "said": {"api_key": "x4"}});
    assert_eq!(remaining_after(&server, unverified), 56);
}

#[test]
fn verified_attributes_make_keys() {
    let server = slow();
    let mut body = json!({
        "domain": "api", "attributes": {"ip": "203.0.113.9"},
        "verified": {"api_key": "partner", "tier": "enterprise"}
    });
    assert_eq!(remaining_after(&server, body.clone()), 5999);
    body["attributes"]["ip"] = json!("203.0.113.10");
    assert_eq!(
        remaining_after(&server, body.clone()),
        5998,
        "the API key has the quota, not the address"
    );
    // An unverified tier does not count.
    body["said"] = body["verified"].take();
    body.as_object_mut().unwrap().remove("verified");
    assert_eq!(remaining_after(&server, body), 59);
}

#[test]
fn addresses_are_grouped_as_in_the_middleware() {
    let server = slow();
    let ask =
        |ip: &str| remaining_after(&server, json!({"domain": "api", "attributes": {"ip": ip}}));
    assert_eq!(ask("203.0.113.9"), 59);
    assert_eq!(ask("::ffff:203.0.113.9"), 58);
    assert_eq!(ask("2001:db8:12:3401::1"), 59);
    assert_eq!(ask("2001:db8:12:34ff::2"), 58, "both addresses are in one /56");
    assert_eq!(ask("2001:db8:12:3501::1"), 59);
    let verified = json!({"domain": "api", "verified": {"ip": "2001:db8:12:34ff::3"}});
    assert_eq!(remaining_after(&server, verified), 57);

    let file = rules(
        "identity: { ipv6_prefix: 64 }\nlimits: { a: fixed-window limit=9 window=1h }\n\
         rules: [{ name: r, domain: api, key: [ip], limit: a }]",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let ask =
        |ip: &str| remaining_after(&server, json!({"domain": "api", "attributes": {"ip": ip}}));
    assert_eq!(ask("2001:db8:12:3401::1"), 8);
    assert_eq!(ask("2001:db8:12:3402::1"), 8);
    assert_eq!(ask("2001:db8:12:3402::2"), 7);
}

#[test]
fn unverified_attributes_match_rules_and_do_not_make_keys() {
    let file = rules(
        "limits: { a: fixed-window limit=9 window=1h }\n\
         rules:\n  - { name: r, domain: d, when: { header.x-a: b }, key: [ip], limit: a }\n\
         \x20 - { name: s, domain: d, key: [header.x-a], limit: a }",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let body = json!({"domain": "d", "attributes": {"ip": "::1"}, "said": {"header.x-a": "b"}});
    let answer = check(&server, body);
    let names: Vec<_> = answer["rules"].as_array().unwrap().iter().map(|it| &it["rule"]).collect();
    assert_eq!(names, ["r"]);
}

#[test]
fn unknown_limits_and_domains_are_404() {
    let server = slow();
    for (body, want) in [
        (
            r#"{"limit":"nope","key":"a"}"#,
            "there is no limit `nope`; GET /v1/limits lists the limits",
        ),
        (
            r#"{"domain":"nope"}"#,
            "the domain `nope` has no rules; add rules for it to the rules file of the server",
        ),
    ] {
        let response = server.post("/v1/check", body).send().unwrap();
        assert_eq!(problem(response), (404, want.to_owned()));
    }
}

#[test]
fn bad_checks_are_refused_with_place_and_remedy() {
    let server = slow();
    let many: serde_json::Map<_, _> = (0..33).map(|at| (at.to_string(), json!("x"))).collect();
    let many = json!({"domain": "api", "attributes": many.clone(), "said": many}).to_string();
    for (body, want) in [
        (r#"{"limit":"free"}"#, "`key` is missing; send the key to limit, such as \"user:42\""),
        (r#"{"key":"a"}"#, "`limit` is missing; GET /v1/limits lists the limits"),
        (r#"{}"#, "send {\"limit\":\"free\",\"key\":\"user:42\"} or"),
        (r#"{"cost":1}"#, "send {\"limit\":\"free\",\"key\":\"user:42\"} or"),
        (
            r#"{"limit":"free","key":"a","domain":"api"}"#,
            "remove `domain`, or remove `limit` and `key`",
        ),
        (r#"{"key":"a","domain":"api"}"#, "remove `domain`, or remove `limit` and `key`"),
        (
            r#"{"limit":"free","key":"a","attributes":{}}"#,
            "a request by `limit` and `key` takes no attributes",
        ),
        (
            r#"{"limit":"free","key":"a","verified":{}}"#,
            "a request by `limit` and `key` takes no attributes",
        ),
        (
            r#"{"limit":"free","key":"a","said":{}}"#,
            "a request by `limit` and `key` takes no attributes",
        ),
        (r#"{"limit":"free","key":"a","cost":0}"#, "cost is 0; use at least 1"),
        (r#"{"domain":"api","cost":0}"#, "cost is 0; use at least 1"),
        (r#"{"limit":1,"key":"a"}"#, "line 1 column 10: invalid type: integer `1`"),
        (
            r#"{"limit":"free","key":null}"#,
            "line 1 column 26: invalid type: null, expected a string",
        ),
        ("{\"limit\":\"free\",\n \"nokey\":1}", "line 2 column 8: unknown field `nokey`, expected"),
        (r#"{"limit":"free","limit":"pro","key":"a"}"#, "duplicate field `limit`"),
        (r#"{"domain":"api","attributes":{"a":"1","a":"2"}}"#, "attribute `a` occurs twice"),
        (
            r#"{"domain":"api","attributes":{"a":1}}"#,
            "invalid type: integer `1`, expected a string",
        ),
        (
            r#"{"domain":"api","attributes":[]}"#,
            "an object of strings, such as {\"path\":\"/login\"}",
        ),
        (&many, "there are 66 attributes in all; send at most 64"),
        (
            r#"{"domain":"api","attributes":{"ip":"203.0.113.9:80"}}"#,
            "attributes.ip: `203.0.113.9:80` is not an IP address; send an address without a port",
        ),
        (r#"{"domain":"api","verified":{"ip":"me"}}"#, "verified.ip: `me` is not an IP address"),
        ("[]", "a check must be a JSON object; send"),
        (r#"["free","a"]"#, "a check must be a JSON object; send"),
        ("null", "a check must be a JSON object; send"),
        ("", "a check must be a JSON object; send"),
        (r#"{"limit":"free","key":"a"} {}"#, "line 1 column 28: trailing characters; send JSON"),
        (r#"{"limit":"free""#, "line 1 column 15: EOF while parsing an object; send JSON"),
    ] {
        let response = server.post("/v1/check", body).send().unwrap();
        let (status, detail) = problem(response);
        assert_eq!(status, 400, "{body}");
        assert!(detail.contains(want), "{body}: {detail}");
    }
    assert_eq!(check(&server, json!({"limit": "free", "key": "a"}))["remaining"], 59);
}

#[test]
fn check_has_at_most_64_attributes() {
    let server = slow();
    let attributes = |count: usize| -> Value {
        (0..count).map(|at| (at.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>().into()
    };
    check(&server, json!({"domain": "api", "attributes": attributes(64)}));
    let body = json!({"domain": "api", "attributes": attributes(65)}).to_string();
    let (status, detail) = problem(server.post("/v1/check", body).send().unwrap());
    assert_eq!(status, 400);
    assert!(detail.contains("too many attributes; send at most 64"), "{detail}");
}

#[test]
fn integers_may_be_written_in_any_form() {
    let server = slow();
    for cost in ["6", "6.0", "6e0", "0.6e1"] {
        let body = format!(r#"{{"limit":"free","key":"{cost}","cost":{cost}}}"#);
        assert_eq!(server.check(&body)["remaining"], 54, "{cost}");
    }
    let most = r#"{"limit":"free","key":"a","cost":9007199254740991}"#;
    assert_eq!(server.check(most)["allowed"], false);
}

#[test]
fn other_content_types_are_refused() {
    let server = slow();
    let body = r#"{"limit":"free","key":"a"}"#;
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let url = format!("{}/v1/check", server.url);
        let request = reqwest::blocking::Client::new().post(url).body(body);
        let response = request.header("content-type", content_type).send().unwrap();
        let (status, detail) = problem(response);
        assert_eq!(status, 415, "{content_type}");
        assert!(detail.contains("Content-Type: application/json"), "{detail}");
    }
    assert_eq!(check(&server, json!({"limit": "free", "key": "a"}))["remaining"], 59);
}

#[test]
fn answers_do_not_contain_client_keys() {
    let server = slow();
    let body = r#"{"domain":"api","attributes":{"ip":"203.0.113.9","api_key":"s3cret"}}"#;
    let text = server.post("/v1/check", body).send().unwrap().text().unwrap();
    assert!(!text.contains("s3cret") && !text.contains("203.0.113"), "{text}");
}

/// Starts a server with the example's rules, at rates so low that no quota is refilled while a test runs.
pub(crate) fn slow() -> ServerProcess {
    static PATH: LazyLock<PathBuf> = LazyLock::new(|| {
        let example = include_str!("../../../../examples/rules.yaml");
        let mut slow = example.replace("refill=200/s", "refill=1/d");
        for rate in ["refill: 1/s", "refill: 10/s", "refill: 100/s"] {
            slow = slow.replace(rate, "refill: 1/d");
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slow.yaml");
        // Another test can read the file of an earlier run at this time, so the file is replaced in one step.
        let (_, new) = rules(&slow).keep().unwrap();
        std::fs::rename(new, &path).unwrap();
        path
    });
    ServerProcess::start(&["--config", PATH.to_str().unwrap()])
}

/// Writes rules to a temporary file.
pub(crate) fn rules(text: &str) -> NamedTempFile {
    let file = NamedTempFile::with_suffix_in(".yaml", env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// A client can close its sending side after its request. The decision was charged, so the client must get it.
#[test]
fn half_closed_clients_are_answered_and_lost_clients_counted() {
    let redis = Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"));
    let proxy = Proxy::start(redis.addr()).unwrap();
    proxy.delay(|| Duration::from_millis(100));
    let file = rules("limits: { few: fixed-window limit=5 window=366d }\nrules: []");
    let (path, store) = (file.path().to_str().unwrap(), proxy.url());
    let flags = ["--config", path, "--store", &store, "--store-deadline", "10s"];
    let server = ServerProcess::start(&flags);
    let ask = || {
        let body = r#"{"limit":"few","key":"a"}"#;
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n";
        let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        let length = body.len();
        write!(stream, "{head}content-length: {length}\r\n\r\n{body}").unwrap();
        stream
    };
    let mut half = ask();
    half.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK") && answer.contains(r#""remaining":4"#), "{answer}");
    drop(ask());
    let counted = r#"tollgate_limit_decisions_total{limit="few",outcome="allowed",leased="false",degraded="false"} 2"#;
    eventually("the check of the lost client is counted", || {
        server.get("/metrics").send().unwrap().text().unwrap().contains(counted).then_some(())
    });
}
