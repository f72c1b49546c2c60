//! `GET /v1/limits`, and the keys of limits.

use serde_json::{Value, json};

use crate::check::problem;
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

fn get(server: &ServerProcess, path: &str, schema: &str) -> Value {
    let response = server.get(path).send().unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let answer = body_of(response);
    assert_valid(schema, &answer);
    answer
}

#[test]
fn limits_are_listed_with_their_bounds() {
    let server = ServerProcess::start(&[]);
    let all = get(&server, "/v1/limits", "Limits");
    let names: Vec<_> = all["limits"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["enterprise", "everyone", "free", "login", "partner", "pro"]);
    let free = get(&server, "/v1/limits/free", "Limit");
    let want = json!({
        "name": "free", "limit": "token-bucket capacity=60 refill=1/s", "algorithm": "token-bucket",
        "bound": {"interval_us": 60_000_000, "max": 119, "formula": "capacity + floor(rate * (t - 1))"}
    });
    assert_eq!(free, want);
    assert_eq!(all["limits"][2], want);
    let (status, detail) = problem(server.get("/v1/limits/nope").send().unwrap());
    assert_eq!(
        (status, &*detail),
        (404, "there is no limit `nope`; GET /v1/limits lists the limits")
    );
}

#[test]
fn rule_has_all_limits_that_it_can_charge() {
    let file = crate::check::rules(
        "limits: { free: fixed-window limit=1 window=1s, pro: fixed-window limit=2 window=1s }\n\
         rules:\n\
         - { name: each, domain: api, key: [ip], limit: { by: tier, tiers: { pro: pro, staff: allow }, default: free } }",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let rule = get(&server, "/v1/limits/api%2Feach", "RuleLimits");
    assert_eq!((&rule["rule"], &rule["shadow"]), (&json!("api/each"), &json!(false)));
    let bound = json!({"interval_us": 1_000_000, "max": 2, "formula": "limit * (ceil((t - 1) / window) + 1)"});
    let own = json!({
        "limit_name": "free", "default": true, "tiers": [], "overrides": 0,
        "limit": "fixed-window limit=1 window=1s", "algorithm": "fixed-window", "bound": bound
    });
    assert_eq!(rule["limits"][0], own);
    assert_eq!(rule["limits"][1]["tiers"], json!(["pro"]));
    let allowed = json!({
        "limit_name": "allow", "default": false, "tiers": ["staff"], "overrides": 0,
        "limit": null, "algorithm": null, "bound": null
    });
    assert_eq!(rule["limits"][2], allowed);
    for unknown in ["api%2Fnope", "web%2Feach", "each"] {
        let path = format!("/v1/limits/{unknown}");
        assert_eq!(problem(server.get(&path).send().unwrap()).0, 404, "{unknown}");
    }
    get(&server, "/v1/limits/free/keys/a?limit=free", "Decision");
    let (status, detail) = problem(server.get("/v1/limits/free/keys/a?limit=pro").send().unwrap());
    assert_eq!(status, 404);
    assert!(detail.starts_with("limit: no request with this key spends this limit"), "{detail}");
}

#[test]
fn peek_charges_nothing() {
    let server = ServerProcess::start(&[]);
    server.check(r#"{"limit":"login","key":"a","cost":2}"#);
    for _ in 0..2 {
        let peek = get(&server, "/v1/limits/login/keys/a", "Decision");
        assert_eq!((&peek["allowed"], &peek["remaining"]), (&json!(true), &json!(3)));
        assert_eq!(peek.get("entries"), None);
    }
    let peek = get(&server, "/v1/limits/login/keys/a?cost=4", "Decision");
    assert_eq!((&peek["allowed"], &peek["remaining"]), (&json!(false), &json!(3)));
    assert!(peek["retry_after_us"].as_u64().unwrap() > 0);
}

#[test]
fn charges_of_a_log_are_listed_on_demand() {
    let server = ServerProcess::start(&[]);
    server.check(r#"{"limit":"login","key":"a","cost":2}"#);
    server.check(r#"{"limit":"login","key":"a"}"#);
    let peek = get(&server, "/v1/limits/login/keys/a?entries=true&cost=2", "Decision");
    let entries = peek["entries"].as_array().unwrap();
    let costs: Vec<_> = entries.iter().map(|entry| &entry["cost"]).collect();
    assert_eq!(costs, [2, 1]);
    assert!(entries[0]["at_us"].as_u64() <= entries[1]["at_us"].as_u64());
    let bucket = get(&server, "/v1/limits/free/keys/a?entries=true", "Decision");
    assert_eq!(bucket["entries"], json!([]));
    let without = get(&server, "/v1/limits/login/keys/a?entries=false", "Decision");
    assert_eq!(without.get("entries"), None);
}

#[test]
fn reset_forgets_a_key_and_no_other() {
    let server = ServerProcess::start(&[]);
    for key in ["a", "b"] {
        server.check(&json!({"limit": "login", "key": key, "cost": 5}).to_string());
    }
    let response = server.delete("/v1/limits/login/keys/a").send().unwrap();
    assert_eq!(response.status(), 204);
    assert_eq!(response.text().unwrap(), "");
    assert_eq!(get(&server, "/v1/limits/login/keys/a", "Decision")["remaining"], 5);
    assert_eq!(get(&server, "/v1/limits/login/keys/b", "Decision")["remaining"], 0);
    let again = server.delete("/v1/limits/login/keys/a").send().unwrap();
    assert_eq!(again.status(), 204, "a key without state can be reset");
    let (status, _) = problem(server.delete("/v1/limits/nope/keys/a").send().unwrap());
    assert_eq!(status, 404);
}

#[test]
fn keys_are_percent_decoded() {
    let server = ServerProcess::start(&[]);
    for (key, path) in [
        ("tenant/7", "tenant%2F7"),
        ("tenant/7/", "tenant%2f7%2F"),
        ("a b?c#d%", "a%20b%3Fc%23d%25"),
        ("ключ", "%D0%BA%D0%BB%D1%8E%D1%87"),
        ("a\0b", "a%00b"),
        ("+", "+"),
        ("", ""),
    ] {
        server.check(&json!({"limit": "login", "key": key, "cost": 2}).to_string());
        let path = format!("/v1/limits/login/keys/{path}");
        assert_eq!(get(&server, &path, "Decision")["remaining"], 3, "{key:?}");
        assert_eq!(server.delete(&path).send().unwrap().status(), 204, "{key:?}");
        assert_eq!(get(&server, &path, "Decision")["remaining"], 5, "{key:?}");
    }
}

#[test]
fn bad_paths_are_refused_with_a_reason() {
    let server = ServerProcess::start(&[]);
    for (path, status, want) in [
        ("/v1/limits/%ff", 400, "not UTF-8"),
        ("/v1/limits/free/keys/%ff", 400, "not UTF-8"),
        ("/v1/limits/%ff/keys/", 400, "not UTF-8"),
        ("/v1/limits/nope/keys/", 404, "there is no limit `nope`"),
        ("/v1/limits/free/keys/a/b", 404, "there is no path `/v1/limits/free/keys/a/b`"),
        ("/v1/limits/free/keys", 404, "there is no path `/v1/limits/free/keys`"),
        ("/v1/limits/free/keys/a?cost=0", 400, "cost is 0; use at least 1"),
        ("/v1/limits/free/keys/a?cost=-1", 400, "use a query such as ?cost=1&entries=true"),
        ("/v1/limits/free/keys/a?cost=1.5", 400, "use a query such as ?cost=1&entries=true"),
        ("/v1/limits/free/keys/a?cost=1&cost=2", 400, "use a query such as ?cost=1&entries=true"),
        ("/v1/limits/free/keys/a?costs=1", 400, "use a query such as ?cost=1&entries=true"),
        ("/v1/limits/free/keys/a?entries=1", 400, "use a query such as ?cost=1&entries=true"),
        ("/v1/limits/free/keys/?cost=x", 400, "use a query such as ?cost=1&entries=true"),
        ("/nowhere%0a", 404, "there is no path `/nowhere%0a`; GET /openapi.json lists the paths"),
        ("/page/nope.js", 404, "there is no path `/page/nope.js`"),
    ] {
        let (got, detail) = problem(server.get(path).send().unwrap());
        assert_eq!(got, status, "{path}: {detail}");
        assert!(detail.contains(want), "{path}: {detail}");
    }
}

#[test]
fn wrong_method_is_405_and_names_the_allowed_ones() {
    let server = ServerProcess::start(&[]);
    for (path, method, want) in [
        ("/v1/check", "GET", "POST"),
        ("/v1/check/batch", "PUT", "POST"),
        ("/v1/limits", "POST", "GET,HEAD"),
        ("/v1/limits/free", "DELETE", "GET,HEAD"),
        ("/v1/limits/free/keys/a", "POST", "GET,HEAD,DELETE"),
        ("/openapi.json", "OPTIONS", "GET,HEAD"),
    ] {
        let url = format!("{}{path}", server.url);
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let response = reqwest::blocking::Client::new().request(method, url).send().unwrap();
        assert_eq!(response.headers()["allow"], want, "{path}");
        let (status, detail) = problem(response);
        assert_eq!(status, 405, "{path}");
        assert!(detail.contains("use one of the methods in the header Allow"), "{detail}");
    }
}

#[test]
fn keys_on_redis_can_be_peeked_and_reset() {
    use tollgate_launcher::{Flavour, Launch};

    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let file = crate::check::rules(
        "defaults: { on_store_failure: closed, deadline: 20s }\n\
         limits: { few: sliding-window-log limit=5 window=1h }\nrules: []",
    );
    let config = file.path().to_str().unwrap();
    let server = ServerProcess::start(&["--config", config, "--store", &redis.url()]);
    server.check(r#"{"limit":"few","key":"a/b","cost":3}"#);
    let path = "/v1/limits/few/keys/a%2Fb";
    let peek = get(&server, &format!("{path}?entries=true"), "Decision");
    assert_eq!((&peek["remaining"], &peek["entries"][0]["cost"]), (&json!(2), &json!(3)));
    assert_eq!(server.delete(path).send().unwrap().status(), 204);
    assert_eq!(get(&server, path, "Decision")["remaining"], 5);
}
