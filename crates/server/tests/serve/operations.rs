//! `GET /v1/operations`: the state of the server and its rules.

use serde_json::{Value, json};
use tollgate_launcher::{Flavour, Launch};

use crate::check::problem;
use crate::eventually::eventually;
use crate::openapi::assert_valid;
use crate::rls::{RlsServer, descriptor};
use crate::server::{ServerProcess, body_of};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const RULES: &str = "
identity: { trusted_proxies: [127.0.0.1] }
limits:
  two: fixed-window limit=2 window=366d
  log: sliding-window-log limit=3 window=1d
rules:
  - { name: watched, domain: api, key: [user], limit: two, shadow: true }
  - { name: per-user, domain: api, when: { user: '**' }, key: [user], limit: log }
  - { name: per-ip, domain: api, when: { path: /shop }, key: [ip], limit: two }
  - { name: nobody, domain: api, when: { path: /closed }, key: [], limit: block }
";

fn operations(server: &ServerProcess) -> Value {
    let response = server.get("/v1/operations").send().unwrap();
    assert_eq!(response.status(), 200);
    let operations = body_of(response);
    assert_valid("Operations", &operations);
    operations
}

/// Returns the refusals: rule or limit, key, and number.
fn refused(operations: &Value) -> Vec<(String, String, u64)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let each = operations["refused"].as_array().unwrap().iter();
    each.map(|own| {
        assert_eq!(own["excess"], 0);
        (text(&own["by"]), text(&own["key"]), own["times"].as_u64().unwrap())
    })
    .collect()
}

/// Returns the rule or limit with this name.
fn entry<'o>(operations: &'o Value, kind: &str, name: &str) -> &'o Value {
    let all = operations[kind].as_array().unwrap();
    all.iter().find(|own| own["name"] == name).unwrap_or_else(|| panic!("{operations}"))
}

#[test]
fn counts_include_decisions_of_every_interface() {
    let limits = RlsServer::start(RULES);
    let fresh = operations(&limits.server);
    assert_eq!((&fresh["store"], &fresh["servers"]), (&json!("memory"), &json!([])));
    assert_counts(&limits);
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    assert_counts(&RlsServer::start_with(
        RULES,
        &["--store", &redis.url(), "--store-deadline", "20s"],
    ));
}

fn assert_counts(limits: &RlsServer) {
    let server = &limits.server;
    let fresh = operations(server);
    assert_eq!((&fresh["readiness"]["ready"], &fresh["refused"]), (&json!(true), &json!([])));
    assert_eq!(fresh["readiness"]["generation"], 1);
    let rule = entry(&fresh, "rules", "api/per-user");
    let log = json!({"limit_name": "log", "limit": "sliding-window-log limit=3 window=1d"});
    assert_eq!(rule["limits"], json!([log]));
    let block = json!({"limit_name": "block", "limit": null});
    assert_eq!(entry(&fresh, "rules", "api/nobody")["limits"], json!([block]));
    let names: Vec<_> = fresh["rules"].as_array().unwrap().iter().map(|own| &own["name"]).collect();
    assert_eq!(names, ["api/watched", "api/per-user", "api/per-ip", "api/nobody"]);

    let check = r#"{"domain":"api","attributes":{"user":"a"}}"#;
    for nth in 0..5 {
        assert_eq!(server.check(check)["allowed"], nth < 3);
    }
    for nth in 0..6 {
        let request = server.get("/v1/authorize/api").header("x-forwarded-method", "GET");
        let request = request.header("x-forwarded-uri", "/shop");
        let response = request.header("x-forwarded-for", "203.0.113.9").send().unwrap();
        assert_eq!(response.status(), if nth < 2 { 200 } else { 429 });
    }
    for _ in 0..6 {
        limits.ask_all(vec![descriptor(&[("user", "b")])]);
    }
    // A check whose cost exceeds the whole limit is not counted as a refusal of the key.
    server.check(r#"{"limit":"two","key":"c","cost":3}"#);
    server.check(r#"{"limit":"two","key":"c","cost":2}"#);
    let batch = json!([{"limit": "two", "key": "c", "cost": 2}, {"limit": "two", "key": "c"}]);
    server.post("/v1/check/batch", batch.to_string()).send().unwrap();

    let now = operations(server);
    assert_eq!(
        refused(&now),
        [
            ("api/per-ip".to_owned(), "ip=203.0.113.9".to_owned(), 4),
            ("api/per-user".to_owned(), "user=b".to_owned(), 3),
            ("api/per-user".to_owned(), "user=a".to_owned(), 2),
            ("two".to_owned(), "c".to_owned(), 2),
        ]
    );
    for (kind, name, allowed, denied, shadow) in [
        ("rules", "api/per-user", 6, 5, 0),
        ("rules", "api/per-ip", 2, 4, 0),
        ("limits", "two", 1, 3, 0),
        ("limits", "log", 0, 0, 0),
    ] {
        let own = entry(&now, kind, name);
        let want = [allowed, denied, shadow];
        assert_eq!(["allowed", "denied", "shadow_denied"].map(|it| &own[it]), want, "{own}");
        assert_eq!((&own["degraded"], &own["failed"]), (&json!(0), &json!(0)));
    }
    let watched = entry(&now, "rules", "api/watched");
    assert!(watched["shadow_denied"].as_u64().unwrap() > 0 && watched["denied"] == 0, "{watched}");
}

#[test]
fn keys_of_rules_are_peeked_and_reset_by_their_listed_names() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    for flags in [&[][..], &["--store", &redis.url(), "--store-deadline", "20s"]] {
        let limits = RlsServer::start_with(RULES, flags);
        let server = &limits.server;
        for user in ["a/b", "c"] {
            for _ in 0..4 {
                server.check(&json!({"domain": "api", "attributes": {"user": user}}).to_string());
            }
        }
        let listed = refused(&operations(server));
        assert_eq!(listed[0], ("api/per-user".to_owned(), "user=a/b".to_owned(), 1));
        let path = "/v1/limits/api%2Fper-user/keys/user=a%2Fb";
        let look = |path: &str| key_state(server, path)["limits"][0]["decision"].clone();
        assert_eq!(look(path)["remaining"], 0);
        assert_eq!(look(&format!("{path}?entries=true"))["entries"].as_array().unwrap().len(), 3);
        assert_eq!(server.delete(path).send().unwrap().status(), 204);
        assert_eq!(look(path)["remaining"], 3);
        assert_eq!(
            look("/v1/limits/api%2Fper-user/keys/user=c")["remaining"],
            0,
            "other keys are not reset"
        );
        let check = json!({"domain": "api", "attributes": {"user": "a/b"}}).to_string();
        assert_eq!(server.check(&check)["allowed"], true);
        for unknown in ["api%2Fnope", "nope%2Fper-user", "per-user", "api"] {
            let path = format!("/v1/limits/{unknown}/keys/user=c");
            assert_eq!(problem(server.get(&path).send().unwrap()).0, 404, "{unknown}");
        }
    }
}

/// Returns the state of a rule's key.
fn key_state(server: &ServerProcess, path: &str) -> Value {
    let answer = body_of(server.get(path).send().unwrap());
    assert_valid("RuleKey", &answer);
    answer
}

const TIERED: &str = "
limits:
  free: sliding-window-log limit=60 window=1d
  pro: sliding-window-log limit=600 window=1d
  partner: fixed-window limit=5 window=366d
rules:
  - name: per-client
    domain: api
    key: [user]
    limit: { by: tier, tiers: { pro: pro, basic: free, banned: block }, default: free }
    overrides:
      - { key: { user: partner }, limit: partner }
      - { key: { user: friend }, limit: allow }
  - { name: nobody, domain: api, when: { path: /closed }, key: [user], limit: block }
";

#[test]
fn key_that_a_rule_cannot_have_is_refused() {
    let limits = RlsServer::start(TIERED);
    let server = &limits.server;
    for key in ["a", "ip=a", "user", "user=a,ip=b", ""] {
        let path = format!("/v1/limits/api%2Fper-client/keys/{key}");
        for request in [server.get(&path), server.delete(&path)] {
            let (status, detail) = problem(request.send().unwrap());
            assert_eq!(status, 400, "{key}: {detail}");
            assert!(detail.ends_with("use user=VALUE"), "{key}: {detail}");
        }
    }
}

#[test]
fn key_is_not_shown_when_the_store_fails() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let limits = RlsServer::start_with(TIERED, &["--store", &redis.url()]);
    redis.kill();
    for path in ["/v1/limits/free/keys/a", "/v1/limits/api%2Fper-client/keys/user=a"] {
        assert_eq!(limits.server.get(path).send().unwrap().status(), 503, "{path}");
    }
}

#[test]
fn key_of_a_tiered_rule_is_shown_under_every_limit_of_the_rule() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    for flags in [&[][..], &["--store", &redis.url(), "--store-deadline", "20s"]] {
        let limits = RlsServer::start_with(TIERED, flags);
        let server = &limits.server;
        let check = |cost: u64| {
            let body = json!({"domain": "api", "cost": cost, "attributes": {"user": "a"}});
            server.check(&body.to_string())["allowed"].clone()
        };
        let path = "/v1/limits/api%2Fper-client/keys/user=a";
        assert_eq!(check(60), true);
        assert_eq!(key_state(server, path)["last_refused_under"], Value::Null, "no refusal so far");
        assert_eq!(check(1), false);
        let key = key_state(server, path);
        assert_eq!(key["rule"], "api/per-client");
        assert_eq!(key["last_refused_under"], "free");
        let shown: Vec<_> = key["limits"].as_array().unwrap().iter().collect();
        let names: Vec<_> = shown.iter().map(|own| &own["limit_name"]).collect();
        assert_eq!(names, ["free", "block", "pro"], "there is no override for this key");
        assert_eq!((&shown[0]["default"], &shown[0]["tiers"]), (&json!(true), &json!(["basic"])));
        let standing = |own: &Value| {
            ["allowed", "remaining", "limit"].map(|field| own["decision"][field].clone())
        };
        assert_eq!(standing(shown[0]), [json!(false), json!(0), json!(60)]);
        assert_eq!(shown[1]["decision"], Value::Null);
        assert_eq!(standing(shown[2]), [json!(true), json!(540), json!(600)]);

        let chosen = key_state(server, &format!("{path}?limit=pro&entries=true"));
        assert_eq!(chosen["limits"].as_array().unwrap().len(), 1);
        assert_eq!(chosen["limits"][0]["decision"]["entries"][0]["cost"], 60);
        for (query, code, want) in
            [("entries=true", 400, "choose one: ?limit=NAME"), ("limit=partner", 404, "limit: ")]
        {
            let (status, detail) = problem(server.get(&format!("{path}?{query}")).send().unwrap());
            assert_eq!(status, code);
            assert!(detail.contains(want), "{detail}");
        }

        assert_eq!(server.delete(path).send().unwrap().status(), 204);
        let key = key_state(server, path);
        assert_eq!(standing(&key["limits"][0]), [json!(true), json!(60), json!(60)]);
        assert_eq!(standing(&key["limits"][2]), [json!(true), json!(600), json!(600)]);
    }
}

#[test]
fn key_with_an_override_is_shown_only_under_the_override() {
    let limits = RlsServer::start(TIERED);
    let server = &limits.server;
    let key =
        |user: &str| key_state(server, &format!("/v1/limits/api%2Fper-client/keys/user={user}"));
    let partner = key("partner");
    let own = &partner["limits"][0];
    assert_eq!(partner["limits"].as_array().unwrap().len(), 1);
    assert_eq!((&own["limit_name"], &own["override"]), (&json!("partner"), &json!(true)));
    assert_eq!((&own["default"], &own["tiers"]), (&json!(false), &json!([])));
    assert_eq!(own["decision"]["limit"], 5);
    let friend = key("friend");
    assert_eq!(friend["limits"][0]["limit_name"], "allow");
    assert_eq!(friend["limits"][0]["decision"], Value::Null);
}

#[test]
fn blocked_client_is_listed_as_refused() {
    let limits = RlsServer::start(TIERED);
    let server = &limits.server;
    let closed = json!({"domain": "api", "attributes": {"user": "a", "path": "/closed"}});
    for _ in 0..3 {
        assert_eq!(server.check(&closed.to_string())["blocked"], true);
    }
    let now = operations(server);
    assert_eq!(refused(&now), [("api/nobody".to_owned(), "user=a".to_owned(), 3)]);
    assert_eq!(now["refused"][0]["limit_name"], "block");
    let path = "/v1/limits/api%2Fnobody/keys/user=a";
    let key = key_state(server, path);
    assert_eq!(key["last_refused_under"], "block");
    assert_eq!(key["limits"][0]["limit_name"], "block");
    let (status, detail) = problem(server.delete(path).send().unwrap());
    assert_eq!(status, 404);
    assert!(detail.contains("no state to reset"), "{detail}");
}

#[test]
fn rule_is_listed_with_all_limits_that_it_can_charge() {
    let limits = RlsServer::start(TIERED);
    let now = operations(&limits.server);
    let own = entry(&now, "rules", "api/per-client")["limits"].as_array().unwrap().clone();
    let names: Vec<_> = own.iter().map(|own| &own["limit_name"]).collect();
    assert_eq!(names, ["free", "block", "pro", "partner", "allow"]);
    assert_eq!(own[2]["limit"], "sliding-window-log limit=600 window=1d");
}

#[test]
fn keys_are_listed_as_json_and_long_ones_are_cut() {
    let limits = RlsServer::start(RULES);
    let server = &limits.server;
    let refuse = |key: &str| {
        for _ in 0..2 {
            server.check(&json!({"limit": "two", "key": key, "cost": 2}).to_string());
        }
    };
    for key in ["\u{1b}[31m\r\n\0", "<script>alert(1)</script>", "\u{202e}\u{10ffff}", "\"\\", ""] {
        refuse(key);
    }
    refuse(&"x".repeat(256));
    refuse(&"y".repeat(257));
    let listed = refused(&operations(server));
    let keys: Vec<_> = listed.iter().map(|(_, key, _)| key.as_str()).collect();
    let (long, longer) = ("x".repeat(256), "y".repeat(256));
    let script = "<script>alert(1)</script>";
    let want = ["", "\u{1b}[31m\r\n\0", "\"\\", script, &long, &longer, "\u{202e}\u{10ffff}"];
    assert_eq!(keys, want);
    let whole = operations(server)["refused"].as_array().unwrap().clone();
    assert_eq!(whole.iter().filter(|own| own["whole"] == false).count(), 1);
    // The list has at most 20 keys.
    (0..40).for_each(|nth| refuse(&format!("key {nth}")));
    assert_eq!(refused(&operations(server)).len(), 20);
}

#[test]
fn only_operators_see_the_operations() {
    let server = ServerProcess::start(&["--operator-token", TOKEN]);
    let ask = || server.get("/v1/operations");
    assert_eq!(ask().bearer_auth(TOKEN).send().unwrap().status(), 200);
    for request in [ask(), ask().bearer_auth(&TOKEN[1..])] {
        let response = request.send().unwrap();
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        assert_eq!(problem(response).0, 401);
    }
    let server = ServerProcess::start(&[]);
    let ask = || server.get("/v1/operations");
    assert_eq!(ask().send().unwrap().status(), 200);
    for (name, value) in [
        ("x-forwarded-for", "203.0.113.9"),
        ("host", "rebound.example"),
        ("origin", "https://a.example"),
    ] {
        assert_eq!(problem(ask().header(name, value).send().unwrap()).0, 403, "{name}");
    }
}

#[test]
fn store_outage_and_its_end_are_visible() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let limits = RlsServer::start_with(RULES, &["--store", &redis.url()]);
    let server = &limits.server;
    let breaker = || operations(server)["servers"][0]["breaker"].as_str().unwrap().to_owned();
    let healthy = operations(server);
    assert_eq!(
        (&healthy["store"], &healthy["readiness"]["ready"]),
        (&json!("redis"), &json!(true))
    );
    assert_eq!(healthy["servers"].as_array().unwrap().len(), 1);
    assert_eq!(healthy["servers"][0]["server"], redis.addr().to_string());
    assert_eq!(breaker(), "closed");
    redis.kill();
    let check = r#"{"limit":"two","key":"a"}"#;
    eventually("the breaker opens", || {
        server.check(check);
        (breaker() == "open").then_some(())
    });
    eventually("the server is not ready", || {
        (operations(server)["readiness"]["ready"] == false).then_some(())
    });
    let own = entry(&operations(server), "limits", "two").clone();
    assert!(own["degraded"].as_u64().unwrap() > 0, "{own}");
    redis.restart().unwrap();
    eventually("the breaker closes", || (breaker() == "closed").then_some(()));
    eventually("the server is ready", || {
        (operations(server)["readiness"]["ready"] == true).then_some(())
    });
}
