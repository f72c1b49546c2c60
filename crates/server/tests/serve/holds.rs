//! `POST /v1/reserve`, `/v1/settle` and `/v1/extend`.

use std::io::Write;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::check::problem;
use crate::metrics::scrape;
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

/// Limits of which nothing comes back while a test runs.
const LIMITS: &str = "limits:\n  tpm: fixed-window limit=1000 window=366d\n  \
                      policing: leaky-bucket capacity=1000 leak=1/30d mode=policing\n  \
                      shaping: leaky-bucket capacity=1000 leak=1/30d mode=shaping\n  \
                      jobs: concurrency limit=2 for=5m\nrules: []\n";

fn file(yaml: &str) -> NamedTempFile {
    let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(yaml.as_bytes()).unwrap();
    file
}

fn server() -> ServerProcess {
    let file = file(LIMITS);
    ServerProcess::start(&["--config", file.path().to_str().unwrap()])
}

impl ServerProcess {
    /// Sends a body, which must be answered with 200, with JSON that matches the schema.
    fn post_valid(&self, path: &str, body: &Value, schema: &str) -> Value {
        let response = self.post(path, body.to_string()).send().unwrap();
        let status = response.status();
        let answer = body_of(response);
        assert_eq!(status, 200, "{answer}");
        assert_valid(schema, &answer);
        answer
    }

    fn reserve(&self, limit: &str, cost: u64, hold_for: &str) -> Value {
        let body = json!({"limit": limit, "key": "team:7", "cost": cost, "for": hold_for});
        self.post_valid("/v1/reserve", &body, "Reservation")
    }

    /// Reserves units, and returns the token of the hold.
    fn hold(&self, limit: &str, cost: u64, hold_for: &str) -> String {
        token(&self.reserve(limit, cost, hold_for))
    }

    fn settle(&self, hold: &str, cost: u64) -> Value {
        self.post_valid("/v1/settle", &json!({"hold": hold, "cost": cost}), "SettleAnswer")
    }

    fn settle_part(&self, hold: &str, cost: u64) -> Value {
        let body = json!({"hold": hold, "cost": cost, "keep": true});
        self.post_valid("/v1/settle", &body, "SettleAnswer")
    }

    fn extend(&self, hold: &str, cost: u64, hold_for: &str) -> Value {
        let body = json!({"hold": hold, "cost": cost, "for": hold_for});
        self.post_valid("/v1/extend", &body, "ExtendAnswer")
    }

    /// Returns what remains of a limit, as an operator sees it.
    fn remaining(&self, limit: &str) -> u64 {
        let peek = self.get(&format!("/v1/limits/{limit}/keys/team:7")).send().unwrap();
        body_of(peek)["remaining"].as_u64().unwrap()
    }

    fn problem_of(&self, path: &str, body: &Value) -> (u16, String) {
        problem(self.post(path, body.to_string()).send().unwrap())
    }
}

fn token(answer: &Value) -> String {
    answer["hold"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Returns three fields of a settlement: the charged units, the excess, and the cut units.
fn charged(settled: &Value) -> [u64; 3] {
    ["charged", "excess", "cut"].map(|name| settled[name].as_u64().unwrap())
}

#[test]
fn reservation_has_every_field() {
    let server = server();
    let body = r#"{"limit":"policing","key":"team:7","cost":400,"for":"30s"}"#;
    let text = server.post("/v1/reserve", body).send().unwrap().text().unwrap();
    let want =
        r#"{"allowed":true,"limit":1000,"remaining":600,"retry_after_us":null,"reset_after_us":"#;
    assert!(text.starts_with(want), "{text}");
    let want = r#","hold_expires_after_us":30000000}"#;
    assert!(text.contains(r#","delay_us":0,"hold":""#) && text.ends_with(want), "{text}");

    let refused = server.reserve("policing", 601, "30s");
    assert_eq!(refused["allowed"], false);
    assert!(refused["retry_after_us"].is_u64(), "{refused}");
    let never = server.reserve("policing", 1_001, "30s");
    assert_eq!((&never["allowed"], &never["retry_after_us"]), (&json!(false), &Value::Null));
    for refused in [refused, never] {
        assert!(refused.get("hold").is_none() && refused.get("hold_expires_after_us").is_none());
    }
    let by_default = json!({"limit": "tpm", "key": "team:8"});
    let by_default = server.post_valid("/v1/reserve", &by_default, "Reservation");
    assert_eq!(by_default["remaining"], 999);
    assert_eq!(by_default["hold_expires_after_us"], 60_000_000);
}

#[test]
fn settlement_charges_once_and_frees_the_rest() {
    let server = server();
    let hold = server.hold("tpm", 400, "1h");
    assert_eq!(server.remaining("tpm"), 600);
    let settled = server.settle(&hold, 250);
    assert_eq!(charged(&settled), [250, 0, 0]);
    assert_eq!((&settled["allowed"], &settled["remaining"]), (&json!(true), &json!(750)));
    assert!(settled.get("hold_state").is_none());
    for _ in 0..2 {
        let again = server.settle(&hold, 250);
        assert_eq!(charged(&again), [0, 0, 0]);
        assert_eq!((&again["allowed"], &again["hold_state"]), (&json!(false), &json!("unknown")));
        assert_eq!((&again["retry_after_us"], &again["remaining"]), (&Value::Null, &json!(750)));
    }
    let receipt = settled["receipt"].as_str().unwrap();
    let refund = server.post("/v1/refund", json!({"receipt": receipt}).to_string());
    assert_eq!(body_of(refund.send().unwrap()), json!({"refunded": 250}));
    assert_eq!(server.remaining("tpm"), 1_000);
    let released = server.settle(&server.hold("tpm", 400, "1h"), 0);
    assert_eq!((charged(&released), released.get("receipt")), ([0, 0, 0], None));
    assert_eq!(server.remaining("tpm"), 1_000);
}

#[test]
fn units_used_beyond_the_hold_are_charged_and_cut_at_one_whole_limit() {
    let server = server();
    let settled = server.settle(&server.hold("tpm", 400, "1h"), 500);
    assert_eq!(charged(&settled), [500, 100, 0]);
    let settled = server.settle(&server.hold("tpm", 100, "1h"), 5_000);
    assert_eq!(charged(&settled), [1_100, 1_000, 3_900]);
    assert_eq!(server.remaining("tpm"), 0);
    let page = scrape(&server);
    let units =
        |kind| page.value("tollgate_limit_hold_units_total", &[("limit", "tpm"), ("kind", kind)]);
    assert_eq!(["held", "settled", "excess", "cut"].map(units), [500.0, 1_600.0, 1_100.0, 3_900.0]);
}

#[test]
fn settlements_in_part_charge_the_units_that_were_not_charged_yet() {
    let server = server();
    let hold = server.hold("tpm", 400, "1h");
    let part = |used, want: [u64; 3]| {
        let settled = server.settle_part(&hold, used);
        assert_eq!((charged(&settled), &settled["allowed"]), (want, &json!(true)), "{used}");
        assert_eq!(server.remaining("tpm"), 600, "the rest stays held");
    };
    part(100, [100, 0, 0]);
    part(100, [0, 0, 0]);
    part(50, [0, 0, 0]);
    part(300, [200, 0, 0]);
    assert_eq!(charged(&server.settle(&hold, 350)), [50, 0, 0]);
    assert_eq!(server.remaining("tpm"), 650);
}

#[test]
fn late_settlement_says_that_the_hold_has_expired() {
    let server = server();
    // At the time of the next request a microsecond has passed.
    let hold = server.hold("tpm", 400, "1us");
    for late in
        [server.settle(&hold, 1), server.settle_part(&hold, 1), server.extend(&hold, 0, "1h")]
    {
        assert_eq!((&late["allowed"], &late["hold_state"]), (&json!(false), &json!("expired")));
        assert_eq!(late["remaining"], 600, "the hold was charged in full at its expiry");
    }
}

#[test]
fn extension_adds_units_and_moves_the_expiry() {
    let server = server();
    let hold = server.hold("tpm", 400, "1h");
    let extended = server.extend(&hold, 500, "2h");
    assert_eq!((&extended["allowed"], &extended["remaining"]), (&json!(true), &json!(100)));
    assert_eq!(extended["hold_expires_after_us"], 7_200_000_000_u64);
    let refused = server.extend(&hold, 101, "3h");
    assert_eq!((&refused["allowed"], &refused["remaining"]), (&json!(false), &json!(100)));
    assert!(refused.get("hold").is_none() && refused.get("hold_state").is_none());
    let renewed = json!({"hold": token(&extended), "for": "1h"});
    let renewed = server.post_valid("/v1/extend", &renewed, "ExtendAnswer");
    assert_eq!((&renewed["allowed"], &renewed["remaining"]), (&json!(true), &json!(100)));
    // The first token is as good as the last.
    let settled = server.settle(&hold, 850);
    assert_eq!((charged(&settled), server.remaining("tpm")), ([850, 0, 0], 150));
    let late = server.extend(&token(&renewed), 1, "1h");
    assert_eq!((&late["allowed"], &late["hold_state"]), (&json!(false), &json!("unknown")));
}

#[test]
fn places_of_a_concurrency_limit_are_held_until_they_are_settled() {
    let server = server();
    let body = json!({"limit": "jobs", "key": "team:7"});
    let reserve = || server.post_valid("/v1/reserve", &body, "Reservation");
    let (first, second) = (reserve(), reserve());
    assert_eq!((&first["remaining"], &second["remaining"]), (&json!(1), &json!(0)));
    assert_eq!(first["hold_expires_after_us"], 300_000_000);
    let refused = reserve();
    let wait_us = refused["retry_after_us"].as_u64().unwrap();
    assert!(refused["allowed"] == false && wait_us <= 300_000_000, "{refused}");
    let settled = server.settle(&token(&first), 0);
    assert_eq!((&settled["allowed"], charged(&settled)), (&json!(true), [0, 0, 0]));
    assert_eq!(reserve()["allowed"], true);

    for (path, body) in [("/v1/check", body.clone()), ("/v1/check/batch", json!([body]))] {
        let response = server.post(path, body.to_string()).send().unwrap();
        let answer = body_of(response);
        let problem = if path.ends_with("batch") { &answer[0] } else { &answer };
        assert_eq!(problem["status"], 400);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("`jobs` ") && detail.contains("POST /v1/reserve"), "{detail}");
    }
    let labels = [("limit", "jobs"), ("outcome", "failed")];
    assert_eq!(scrape(&server).value("tollgate_limit_decisions_total", &labels), 0.0);
}

#[test]
fn settlement_of_places_alone_needs_no_cost() {
    let server = llm_server();
    let by_limit = json!({"limit": "jobs", "key": "a"});
    let by_rule = json!({"domain": "batch", "attributes": {"job": "a"}});
    for body in [by_limit, by_rule] {
        let reserve = || server.post_valid("/v1/reserve", &body, "ReserveAnswer");
        let first = reserve();
        assert_eq!((&first["allowed"], &first["remaining"]), (&json!(true), &json!(1)));
        let settle = json!({"hold": token(&first)});
        let settled = server.post_valid("/v1/settle", &settle, "SettleAnswer");
        assert_eq!((&settled["allowed"], charged(&settled)), (&json!(true), [0, 0, 0]));
        assert_eq!(reserve()["remaining"], 1, "the first place is free again");
    }
}

#[test]
fn reset_forgets_holds() {
    let server = server();
    let hold = server.hold("tpm", 400, "1h");
    server.delete("/v1/limits/tpm/keys/team:7").send().unwrap();
    assert_eq!(server.settle(&hold, 400)["hold_state"], "unknown");
    assert_eq!(server.remaining("tpm"), 1_000);
}

#[test]
fn forged_and_foreign_holds_get_the_same_error() {
    let (server, other) = (server(), server());
    let hold = server.hold("tpm", 400, "1h");
    let check = server.check(r#"{"limit":"tpm","key":"team:7"}"#);
    let forged = [
        String::new(),
        "né".to_owned(),
        hold.to_lowercase(),
        format!("{hold}A"),
        hold[1..].to_owned(),
        other.hold("tpm", 400, "1h"),
        check["receipt"].as_str().unwrap().to_owned(),
        "A".repeat(8_000),
    ];
    for forged in forged {
        for (path, body) in [
            ("/v1/settle", json!({"hold": forged, "cost": 0})),
            ("/v1/extend", json!({"hold": forged, "for": "1h"})),
        ] {
            let (status, detail) = server.problem_of(path, &body);
            assert_eq!(status, 400, "{forged}");
            assert!(detail.starts_with("not a hold of this server"), "{forged}: {detail}");
        }
    }
    let (status, detail) = server.problem_of("/v1/refund", &json!({"receipt": hold}));
    assert_eq!(status, 400, "{detail}");
    assert!(detail.starts_with("not a receipt of this server"), "{detail}");
    assert_eq!(charged(&server.settle(&hold, 400)), [400, 0, 0]);
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let server = server();
    let hold = server.hold("tpm", 1, "1h");
    let reserve = |more: &str| format!("{{\"limit\":\"tpm\",\"key\":\"a\"{more}}}");
    let long = json!({"limit": "tpm", "key": "k".repeat(4_000)}).to_string();
    for (path, body, status, want) in [
        ("reserve", r#"{"limit":"nope","key":"a"}"#.to_owned(), 404, "there is no limit `nope`"),
        ("reserve", r#"{"limit":"shaping","key":"a"}"#.to_owned(), 400, "a shaping leaky bucket"),
        ("reserve", r#"{"limit":"tpm"}"#.to_owned(), 400, "`key` is missing"),
        ("reserve", "[]".to_owned(), 400, "a reservation must be a JSON object"),
        ("reserve", reserve(r#","cost":0"#), 400, "cost is 0"),
        ("reserve", reserve(r#","for":30"#), 400, "invalid type: integer `30`"),
        ("reserve", reserve(r#","for":"30sec""#), 400, "`for=30sec` has an unknown unit"),
        ("reserve", reserve(r#","for":"0s""#), 400, "for: the time of a hold is 0"),
        ("reserve", reserve(r#","for":"367d""#), 400, "for: the time of a hold is above 366 days"),
        ("reserve", reserve(r#","max_wait_us":1"#), 400, "unknown field `max_wait_us`"),
        ("reserve", long, 400, "the key has 4000 bytes, and the key of a hold may have at most"),
        ("settle", json!({"hold": hold}).to_string(), 400, "`cost` is missing"),
        (
            "settle",
            json!({"hold": hold, "cost": -1}).to_string(),
            400,
            "invalid type: integer `-1`",
        ),
        ("settle", "7".to_owned(), 400, "a settlement must be a JSON object"),
        ("extend", json!({"hold": hold, "cost": 1}).to_string(), 400, "missing field `for`"),
        ("extend", json!({"hold": hold, "for": "1"}).to_string(), 400, "for"),
        ("extend", "null".to_owned(), 400, "an extension must be a JSON object"),
        ("settle/batch", "{}".to_owned(), 400, "expected an array of 1 to 1000 requests"),
    ] {
        let response = server.post(&format!("/v1/{path}"), &*body).send().unwrap();
        let (found, detail) = problem(response);
        assert_eq!(found, status, "{path} {body}: {detail}");
        assert!(detail.contains(want), "{path} {body}: {detail}");
    }
    assert_eq!(server.remaining("tpm"), 999);
}

#[test]
fn longest_key_of_a_hold_fits_its_token() {
    let server = server();
    let reserve = |bytes: usize| json!({"limit": "tpm", "key": "k".repeat(bytes), "for": "366d"});
    let (_, detail) = server.problem_of("/v1/reserve", &reserve(3_900));
    let most: usize =
        detail.split("at most ").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    let hold = token(&server.post_valid("/v1/reserve", &reserve(most), "Reservation"));
    assert!((4_050..=4_096).contains(&hold.len()), "{}", hold.len());
    assert_eq!(charged(&server.settle(&hold, 1)), [1, 0, 0]);
    assert_eq!(server.problem_of("/v1/reserve", &reserve(most + 1)).0, 400);
}

#[test]
fn hold_of_a_removed_limit_is_not_found_and_of_a_changed_limit_is_settled() {
    let both = "limits: { kept: fixed-window limit=1000 window=366d, gone: fixed-window limit=5 window=1h }\nrules: []\n";
    let file = file(both);
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let (kept, gone) = (server.hold("kept", 600, "1h"), server.hold("gone", 3, "1h"));
    let changed = "limits: { kept: fixed-window limit=500 window=366d }\nrules: []\n";
    std::fs::write(file.path(), changed).unwrap();
    // Waits until the server has reloaded the file.
    let peek = || server.get("/v1/limits/gone/keys/team:7").send().unwrap().status();
    while peek() != 404 {
        std::thread::yield_now();
    }
    let (_, detail) = server.problem_of("/v1/settle", &json!({"hold": gone, "cost": 3}));
    assert!(detail.contains("the limit of the hold no longer exists, and"), "{detail}");
    assert_eq!(charged(&server.settle(&kept, 400)), [400, 0, 0]);
    assert_eq!(server.remaining("kept"), 100);
}

#[test]
fn requests_of_a_batch_are_decided_separately_and_in_order() {
    let server = server();
    let reserve = |cost: u64| json!({"limit": "tpm", "key": "team:7", "cost": cost, "for": "1h"});
    let body = json!([reserve(600), reserve(600), {"limit": "nope", "key": "a"}, reserve(400)]);
    let reserved = server.post_valid("/v1/reserve/batch", &body, "ReserveAnswers");
    let allowed: Vec<_> = (0..4).map(|at| reserved[at]["allowed"].as_bool()).collect();
    assert_eq!(allowed, [Some(true), Some(false), None, Some(true)]);
    assert_eq!(reserved[2]["status"], 404);
    let (first, last) = (token(&reserved[0]), token(&reserved[3]));

    let extend = |hold: &str, cost: u64| json!({"hold": hold, "cost": cost, "for": "2h"});
    let body = json!([extend(&first, 0), extend(&last, 1), extend("none", 1)]);
    let extended = server.post_valid("/v1/extend/batch", &body, "ExtendAnswers");
    assert_eq!((&extended[0]["allowed"], &extended[1]["allowed"]), (&json!(true), &json!(false)));
    assert_eq!(extended[2]["status"], 400);

    let settle = |hold: &str, cost: u64| json!({"hold": hold, "cost": cost});
    let body = json!([settle(&first, 500), settle(&first, 500), settle(&last, 0)]);
    let settled = server.post_valid("/v1/settle/batch", &body, "SettleAnswers");
    assert_eq!(
        (&settled[0]["charged"], &settled[1]["hold_state"]),
        (&json!(500), &json!("unknown"))
    );
    assert_eq!((&settled[2]["charged"], server.remaining("tpm")), (&json!(0), 500));
}

#[test]
fn operations_on_holds_are_counted() {
    let server = server();
    let hold = server.hold("tpm", 400, "1h");
    server.reserve("tpm", 601, "1h");
    server.extend(&hold, 100, "1h");
    server.extend(&hold, 501, "1h");
    server.settle_part(&hold, 10);
    server.settle(&hold, 20);
    server.settle(&hold, 20);
    server.settle(&server.hold("tpm", 1, "1us"), 1);
    let page = scrape(&server);
    for (operation, outcome, want) in [
        ("reserve", "allowed", 2.0),
        ("reserve", "denied", 1.0),
        ("reserve", "degraded", 0.0),
        ("extend", "allowed", 1.0),
        ("extend", "denied", 1.0),
        ("settle", "kept", 1.0),
        ("settle", "settled", 1.0),
        ("settle", "unknown", 1.0),
        ("settle", "expired", 1.0),
        ("settle", "failed", 0.0),
    ] {
        let labels = [("limit", "tpm"), ("operation", operation), ("outcome", outcome)];
        let found = page.value("tollgate_limit_hold_operations_total", &labels);
        assert_eq!(found, want, "{operation} {outcome}");
    }
    let decisions = |outcome| {
        let labels = [("limit", "tpm"), ("outcome", outcome), ("degraded", "false")];
        page.value("tollgate_limit_decisions_total", &labels)
    };
    assert_eq!((decisions("allowed"), decisions("denied")), (2.0, 1.0));
    let units = page.of("tollgate_limit_hold_units_total");
    assert!(units.map(|sample| &sample.labels["limit"]).all(|limit| limit == "tpm"));
    let requests = |endpoint| {
        page.value("tollgate_requests_total", &[("endpoint", endpoint), ("status", "200")])
    };
    assert_eq!((requests("reserve"), requests("settle"), requests("extend")), (3.0, 4.0, 2.0));
}

/// A limit of each kind that an LLM gateway has: requests and jobs of a team, and tokens of the team and of all teams.
const RULES: &str = "
limits:
  requests: fixed-window limit=10 window=366d
  jobs: concurrency limit=2 for=5m
  tokens: fixed-window limit=1000 window=366d
  pro-tokens: fixed-window limit=5000 window=366d
  dollars: fixed-window limit=100 window=366d
rules:
  - { name: requests, domain: llm, key: [team], limit: requests }
  - { name: jobs, domain: llm, key: [team], limit: jobs }
  - name: tokens
    domain: llm
    key: [team]
    limit: { by: tier, tiers: { pro: pro-tokens }, default: tokens }
    cost: { reserve: { attribute: estimated_tokens, default: 100 } }
    hold_for: 2m
  - { name: dollars, domain: llm, key: [], limit: dollars, cost: { reserve: 5 } }
  - { name: exports, domain: batch, key: [job], limit: jobs }
";

fn llm_server() -> ServerProcess {
    let file = file(RULES);
    ServerProcess::start(&["--config", file.path().to_str().unwrap()])
}

impl ServerProcess {
    fn reserve_by_rules(&self, attributes: Value, more: &Value) -> Value {
        let mut body = json!({"domain": "llm", "attributes": attributes});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post_valid("/v1/reserve", &body, "ReserveAnswer")
    }

    /// Returns what remains of the keys of the four rules: requests, jobs, tokens and dollars.
    fn remaining_by_rule(&self) -> [u64; 4] {
        ["requests", "jobs", "tokens", "dollars"].map(|rule| {
            let key = if rule == "dollars" { "" } else { "team=7" };
            let peek = self.get(&format!("/v1/limits/llm%2F{rule}/keys/{key}")).send().unwrap();
            body_of(peek)["limits"][0]["decision"]["remaining"].as_u64().unwrap()
        })
    }
}

#[test]
fn reservation_by_rules_holds_some_and_charges_the_others() {
    let server = llm_server();
    let reserved =
        server.reserve_by_rules(json!({"team": "7", "estimated_tokens": "400"}), &json!({}));
    assert_eq!((&reserved["allowed"], &reserved["rule"]), (&json!(true), &Value::Null));
    assert_eq!(reserved["hold_expires_after_us"], 60_000_000, "the dollars expire first");
    assert!(reserved["receipt"].is_string(), "of the request, which was charged at once");
    assert_eq!(server.remaining_by_rule(), [9, 1, 600, 95]);
    let hold = token(&reserved);

    let body = json!({"hold": hold, "cost": 250, "costs": {"dollars": 2}});
    let settled = server.post_valid("/v1/settle", &body, "SettleAnswer");
    assert_eq!((&settled["allowed"], charged(&settled)), (&json!(true), [252, 0, 0]));
    for (at, (rule, units)) in
        [("jobs", 0), ("tokens", 250), ("dollars", 2)].into_iter().enumerate()
    {
        let own = &settled["rules"][at];
        assert_eq!((own["rule"].as_str(), charged(own)), (Some(rule), [units, 0, 0]));
    }
    assert_eq!(server.remaining_by_rule(), [9, 2, 750, 98]);
    let again = server.post_valid("/v1/settle", &body, "SettleAnswer");
    assert_eq!((&again["allowed"], &again["hold_state"]), (&json!(false), &json!("unknown")));
    let refund = json!({"receipt": settled["receipt"]}).to_string();
    assert_eq!(body_of(server.post("/v1/refund", refund).send().unwrap())["refunded"], 252);
    assert_eq!(server.remaining_by_rule(), [9, 2, 1_000, 100]);
}

#[test]
fn reservation_that_one_rule_refuses_holds_and_charges_nothing() {
    let server = llm_server();
    let request = json!({"team": "7"});
    let refused = server.reserve_by_rules(request.clone(), &json!({"cost": 101}));
    assert_eq!((&refused["allowed"], &refused["rule"]), (&json!(false), &json!("dollars")));
    assert!(refused.get("hold").is_none() && refused.get("hold_expires_after_us").is_none());
    assert_eq!(server.remaining_by_rule(), [10, 2, 1_000, 100]);
    let holds =
        [(); 2].map(|()| token(&server.reserve_by_rules(request.clone(), &json!({"for": "1h"}))));
    let refused = server.reserve_by_rules(request, &json!({}));
    assert_eq!((&refused["allowed"], &refused["rule"]), (&json!(false), &json!("jobs")));
    assert!(refused["retry_after_us"].as_u64().is_some_and(|wait| wait > 3_500_000_000));
    for hold in holds {
        assert_eq!(server.settle(&hold, 0)["allowed"], true);
    }
    assert_eq!(server.remaining_by_rule(), [8, 2, 1_000, 100]);
    let page = scrape(&server);
    let count = |rule, operation, outcome| {
        let labels =
            [("domain", "llm"), ("rule", rule), ("operation", operation), ("outcome", outcome)];
        page.value("tollgate_hold_operations_total", &labels)
    };
    assert_eq!(count("jobs", "reserve", "allowed"), 2.0);
    assert_eq!(
        (count("jobs", "reserve", "denied"), count("dollars", "reserve", "denied")),
        (1.0, 1.0)
    );
    assert_eq!(count("tokens", "settle", "settled"), 2.0);
    let held = [("domain", "llm"), ("rule", "tokens"), ("kind", "held")];
    assert_eq!(page.value("tollgate_hold_units_total", &held), 200.0);
}

#[test]
fn settlement_in_part_by_rules_keeps_the_place_of_a_concurrency_limit() {
    let server = llm_server();
    let hold = token(&server.reserve_by_rules(json!({"team": "7"}), &json!({"for": "1h"})));
    let body = json!({"hold": hold, "costs": {"tokens": 30, "dollars": 1}, "keep": true});
    let kept = server.post_valid("/v1/settle", &body, "SettleAnswer");
    assert_eq!(charged(&kept), [31, 0, 0]);
    assert_eq!(server.remaining_by_rule(), [9, 1, 900, 95]);
    assert_eq!(charged(&server.settle(&hold, 40)), [10 + 39, 35, 0]);
    assert_eq!(server.remaining_by_rule(), [9, 2, 960, 60]);
}

#[test]
fn extension_by_rules_is_for_all_of_them_or_for_none() {
    let server = llm_server();
    let hold = token(&server.reserve_by_rules(json!({"team": "7"}), &json!({"for": "1h"})));
    let extended = server.extend(&hold, 50, "2h");
    assert_eq!(
        (&extended["allowed"], &extended["rules"].as_array().unwrap().len()),
        (&json!(true), &3)
    );
    assert_eq!(extended["hold_expires_after_us"], 7_200_000_000_u64);
    assert_eq!(server.remaining_by_rule(), [9, 1, 850, 45]);
    let refused = server.extend(&hold, 46, "2h");
    assert_eq!(
        (&refused["allowed"], &refused["rules"][2]["allowed"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(refused["rules"][1]["allowed"], true, "the tokens alone would fit");
    assert_eq!(server.remaining_by_rule(), [9, 1, 850, 45]);
    assert_eq!(server.settle(&token(&extended), 1)["allowed"], true);
}

/// The limit of a rule depends on the tier of the request, which only the token knows.
#[test]
fn extension_by_rules_is_under_the_limit_of_the_tier() {
    let server = llm_server();
    let request = json!({"domain": "llm", "attributes": {"team": "7"}, "verified": {"tier": "pro"}, "cost": 90});
    let reserved = server.post_valid("/v1/reserve", &request, "ReserveAnswer");
    let hold = token(&reserved);
    let body = json!({"hold": hold, "costs": {"tokens": 1_500, "dollars": 90}, "keep": true});
    assert_eq!(server.post_valid("/v1/settle", &body, "SettleAnswer")["excess"], 1_410);
    let extended = server.extend(&hold, 10, "1h");
    assert_eq!(
        (&extended["allowed"], &extended["rules"][1]["limit"]),
        (&json!(true), &json!(5_000)),
        "{extended}"
    );
}

#[test]
fn costs_of_a_settlement_name_rules_of_the_hold() {
    let server = llm_server();
    let hold = token(&server.reserve_by_rules(json!({"team": "7"}), &json!({"for": "1h"})));
    for (body, want) in [
        (json!({"hold": hold, "costs": {"tokens": 1}}), "no cost is given for the rule `dollars`"),
        (
            json!({"hold": hold, "cost": 1, "costs": {"requests": 1}}),
            "no units of a rule `requests`",
        ),
        (json!({"hold": hold, "cost": 1, "costs": {"token": 1}}), "no units of a rule `token`"),
        (
            json!({"hold": hold, "cost": 1, "costs": {"tokens": 0.5}}),
            "invalid value: floating point `0.5`",
        ),
        (json!({"hold": hold, "cost": 1, "costs": [1]}), "invalid type: sequence"),
        (json!({"hold": hold, "costs": {}}), "no cost is given for the rule `tokens`"),
        (
            json!({"hold": hold, "cost": 1, "costs": {"jobs": 1}}),
            "costs: the rule `jobs` holds a place of a concurrency limit, which costs nothing",
        ),
    ] {
        let (status, detail) = server.problem_of("/v1/settle", &body);
        assert!(status == 400 && detail.contains(want), "{body}: {detail}");
    }
    let by_limit =
        server.post_valid("/v1/reserve", &json!({"limit": "tokens", "key": "a"}), "ReserveAnswer");
    let body = json!({"hold": token(&by_limit), "costs": {"tokens": 1}});
    assert!(server.problem_of("/v1/settle", &body).1.contains("no units of a rule `tokens`"));
    assert_eq!(server.settle(&hold, 1)["allowed"], true);
}

#[test]
fn reservation_that_no_rule_holds_units_for_has_a_hold_too() {
    let file = file(
        "limits: { requests: fixed-window limit=10 window=366d }\nrules: [{ name: requests, domain: llm, key: [], limit: requests }]\n",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let reserved = server.reserve_by_rules(json!({}), &json!({}));
    assert_eq!((&reserved["allowed"], &reserved["remaining"]), (&json!(true), &json!(9)));
    assert!(reserved.get("hold_expires_after_us").is_none(), "{reserved}");
    let hold = token(&reserved);
    let settled = server.settle(&hold, 5);
    assert_eq!((&settled["allowed"], charged(&settled)), (&json!(true), [0, 0, 0]));
    assert_eq!(server.extend(&hold, 5, "1h")["allowed"], true);
}

#[test]
fn reservation_whose_token_would_be_too_long_holds_and_charges_nothing() {
    let file = file(
        "limits: { requests: fixed-window limit=10 window=366d, tokens: fixed-window limit=100 window=366d }
rules:
  - { name: requests, domain: llm, key: [], limit: requests }
  - { name: by-day, domain: llm, key: [team], limit: tokens, cost: { reserve: 5 } }
  - { name: by-month, domain: llm, key: [team], limit: tokens, cost: { reserve: 5 } }
",
    );
    let server = ServerProcess::start(&["--config", file.path().to_str().unwrap()]);
    let team = "x".repeat(2_500);
    let body = json!({"domain": "llm", "attributes": {"team": team}});
    let (status, detail) = server.problem_of("/v1/reserve", &body);
    assert_eq!(status, 400, "{detail}");
    assert!(detail.contains("too long keys"), "{detail}");
    for (rule, key, remaining) in [("requests", "", 10), ("by-day", &*format!("team={team}"), 100)]
    {
        let peek = server.get(&format!("/v1/limits/llm%2F{rule}/keys/{key}")).send().unwrap();
        assert_eq!(body_of(peek)["limits"][0]["decision"]["remaining"], remaining, "{rule}");
    }
}
