//! Units that are reserved and settled.

use serde_json::{Value, json};

use super::{ALGORITHMS, PlaygroundClient, on_each_store, slow_config};
use crate::check::problem;
use crate::eventually::eventually;
use crate::openapi::assert_valid;
use crate::server::body_of;

/// The number of holds that a session can have.
const MAX_HOLDS: usize = 24;

impl PlaygroundClient<'_> {
    fn reserve(&mut self, algorithm: &str, body: Value) -> Value {
        let answer = self.ask(&format!("{algorithm}/reserve"), body);
        assert_valid("PlaygroundReservation", &answer);
        answer
    }

    fn settle(&mut self, algorithm: &str, hold: u64, used: u64) -> Value {
        let body = json!({"hold": hold, "used": used});
        let answer = self.ask(&format!("{algorithm}/settle"), body);
        assert_valid("PlaygroundSettlement", &answer);
        answer
    }

    fn standing(&mut self, algorithm: &str, config: &Value) -> Value {
        let state = self.ask("state", json!({"config": {algorithm: config}}));
        assert_valid("PlaygroundState", &state);
        state["algorithms"][algorithm].clone()
    }
}

/// Returns the units that the state of an algorithm shows as spent.
fn spent(standing: &Value) -> f64 {
    let state = &standing["state"];
    let number =
        ["/window/spent", "/pair/current", "/level"].iter().find_map(|at| state.pointer(at));
    match number {
        Some(number) => number.as_f64().unwrap(),
        None => state["entries"].as_array().unwrap().len() as f64,
    }
}

#[test]
fn reserved_units_are_held_until_they_are_settled() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let config = slow_config(algorithm, 10);
            let mut client = PlaygroundClient::new(server);
            let body = json!({"config": config, "units": 3, "seconds": 60});
            let reserved = client.reserve(algorithm, body);
            let want = json!({
                "allowed": true, "remaining": 7, "limit": 10, "retryAfter": null, "hold": 1, "expiresIn": 60.0,
            });
            assert_eq!(reserved, want, "{algorithm}");
            let held = client.standing(algorithm, &config);
            assert_eq!((&held["remaining"], spent(&held)), (&json!(7), 0.0), "{algorithm}");
            assert_eq!(
                (&held["holds"][0]["hold"], &held["holds"][0]["units"]),
                (&json!(1), &json!(3))
            );
            let left_us =
                held["holds"][0]["expires_us"].as_u64().unwrap() - held["now_us"].as_u64().unwrap();
            assert!(left_us > 0 && left_us <= 60_000_000, "{left_us}");
            let refused = client.reserve(algorithm, json!({"config": config, "units": 8}));
            assert_eq!((&refused["allowed"], &refused["hold"]), (&json!(false), &Value::Null));
            assert!(refused["retryAfter"].as_f64().unwrap() > 1.0, "{refused}");
            let never = client.reserve(algorithm, json!({"config": config, "units": 11}));
            assert_eq!((&never["allowed"], &never["retryAfter"]), (&json!(false), &Value::Null));
            let request = client.ask(algorithm, json!({"config": config}));
            assert_eq!((&request["allowed"], &request["remaining"]), (&json!(true), &json!(6)));

            let settled = client.settle(algorithm, 1, 2);
            let want = json!({"settled": true, "ended": null, "charged": 2, "excess": 0, "cut": 0});
            assert_eq!(settled, want, "{algorithm}");
            let after = client.standing(algorithm, &config);
            assert_eq!(
                (&after["remaining"], &after["holds"]),
                (&json!(7), &json!([])),
                "{algorithm}"
            );
            assert!((spent(&after) - 3.0).abs() < 0.5, "{after}");
            let again = client.settle(algorithm, 1, 2);
            assert_eq!((&again["settled"], &again["ended"]), (&json!(false), &json!("unknown")));
            assert_eq!(client.standing(algorithm, &config)["remaining"], 7, "{algorithm}");
        }
    });
}

#[test]
fn settlement_above_its_hold_is_a_debt_of_at_most_one_limit() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let config = slow_config(algorithm, 10);
            for (used, charged, excess, cut) in [(3, 3, 0, 0), (12, 12, 9, 0), (20, 13, 10, 7)] {
                let mut client = PlaygroundClient::new(server);
                client.reserve(algorithm, json!({"config": config, "units": 3}));
                let settled = client.settle(algorithm, 1, used);
                let want = json!({
                    "settled": true, "ended": null, "charged": charged, "excess": excess, "cut": cut,
                });
                assert_eq!(settled, want, "{algorithm}");
                let after = client.standing(algorithm, &config);
                assert_eq!(after["remaining"], 10_u64.saturating_sub(charged), "{algorithm}");
                assert!((spent(&after) - charged as f64).abs() < 0.5, "{after}");
            }
        }
    });
}

#[test]
fn hold_that_expires_is_spent() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let config = slow_config(algorithm, 10);
            let mut client = PlaygroundClient::new(server);
            client.reserve(algorithm, json!({"config": config, "units": 3, "seconds": 0.1}));
            let ended = eventually("the hold expires", || {
                let standing = client.standing(algorithm, &config);
                standing["holds"].as_array().unwrap().is_empty().then_some(standing)
            });
            assert_eq!(ended["remaining"], 7, "{algorithm}");
            assert!((spent(&ended) - 3.0).abs() < 0.5, "{ended}");
            let settled = client.settle(algorithm, 1, 1);
            assert_eq!(
                (&settled["settled"], &settled["ended"]),
                (&json!(false), &json!("expired"))
            );
            assert_eq!(client.standing(algorithm, &config)["remaining"], 7, "{algorithm}");
        }
    });
}

#[test]
fn job_has_a_place_until_it_ends_or_its_hold_expires() {
    on_each_store(|server, _| {
        let mut client = PlaygroundClient::new(server);
        let config = json!({"maxConcurrent": 2, "holdSeconds": 600});
        for (number, remaining) in [(1, 1), (2, 0)] {
            let started = client.reserve("concurrency", json!({"config": config}));
            assert_eq!(
                (&started["hold"], &started["remaining"]),
                (&json!(number), &json!(remaining))
            );
            assert_eq!(started["expiresIn"], 600.0);
        }
        let refused = client.reserve("concurrency", json!({"config": config}));
        assert_eq!((&refused["allowed"], &refused["hold"]), (&json!(false), &Value::Null));
        let wait = refused["retryAfter"].as_f64().unwrap();
        assert!(wait > 500.0 && wait <= 600.0, "until the first place expires: {wait}");
        let full = client.standing("concurrency", &config);
        assert_eq!((&full["remaining"], &full["state"]), (&json!(0), &json!("held_only")));
        assert_eq!(full["decides"]["hold_us"], 600_000_000);

        // The units of a job are not charged.
        let ended = client.settle("concurrency", 1, 5);
        let want = json!({"settled": true, "ended": null, "charged": 0, "excess": 0, "cut": 0});
        assert_eq!(ended, want);
        let short = client.reserve("concurrency", json!({"config": config, "seconds": 0.1}));
        assert_eq!((&short["allowed"], &short["expiresIn"]), (&json!(true), &json!(0.1)));
        eventually("the place is free again", || {
            (client.standing("concurrency", &config)["remaining"] == 1).then_some(())
        });
        let holds = &client.standing("concurrency", &config)["holds"];
        assert_eq!((holds.as_array().unwrap().len(), &holds[0]["hold"]), (1, &json!(2)));
    });
}

#[test]
fn session_has_a_bounded_number_of_holds() {
    on_each_store(|server, _| {
        let mut client = PlaygroundClient::new(server);
        let config = json!({"maxConcurrent": 1_000, "holdSeconds": 600});
        for _ in 1..MAX_HOLDS {
            client.reserve("concurrency", json!({"config": config}));
        }
        // A refused reservation does not count.
        assert_eq!(client.reserve("fixed-window", json!({"units": 11}))["hold"], Value::Null);
        client.reserve("token-bucket", json!({"seconds": 0.1}));
        let refused = client.send("concurrency/reserve", "{}");
        if refused.status() == 429 {
            assert_eq!(refused.headers()["retry-after"], "1");
            let (_, detail) = problem(refused);
            assert!(
                detail.contains("this session has 24 open holds, and cannot have more"),
                "{detail}"
            );
        }
        // An expired hold does not count.
        eventually("the hold of the bucket expires", || {
            let response = client.send("token-bucket/reserve", json!({"seconds": 60}).to_string());
            (response.status() == 200 && body_of(response)["allowed"] == true).then_some(())
        });
        let refused = client.send("concurrency/reserve", "{}");
        assert_eq!(refused.status(), 429);
        let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((30..=60).contains(&wait), "until the first hold expires: {wait}");
        assert_eq!(client.settle("concurrency", 7, 0)["settled"], true);
        assert_eq!(client.reserve("token-bucket", json!({"seconds": 60}))["allowed"], true);
        // Another session has holds of its own.
        assert_eq!(PlaygroundClient::new(server).reserve("token-bucket", json!({}))["hold"], 1);
    });
}

#[test]
fn reset_forgets_the_holds_of_the_session() {
    on_each_store(|server, _| {
        let (mut client, mut other) =
            (PlaygroundClient::new(server), PlaygroundClient::new(server));
        for own in [&mut client, &mut other] {
            own.reserve("token-bucket", json!({"units": 3}));
            own.reserve("concurrency", json!({}));
        }
        // A number belongs to its session and its algorithm.
        assert_eq!(client.settle("concurrency", 1, 0)["ended"], "unknown");
        client.ask("reset", json!({}));
        for algorithm in ["token-bucket", "concurrency"] {
            let standing = client.standing(algorithm, &json!({}));
            assert_eq!((&standing["remaining"], &standing["holds"]), (&json!(10), &json!([])));
        }
        assert_eq!(client.settle("token-bucket", 1, 3)["ended"], "unknown");
        assert_eq!(
            client.reserve("token-bucket", json!({}))["hold"],
            3,
            "numbers are not used again"
        );
        // The forgotten holds do not count towards the maximum.
        for _ in 1..MAX_HOLDS {
            let body = json!({"config": {"maxConcurrent": 1_000}, "seconds": 600});
            assert_eq!(client.reserve("concurrency", body)["allowed"], true);
        }
        assert_eq!(other.standing("concurrency", &json!({}))["remaining"], 9);
        assert_eq!(other.settle("token-bucket", 1, 3)["charged"], 3);
    });
}

#[test]
fn reservation_has_the_headers_that_a_client_would_see() {
    on_each_store(|server, _| {
        let mut client = PlaygroundClient::new(server);
        let config = json!({"maxConcurrent": 1, "holdSeconds": 600});
        let body = json!({"config": config}).to_string();
        let started = client.send("concurrency/reserve", body.clone());
        assert_eq!(started.headers()["x-ratelimit-remaining"], "0");
        assert!(!started.headers().contains_key("retry-after"));
        let refused = client.send("concurrency/reserve", body);
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (200, &"600".parse().unwrap())
        );
    });
}
