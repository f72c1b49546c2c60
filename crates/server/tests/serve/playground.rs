//! `/api/rate-limit`: the playground.
//!
//! - `sessions`: each session has its own counters; `hostile`: bad requests; `compare`: the same traffic for all
//! - `holds`: units that are reserved and settled

mod compare;
mod holds;
mod hostile;
mod sessions;

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, SystemTime};

use reqwest::blocking::{Body, Response};
use serde_json::{Value, json};
use tollgate_launcher::{Flavour, Launch};

use crate::check::problem;
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

const ALGORITHMS: [&str; 5] = [
    "fixed-window",
    "sliding-window-log",
    "sliding-window-counter",
    "token-bucket",
    "leaky-bucket",
];

const FIRST: &str = r#"{"allowed":true,"remaining":9,"limit":10,"retryAfter":null,"delay":null}"#;

/// Runs a test in memory and on a Redis, whose URL it gets.
fn on_each_store(test: impl Fn(&ServerProcess, Option<&str>)) {
    test(&ServerProcess::start(&[]), None);
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    test(&on_redis(&redis.url()), Some(&redis.url()));
}

/// Starts a server with a long store deadline, because the machine can be busy with other tests.
fn on_redis(url: &str) -> ServerProcess {
    ServerProcess::start(&["--store", url, "--store-deadline", "20s"])
}

/// A client that stores its cookie.
struct PlaygroundClient<'a> {
    server: &'a ServerProcess,
    cookie: Option<String>,
}

impl<'a> PlaygroundClient<'a> {
    fn new(server: &'a ServerProcess) -> PlaygroundClient<'a> {
        PlaygroundClient { server, cookie: None }
    }

    fn send(&mut self, path: &str, body: impl Into<String>) -> Response {
        let request = self.server.post(&format!("/api/rate-limit/{path}"), body);
        let request = match &self.cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        };
        let response = request.send().unwrap();
        if let Some(cookie) = response.headers().get("set-cookie") {
            let pair = cookie.to_str().unwrap().split(';').next();
            self.cookie = pair.map(str::to_owned);
        }
        response
    }

    /// Sends a body and returns the answer, which must have status 200.
    fn ask(&mut self, path: &str, body: Value) -> Value {
        let response = self.send(path, body.to_string());
        let status = response.status();
        let answer = body_of(response);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    /// Sends a burst and returns the answer to each of its requests.
    fn burst(&mut self, algorithm: &str, config: &Value, count: u64) -> Vec<Value> {
        let body = json!({"config": config, "count": count});
        let answers = self.ask(&format!("{algorithm}/burst"), body);
        let answers = answers.as_array().unwrap().clone();
        assert_eq!(answers.len() as u64, count);
        assert_valid("PlaygroundDecision", answers.first().unwrap());
        assert_valid("PlaygroundDecision", answers.last().unwrap());
        answers
    }
}

/// The length in seconds of a window that does not end while the tests run: the prime number of several whose current
/// window ends last. Windows whose lengths are different primes rarely end at the same time.
static LONG_WINDOW_S: LazyLock<u64> = LazyLock::new(|| {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    [3_511, 3_539, 3_547, 3_571, 3_593]
        .into_iter()
        .max_by_key(|length| length - now % length)
        .unwrap()
});

/// Returns the parameters of a limit of `size`, of which nothing is refilled while a test runs.
fn slow_config(algorithm: &str, size: u64) -> Value {
    match algorithm {
        "token-bucket" => json!({"maxTokens": size, "refillRate": 0.01}),
        "leaky-bucket" => json!({"capacity": size, "leakRate": 0.01}),
        _ => json!({"maxRequests": size, "windowSeconds": *LONG_WINDOW_S}),
    }
}

#[test]
fn clients_of_the_tutorial_work_unchanged() {
    on_each_store(|server, _| {
        // Without a body, and with every kind of empty body, each with and without a content type.
        let post =
            |path: &str| server.request(reqwest::Method::POST, &format!("/api/rate-limit/{path}"));
        let empty = || Body::new(std::io::empty());
        let typed = |path, body: &'static str| {
            post(path).header("content-type", "application/json").body(body)
        };
        for algorithm in ALGORITHMS {
            let requests = [
                post(algorithm),
                post(algorithm).body(empty()),
                post(algorithm).header("content-type", "text/plain"),
                typed(algorithm, ""),
                post(algorithm).header("content-type", "application/json").body(empty()),
                typed(algorithm, "{}"),
                typed(algorithm, r#"{"config":{}}"#),
                typed(algorithm, r#"{"config":null}"#),
                typed(algorithm, "null"),
            ];
            for request in requests {
                let shown = format!("{request:?}");
                let response = request.send().unwrap();
                assert_eq!(response.status(), 200, "{shown}");
                assert_eq!(response.headers()["content-type"], "application/json");
                assert_eq!(response.text().unwrap(), FIRST, "{shown}");
            }
            let answers = body_of(post(&format!("{algorithm}/burst")).send().unwrap());
            let answers = answers.as_array().unwrap();
            assert_eq!(answers.len(), 10, "{algorithm}");
            assert_eq!(
                answers[0].to_string(),
                serde_json::from_str::<Value>(FIRST).unwrap().to_string()
            );
        }
        // The tutorial's page sends the parameters of one algorithm. Other clients can send all parameters to every algorithm.
        let of_all = json!({
            "maxRequests": 3, "windowSeconds": 3, "maxTokens": 3, "refillRate": 0.1, "capacity": 3, "leakRate": 0.1,
            "mode": "policing",
        });
        for algorithm in ALGORITHMS {
            for config in [slow_config(algorithm, 3), of_all.clone()] {
                let mut client = PlaygroundClient::new(server);
                let answer = client.ask(algorithm, json!({"config": config}));
                assert_eq!((&answer["limit"], &answer["remaining"]), (&json!(3), &json!(2)));
                assert_eq!(PlaygroundClient::new(server).burst(algorithm, &config, 5).len(), 5);
            }
        }
        assert_eq!(post("reset").send().unwrap().text().unwrap(), r#"{"ok":true}"#);
        let (status, detail) = problem(post("unknown-algo").send().unwrap());
        assert_eq!(status, 400);
        let mut names = ALGORITHMS.iter().chain([&"concurrency"]);
        assert!(names.all(|name| detail.contains(name)), "{detail}");
        assert_eq!(problem(post("unknown-algo/burst").send().unwrap()).0, 400);
    });
}

#[test]
fn burst_spends_the_limit_and_then_gets_retry_times() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let config = slow_config(algorithm, 10);
            let mut client = PlaygroundClient::new(server);
            let answers = client.burst(algorithm, &config, 12);
            for (nth, answer) in answers.iter().enumerate() {
                assert_eq!(answer["allowed"], nth < 10, "{algorithm} {nth}");
                assert_eq!(answer["remaining"], 9_usize.saturating_sub(nth), "{algorithm} {nth}");
                assert_eq!(answer["retryAfter"].is_number(), nth >= 10, "{algorithm} {nth}");
                assert_eq!(answer["delay"], Value::Null, "{algorithm} {nth}");
            }
            let wait = answers[11]["retryAfter"].as_f64().unwrap();
            let most = config["windowSeconds"].as_f64().unwrap_or(100.0);
            // A sliding window counter can require a wait until some time in the next window.
            let most = if algorithm == "sliding-window-counter" { 2.0 * most } else { most };
            assert!(wait > 30.0 && wait <= most, "{algorithm}: {wait}");
            assert_eq!(client.ask("reset", json!({})), json!({"ok": true}));
            assert_eq!(
                client.ask(algorithm, json!({"config": config}))["remaining"],
                9,
                "{algorithm}"
            );
        }
    });
}

#[test]
fn request_is_allowed_after_its_retry_time() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let config = match algorithm {
                "token-bucket" => json!({"maxTokens": 2, "refillRate": 10}),
                "leaky-bucket" => json!({"capacity": 2, "leakRate": 10}),
                _ => json!({"maxRequests": 2, "windowSeconds": 0.2}),
            };
            let mut client = PlaygroundClient::new(server);
            // All requests of a burst have the same time, so that the third request is refused on every machine.
            let answers = client.burst(algorithm, &config, 3);
            let wait = answers[2]["retryAfter"].as_f64().unwrap();
            assert!(wait > 0.0 && wait <= 0.4, "{algorithm}: {wait}");
            thread::sleep(Duration::from_secs_f64(wait));
            assert_eq!(
                client.ask(algorithm, json!({"config": config}))["allowed"],
                true,
                "{algorithm}"
            );
        }
    });
}

#[test]
fn shaped_requests_wait_and_leave_one_by_one() {
    on_each_store(|server, _| {
        let config = json!({"capacity": 4, "leakRate": 0.01, "mode": "shaping"});
        let answers = PlaygroundClient::new(server).burst("leaky-bucket", &config, 5);
        for (nth, answer) in answers[..4].iter().enumerate() {
            assert_eq!(answer["allowed"], true);
            assert_eq!(answer["retryAfter"], Value::Null);
            let delay = answer["delay"].as_f64().unwrap();
            assert!((delay - 100.0 * nth as f64).abs() < 5.0, "{nth}: {delay}");
        }
        assert_eq!(answers[4]["allowed"], false);
        assert_eq!(answers[4]["delay"], Value::Null);
        let wait = answers[4]["retryAfter"].as_f64().unwrap();
        assert!(wait > 95.0 && wait <= 100.0, "{wait}");
    });
}

#[test]
fn parameters_may_change_between_requests_and_charges_remain() {
    on_each_store(|server, _| {
        for algorithm in ALGORITHMS {
            let mut client = PlaygroundClient::new(server);
            assert_eq!(
                client.burst(algorithm, &slow_config(algorithm, 10), 11)[10]["allowed"],
                false
            );
            let more = client.ask(algorithm, json!({"config": slow_config(algorithm, 20)}));
            assert_eq!(
                more["allowed"], true,
                "{algorithm}: a refusal under the old parameters is not cached"
            );
            assert_eq!(more["remaining"], 9, "{algorithm}");
            let less = client.ask(algorithm, json!({"config": slow_config(algorithm, 5)}));
            assert_eq!(
                (&less["allowed"], &less["remaining"]),
                (&json!(false), &json!(0)),
                "{algorithm}"
            );
            // From the smallest to the largest parameters, every state of the counters gives an answer.
            for (size, seconds, rate) in [
                (1, 0.1, 1_000.0),
                (1_000, 3_600.0, 0.01),
                (1, 3_600.0, 0.01),
                (1_000, 0.1, 1_000.0),
            ] {
                let config = json!({
                    "maxRequests": size, "windowSeconds": seconds, "maxTokens": size, "refillRate": rate,
                    "capacity": size, "leakRate": rate, "mode": if size == 1 { "shaping" } else { "policing" },
                });
                for answer in client.burst(algorithm, &config, 50) {
                    assert_eq!(answer["limit"], size, "{algorithm}");
                }
            }
        }
        let mut client = PlaygroundClient::new(server);
        let (policing, mut shaping) =
            (slow_config("leaky-bucket", 10), slow_config("leaky-bucket", 10));
        shaping["mode"] = json!("shaping");
        client.burst("leaky-bucket", &policing, 3);
        let delay = client.burst("leaky-bucket", &shaping, 1)[0]["delay"].as_f64().unwrap();
        assert!((delay - 300.0).abs() < 5.0, "{delay}");
    });
}

#[test]
fn state_agrees_with_the_decisions() {
    on_each_store(|server, redis| {
        let mut client = PlaygroundClient::new(server);
        let config: Value =
            ALGORITHMS.iter().map(|name| ((*name).to_owned(), slow_config(name, 20))).collect();
        let body = json!({"config": config});
        let fresh = client.ask("state", body.clone());
        assert_eq!(fresh["store"], if redis.is_some() { "redis" } else { "memory" });
        for algorithm in ALGORITHMS {
            assert_eq!(fresh["algorithms"][algorithm]["remaining"], 20, "{algorithm}");
            // Three requests at one time, and one at another time.
            client.burst(algorithm, &config[algorithm], 3);
            assert_eq!(client.burst(algorithm, &config[algorithm], 1)[0]["remaining"], 16);
        }
        let state = client.ask("state", body.clone());
        assert_valid("PlaygroundState", &state);
        let length = format!("limit=20 window={}s", *LONG_WINDOW_S);
        for (algorithm, text, spent) in [
            ("fixed-window", format!("fixed-window {length}"), "/window/spent"),
            ("sliding-window-log", format!("sliding-window-log {length}"), "/entries"),
            ("sliding-window-counter", format!("sliding-window-counter {length}"), "/pair/current"),
            ("token-bucket", "token-bucket capacity=20 refill=0.01/s".to_owned(), "/level"),
            (
                "leaky-bucket",
                "leaky-bucket capacity=20 leak=0.01/s mode=policing".to_owned(),
                "/level",
            ),
        ] {
            let own = &state["algorithms"][algorithm];
            assert_eq!((&own["limit"], &own["remaining"]), (&json!(20), &json!(16)), "{own}");
            assert_eq!(text.parse::<tollgate::Limit>().unwrap().to_string(), own["text"], "{own}");
            let now_us = own["now_us"].as_u64().unwrap();
            let spent = match own["state"].pointer(spent).unwrap() {
                Value::Array(entries) => {
                    assert!(entries.iter().all(|at_us| at_us.as_u64().unwrap() <= now_us), "{own}");
                    entries.len() as f64
                }
                number => number.as_f64().unwrap(),
            };
            assert!((spent - 4.0).abs() < 0.2, "{own}");
        }
        let again = client.ask("state", body);
        for algorithm in ALGORITHMS {
            assert_eq!(
                again["algorithms"][algorithm]["remaining"], 16,
                "reading the state costs nothing"
            );
        }
        // Other parameters do not change the spent units.
        let config: Value =
            ALGORITHMS.iter().map(|name| ((*name).to_owned(), slow_config(name, 30))).collect();
        let larger = client.ask("state", json!({"config": config}));
        for algorithm in ALGORITHMS {
            assert_eq!(larger["algorithms"][algorithm]["remaining"], 26, "{algorithm}");
        }
        let entries = &larger["algorithms"]["sliding-window-log"]["state"]["entries"];
        assert_eq!(entries.as_array().unwrap().len(), 4);
        let usual = client.ask("state", json!({}));
        assert_eq!(usual["algorithms"]["fixed-window"]["text"], "fixed-window limit=10 window=10s");
        let text = &usual["algorithms"]["leaky-bucket"]["text"];
        assert_eq!(text, "leaky-bucket capacity=10 leak=1/s mode=policing");
    });
}

#[test]
fn answers_carry_the_headers_that_a_client_would_see() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let config = json!({"config": {"maxTokens": 2, "refillRate": 0.5}});
    let header = |response: &Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    for (remaining, is_allowed) in [("1", true), ("0", true), ("0", false)] {
        let response = client.send("token-bucket", config.to_string());
        let field = |name| header(&response, name);
        assert_eq!(field("ratelimit-policy").unwrap(), r#""playground token-bucket";q=2;w=4"#);
        let left = format!(r#""playground token-bucket";r={remaining};t="#);
        assert!(field("ratelimit").unwrap().starts_with(&left), "{:?}", field("ratelimit"));
        assert_eq!(field("x-ratelimit-limit").unwrap(), "2");
        assert_eq!(field("x-ratelimit-remaining").unwrap(), remaining);
        assert!(field("x-ratelimit-reset").unwrap().parse::<u64>().unwrap() > 1_700_000_000);
        let retry = field("retry-after").map(|seconds| seconds.parse::<f64>().unwrap());
        let answer = body_of(response);
        assert_eq!(answer["allowed"], is_allowed);
        assert_eq!(retry, answer["retryAfter"].as_f64().map(f64::ceil));
    }
    let burst = client.send("token-bucket/burst", config.to_string());
    assert!(header(&burst, "retry-after").is_some(), "the headers are those of the last request");
    let fresh = PlaygroundClient::new(&server).send("token-bucket/burst", r#"{"count":2}"#);
    assert_eq!(header(&fresh, "x-ratelimit-remaining").unwrap(), "8");
    assert_eq!(header(&fresh, "retry-after"), None);
}

#[test]
fn playground_answers_503_without_the_store() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = on_redis(&redis.url());
    let mut client = PlaygroundClient::new(&server);
    client.ask("token-bucket", json!({}));
    redis.kill();
    for path in ["token-bucket", "token-bucket/burst", "reset", "state"] {
        let (status, detail) = problem(client.send(path, "{}"));
        assert_eq!(status, 503, "{path}: {detail}");
    }
    // A comparison needs no store.
    client.ask("compare", json!({}));
}

#[test]
fn playground_can_be_switched_off() {
    let server = ServerProcess::start(&["--no-playground"]);
    for path in [
        "token-bucket",
        "token-bucket/burst",
        "token-bucket/reserve",
        "token-bucket/settle",
        "nope",
        "reset",
        "state",
        "compare",
    ] {
        let (status, detail) = problem(PlaygroundClient::new(&server).send(path, "{}"));
        assert_eq!(status, 404, "{path}");
        assert!(detail.contains("--no-playground"), "{detail}");
    }
    for body in ["", "x", "[]", "{\"config\":1}"] {
        assert_eq!(problem(PlaygroundClient::new(&server).send("compare", body)).0, 404, "{body}");
    }
    assert_eq!(server.get("/").send().unwrap().status(), 200);
    assert_eq!(server.get("/v1/operations").send().unwrap().status(), 200);
}

#[test]
fn playground_uses_no_keys_of_the_store() {
    let server = ServerProcess::start(&[]);
    for algorithm in ALGORITHMS {
        PlaygroundClient::new(&server).burst(algorithm, &slow_config(algorithm, 10), 3);
    }
    let metrics = server.get("/metrics").send().unwrap().text().unwrap();
    assert!(metrics.contains("\ntollgate_keys 0\n"), "{metrics}");
}

#[test]
fn all_sessions_together_have_a_bounded_rate_on_redis() {
    on_each_store(|server, redis| {
        let mut client = PlaygroundClient::new(server);
        let body = json!({"config": slow_config("token-bucket", 1), "count": 50}).to_string();
        let refused = (0..400).map(|_| client.send("token-bucket/burst", body.clone()));
        let refused = refused.into_iter().find(|response| response.status() == 429);
        assert_eq!(refused.is_some(), redis.is_some());
        if let Some(refused) = refused {
            assert!(refused.headers().contains_key("retry-after"));
            assert!(problem(refused).1.contains("too many users"));
        }
    });
}
