//! Holds of several servers that share a Redis.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tollgate_launcher::{Flavour, Launch, Server as Redis};

use crate::check::problem;
use crate::eventually::eventually;
use crate::metrics::scrape;
use crate::server::{ServerProcess, body_of};

/// With a long store deadline, because the machine can be busy.
const CLOSED: &str = "defaults: { on_store_failure: closed, deadline: 30s }\n";

const LIMITS: &str = "
limits:
  tokens: fixed-window limit=1000 window=366d
  jobs: concurrency limit=1 for=1h
  dollars: token-bucket capacity=100 refill=1/30d
rules:
  - { name: tokens, domain: llm, key: [team], limit: tokens, cost: { reserve: 100 } }
  - { name: jobs, domain: llm, key: [team], limit: jobs }
  - { name: dollars, domain: llm, key: [], limit: dollars, cost: { reserve: 5 } }
";

const SECRET: (&str, &str) = ("TOLLGATE_RECEIPT_SECRET", "known to all of these servers");

fn launch() -> Redis {
    Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"))
}

fn start(redis: &Redis, defaults: &str, variables: &[(&str, &str)]) -> ServerProcess {
    let mut file = NamedTempFile::with_suffix(".yaml").unwrap();
    file.write_all(format!("{defaults}{LIMITS}").as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    ServerProcess::start_with(&["--config", path, "--store", &redis.url()], variables)
}

fn send(server: &ServerProcess, path: &str, body: &Value) -> (u16, Value) {
    let response = server.post(path, body.to_string()).send().unwrap();
    (response.status().as_u16(), body_of(response))
}

/// Sends a request that must be answered with 200.
fn answer(server: &ServerProcess, path: &str, body: &Value) -> Value {
    let (status, answer) = send(server, path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn by_rules(hold_for: &str) -> Value {
    json!({"domain": "llm", "attributes": {"team": "7"}, "for": hold_for})
}

fn remaining(server: &ServerProcess) -> [u64; 3] {
    ["tokens", "jobs", "dollars"].map(|rule| {
        let key = if rule == "dollars" { "" } else { "team=7" };
        let peek = server.get(&format!("/v1/limits/llm%2F{rule}/keys/{key}")).send().unwrap();
        body_of(peek)["limits"][0]["decision"]["remaining"].as_u64().unwrap()
    })
}

#[test]
fn hold_is_settled_once_by_any_server_with_the_secret() {
    let redis = launch();
    let servers = [start(&redis, CLOSED, &[SECRET]), start(&redis, CLOSED, &[SECRET])];
    let [one, other] = &servers;
    let stranger = start(&redis, CLOSED, &[]);
    for body in [by_rules("1h"), json!({"limit": "tokens", "key": "a", "cost": 100, "for": "1h"})] {
        let reserved = answer(one, "/v1/reserve", &body);
        let extend = json!({"hold": reserved["hold"], "cost": 20, "for": "1h"});
        let extended = answer(other, "/v1/extend", &extend);
        assert_eq!(extended["allowed"], true, "{extended}");
        let settle = json!({"hold": reserved["hold"], "cost": 15});
        assert_eq!(send(&stranger, "/v1/settle", &settle).0, 400);
        let settled: Vec<Value> = thread::scope(|scope| {
            let (servers, settle) = (&servers, &settle);
            let ask =
                |at: usize| scope.spawn(move || answer(&servers[at % 2], "/v1/settle", settle));
            let asking: Vec<_> = (0..16).map(ask).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        let charged: Vec<_> = settled.iter().filter(|answer| answer["allowed"] == true).collect();
        let others = settled.iter().filter(|answer| answer["hold_state"] == "unknown").count();
        assert_eq!((charged.len(), others), (1, 15), "{settled:?}");
    }
    assert_eq!(remaining(one), [985, 1, 85]);
}

/// A hold is of the store: the death of the server that has reserved it changes nothing.
#[test]
fn place_returns_at_its_expiry_when_the_server_that_reserved_it_was_killed() {
    const HELD_FOR: Duration = Duration::from_millis(700);
    let redis = launch();
    let (holder, other) = (start(&redis, CLOSED, &[SECRET]), start(&redis, CLOSED, &[SECRET]));
    let place = |hold_for: &str| json!({"limit": "jobs", "key": "a", "for": hold_for});
    let before = Instant::now();
    assert_eq!(answer(&holder, "/v1/reserve", &place("700ms"))["allowed"], true);
    let held = Instant::now();
    holder.signal(Signal::KILL);
    holder.wait();
    let freed = loop {
        let asked = Instant::now();
        let reserved = answer(&other, "/v1/reserve", &place("1h"));
        if reserved["allowed"] == true {
            break asked;
        }
        // The wait is exact: it ends when the hold expires.
        let wait = Duration::from_micros(reserved["retry_after_us"].as_u64().unwrap());
        assert!(asked + wait <= held + HELD_FOR && Instant::now() + wait >= before + HELD_FOR);
        thread::sleep(wait);
    };
    assert!(Instant::now() >= before + HELD_FOR, "{:?} after {before:?}", freed - before);
}

#[test]
fn loss_of_state_makes_holds_unknown() {
    let redis = launch();
    let server = start(&redis, CLOSED, &[SECRET]);
    let reserved = answer(&server, "/v1/reserve", &by_rules("1h"));
    let mut admin = redis::Client::open(redis.unix_url()).unwrap().get_connection().unwrap();
    redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
    let settled = answer(&server, "/v1/settle", &json!({"hold": reserved["hold"], "cost": 50}));
    assert_eq!((&settled["allowed"], &settled["hold_state"]), (&json!(false), &json!("unknown")));
    assert_eq!(remaining(&server), [1_000, 1, 100]);
}

#[test]
fn reservation_without_the_store_is_a_503_under_closed() {
    let mut redis = launch();
    let server = start(&redis, "defaults: { on_store_failure: closed, deadline: 3s }\n", &[]);
    let reserved = answer(&server, "/v1/reserve", &by_rules("1h"));
    redis.kill();
    for (path, body) in [
        ("/v1/reserve", by_rules("1h")),
        ("/v1/reserve", json!({"limit": "tokens", "key": "a"})),
        ("/v1/settle", json!({"hold": reserved["hold"], "cost": 50})),
        ("/v1/extend", json!({"hold": reserved["hold"], "for": "1h"})),
    ] {
        let response = server.post(path, body.to_string()).send().unwrap();
        assert!(response.headers().contains_key("retry-after"), "{path}");
        let (status, detail) = problem(response);
        assert!(status == 503 && !detail.contains("127.0.0.1"), "{path}: {detail}");
    }
}

#[test]
fn hold_that_the_failure_policy_admitted_is_settled_without_the_store() {
    let mut redis = launch();
    for policy in ["open", "{ local: { processes: 2 } }"] {
        let defaults = format!("defaults: {{ on_store_failure: {policy} }}\n");
        let server = start(&redis, &defaults, &[SECRET]);
        if policy == "open" {
            redis.kill();
        }
        for body in [by_rules("1h"), json!({"limit": "tokens", "key": "a", "cost": 100})] {
            let reserved = answer(&server, "/v1/reserve", &body);
            assert_eq!((&reserved["allowed"], &reserved["degraded"]), (&json!(true), &json!(true)));
            let extend = json!({"hold": reserved["hold"], "cost": 5, "for": "1h"});
            let extended = answer(&server, "/v1/extend", &extend);
            assert_eq!((&extended["allowed"], &extended["degraded"]), (&json!(true), &json!(true)));
            let settle = json!({"hold": extended["hold"], "cost": 50});
            let settled = answer(&server, "/v1/settle", &settle);
            assert_eq!((&settled["allowed"], &settled["degraded"]), (&json!(true), &json!(true)));
            let is_open = policy == "open";
            assert_eq!(settled["charged"] == 0, is_open, "{settled}");
            assert_eq!(settled.get("receipt"), None);
            let again = answer(&server, "/v1/settle", &settle);
            assert_eq!(again["allowed"] == true, is_open, "{again}");
        }
    }
}

#[test]
fn hold_on_the_share_of_a_server_is_settled_there_and_only_there() {
    let mut redis = launch();
    let defaults = "defaults: { on_store_failure: { local: { processes: 2 } } }\n";
    let servers = [(); 2].map(|()| start(&redis, defaults, &[SECRET]));
    let [one, other] = &servers;
    redis.kill();
    // The share is half of the limit: 500 tokens, one place.
    let by_limit = |cost: u64| json!({"limit": "tokens", "key": "a", "cost": cost, "for": "1h"});
    let by_rules = |cost: u64| json!({"domain": "llm", "attributes": {"team": "7"}, "cost": cost});
    for (body, more, used) in [
        (&by_limit as &dyn Fn(u64) -> Value, 300, 100),
        (&by_rules as &dyn Fn(u64) -> Value, 20, 10),
    ] {
        let reserved = answer(one, "/v1/reserve", &body(25));
        assert_eq!((&reserved["allowed"], &reserved["degraded"]), (&json!(true), &json!(true)));
        let extend = json!({"hold": reserved["hold"], "cost": more, "for": "1h"});
        let settle = json!({"hold": reserved["hold"], "cost": used});
        for (path, body) in [("/v1/extend", &extend), ("/v1/settle", &settle)] {
            let (status, detail) = send(other, path, body);
            let detail = detail["detail"].as_str().unwrap();
            assert!(status == 421 && detail.contains("another server"), "{status}: {detail}");
        }
        let batch = json!([settle]);
        assert_eq!(answer(other, "/v1/settle/batch", &batch)[0]["status"], 421);
        let extended = answer(one, "/v1/extend", &extend);
        assert_eq!((&extended["allowed"], &extended["degraded"]), (&json!(true), &json!(true)));
        let full = answer(one, "/v1/reserve", &body(500));
        assert_eq!((&full["allowed"], &full["degraded"]), (&json!(false), &json!(true)));
        // The first token works too.
        let settled = answer(one, "/v1/settle", &settle);
        assert_eq!((&settled["allowed"], &settled["degraded"]), (&json!(true), &json!(true)));
        assert!(settled["charged"].as_u64().unwrap() >= used, "{settled}");
        let again = answer(one, "/v1/settle", &settle);
        assert_eq!((&again["allowed"], &again["hold_state"]), (&json!(false), &json!("unknown")));
    }
    let page = scrape(one);
    for name in ["tollgate_held_units", "tollgate_open_holds", "tollgate_limit_held_units"] {
        assert_eq!(page.value(name, &[]), 0.0, "{name}");
    }
    // The units that were not used, and the place, are free again.
    let again = answer(one, "/v1/reserve", &by_limit(400));
    assert_eq!((&again["allowed"], &again["remaining"]), (&json!(true), &json!(0)));
    assert_eq!(answer(one, "/v1/reserve", &by_rules(20))["allowed"], true);
}

/// Adds up a metric over servers, for the limit `tokens` by name and for the rules.
fn sums(servers: &[ServerProcess], of_rules: &str, labels: &[(&str, &str)]) -> [f64; 2] {
    let of_limits = of_rules.replacen("tollgate_", "tollgate_limit_", 1);
    let pages: Vec<_> = servers.iter().map(scrape).collect();
    [(of_rules, "rule", "tokens"), (&*of_limits, "limit", "tokens")].map(|(name, label, own)| {
        let labels = [labels, &[(label, own)]].concat();
        pages.iter().map(|page| page.value(name, &labels)).sum()
    })
}

#[test]
fn held_units_are_counted_once_on_several_servers() {
    let redis = launch();
    let servers = [(); 2].map(|()| start(&redis, CLOSED, &[SECRET]));
    let [one, other] = &servers;
    let by_limit = json!({"limit": "tokens", "key": "a", "cost": 100, "for": "1h"});
    for body in [by_rules("1h"), by_limit] {
        let reserved = answer(one, "/v1/reserve", &body);
        let part = json!({"hold": reserved["hold"], "cost": 30, "keep": true});
        answer(other, "/v1/settle", &part);
        answer(one, "/v1/extend", &json!({"hold": reserved["hold"], "cost": 7, "for": "2h"}));
    }
    assert_eq!(sums(&servers, "tollgate_open_holds", &[]), [1.0, 1.0]);
    assert_eq!(sums(&servers, "tollgate_held_units", &[]), [77.0, 77.0]);
    let past = |kind| sums(&servers, "tollgate_hold_units_past_expiry_total", &[("kind", kind)]);
    assert_eq!((past("reserved"), past("ended")), ([0.0; 2], [0.0; 2]));
}

#[test]
fn settled_holds_of_several_servers_add_up_to_none() {
    let redis = launch();
    let servers = [(); 2].map(|()| start(&redis, CLOSED, &[SECRET]));
    let [one, other] = &servers;
    let by_limit = json!({"limit": "tokens", "key": "a", "cost": 100, "for": "1h"});
    for body in [by_rules("1h"), by_limit] {
        let reserved = answer(one, "/v1/reserve", &body);
        let extend = json!({"hold": reserved["hold"], "cost": 5, "for": "1h"});
        let extended = answer(other, "/v1/extend", &extend);
        answer(one, "/v1/settle", &json!({"hold": extended["hold"], "cost": 4, "keep": true}));
        answer(other, "/v1/settle", &json!({"hold": extended["hold"], "cost": 100}));
        // Sent again, it ends nothing.
        answer(one, "/v1/settle", &json!({"hold": extended["hold"], "cost": 100}));
    }
    assert!(sums(&servers[..1], "tollgate_open_holds", &[]).iter().all(|holds| *holds != 0.0));
    assert_eq!(sums(&servers, "tollgate_open_holds", &[]), [0.0; 2]);
    assert_eq!(sums(&servers, "tollgate_held_units", &[]), [0.0; 2]);
}

#[test]
fn hold_that_is_never_settled_is_counted_as_expired() {
    let redis = launch();
    let servers = [(); 2].map(|()| start(&redis, CLOSED, &[SECRET]));
    let [one, other] = &servers;
    for (body, settle) in [
        (by_rules("1us"), None),
        (json!({"limit": "tokens", "key": "a", "cost": 100, "for": "1us"}), None),
        (json!({"limit": "tokens", "key": "b", "cost": 100, "for": "1h"}), Some(50)),
    ] {
        let reserved = answer(one, "/v1/reserve", &body);
        if let Some(used) = settle {
            answer(other, "/v1/settle", &json!({"hold": reserved["hold"], "cost": used}));
        } else {
            // Comes too late, and ends nothing.
            answer(other, "/v1/settle", &json!({"hold": reserved["hold"], "cost": 1}));
        }
    }
    // The slot of these holds is a second wide.
    eventually("the expired holds are counted", || {
        (sums(&servers, "tollgate_open_holds", &[]) == [0.0; 2]).then_some(())
    });
    let expired = |of: &str| {
        let name = format!("tollgate_{of}_past_expiry_total");
        let [reserved, ended] =
            ["reserved", "ended"].map(|kind| sums(&servers, &name, &[("kind", kind)]));
        [reserved[0] - ended[0], reserved[1] - ended[1]]
    };
    assert_eq!(expired("holds"), [1.0, 1.0]);
    assert_eq!(expired("hold_units"), [100.0, 100.0]);
}
