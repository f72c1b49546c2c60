//! Malformed and oversized requests to the playground.

use reqwest::Method;
use serde_json::json;

use super::{ALGORITHMS, PlaygroundClient, on_each_store};
use crate::check::problem;
use crate::server::ServerProcess;

const COOKIE: &str = "tollgate_session=0123456789abcdef0123456789abcdef";

/// Sends a body and returns the status and the detail of the answer.
fn send(
    server: &ServerProcess,
    path: &str,
    content_type: Option<&str>,
    body: &[u8],
) -> (u16, String) {
    let request = server.request(Method::POST, &format!("/api/rate-limit/{path}"));
    let request = request.header("cookie", COOKIE).body(body.to_vec());
    let request = match content_type {
        Some(content_type) => request.header("content-type", content_type),
        None => request,
    };
    let (status, detail) = problem(request.send().unwrap());
    let shown = String::from_utf8_lossy(&body[..body.len().min(80)]);
    assert!(detail.len() < 600 && !detail.chars().any(char::is_control), "{shown}: {detail}");
    (status, detail)
}

/// Invalid values for a number of the configuration, with a part of the error's detail.
const INVALID_NUMBERS: [(&str, &str); 15] = [
    ("-1", "too small; use "),
    ("0", "too small; use "),
    ("-1e308", "too small; use "),
    ("1e308", "too large; use "),
    ("18446744073709551616", "too large; use "),
    ("9007199254740993", "too large; use "),
    ("1e999", "number out of range"),
    ("NaN", "expected value"),
    ("Infinity", "expected value"),
    ("null", "expected a number"),
    ("\"10\"", "expected a number"),
    ("\"NaN\"", "expected a number"),
    ("true", "expected a number"),
    ("[1]", "expected a number"),
    ("{\"a\":{}}", "expected a number"),
];

#[test]
fn bad_parameters_are_400_with_a_reason_and_charge_nothing() {
    on_each_store(|server, _| {
        let refused = |path: &str, body: &str, place: &str, want: &str| {
            let (status, detail) = send(server, path, Some("application/json"), body.as_bytes());
            assert_eq!(status, 400, "{path} {body}: {detail}");
            assert!(detail.starts_with(place) && detail.contains(want), "{path} {body}: {detail}");
        };
        let names = [
            "maxRequests",
            "windowSeconds",
            "maxTokens",
            "refillRate",
            "capacity",
            "leakRate",
            "maxConcurrent",
            "holdSeconds",
        ];
        for (nth, name) in names.into_iter().enumerate() {
            // A parameter is checked even if it belongs to another algorithm.
            let algorithm = ALGORITHMS[nth % 5];
            for (value, want) in INVALID_NUMBERS {
                let place = format!("config.{name}: ");
                let body = format!(r#"{{"config":{{"{name}":{value}}}}}"#);
                refused(algorithm, &body, &place, want);
                refused(&format!("{algorithm}/burst"), &body, &place, want);
                refused(&format!("{algorithm}/reserve"), &body, &place, want);
                let place = format!("config.{algorithm}.{name}: ");
                // The place of a number that is out of range does not name the algorithm.
                let place = if want.contains("use") { "config." } else { &place };
                let body = format!(r#"{{"config":{{"{algorithm}":{{"{name}":{value}}}}}}}"#);
                refused("state", &body, place, want);
                refused("compare", &body, place, want);
            }
        }
        for (config, want) in [
            (r#"{"maxRequests":1.5}"#, "config.maxRequests: not a whole number; use 1 to 1000"),
            (r#"{"maxTokens":1001}"#, "config.maxTokens: too large; use 1 to 1000"),
            (r#"{"capacity":999.999}"#, "config.capacity: not a whole number"),
            (r#"{"windowSeconds":0.09}"#, "config.windowSeconds: too small; use 0.1 to 3600"),
            (r#"{"windowSeconds":3601}"#, "config.windowSeconds: too large"),
            (r#"{"leakRate":0.009}"#, "config.leakRate: too small; use 0.01 to 1000"),
            (r#"{"maxConcurrent":0.5}"#, "config.maxConcurrent: too small; use 1 to 1000"),
            (r#"{"holdSeconds":0.09}"#, "config.holdSeconds: too small; use 0.1 to 3600"),
            (
                r#"{"maxrequests":1}"#,
                "config.maxrequests: unknown field `maxrequests`, expected one of",
            ),
            (r#"{"capacity":1,"capacity":2}"#, "config: duplicate field `capacity`"),
            (r#"{"mode":"both"}"#, "expected `policing` or `shaping`"),
            (r#"{"mode":"Shaping"}"#, "expected `policing` or `shaping`"),
            (r#"{"mode":1}"#, "config.mode: invalid type: integer `1`, expected a string"),
            (r#"{"mode":null}"#, "config.mode: invalid type: null, expected a string"),
            ("[10,10]", "config: invalid type: sequence, expected an object"),
            ("[]", "config: invalid type: sequence, expected an object"),
            ("\"a\"", "config: invalid type: string \"a\", expected an object"),
            ("10", "config: invalid type: integer `10`, expected an object"),
            ("false", "config: invalid type: boolean `false`, expected an object"),
        ] {
            refused("leaky-bucket", &format!(r#"{{"config":{config}}}"#), "config", want);
        }
        for (count, want) in [
            ("0", "0 is out of range; use 1 to 50"),
            ("51", "51 is out of range; use 1 to 50"),
            ("9007199254740991", "use 1 to 50"),
            ("-1", "expected a whole number"),
            ("1.5", "expected a whole number"),
            ("1e308", "expected a whole number"),
            ("18446744073709551616", "expected a whole number"),
            ("null", "expected a whole number"),
            ("\"10\"", "expected a whole number"),
            ("[10]", "expected a whole number"),
            ("true", "expected a whole number"),
        ] {
            refused("token-bucket/burst", &format!(r#"{{"count":{count}}}"#), "count: ", want);
        }
        for (path, body, want) in [
            ("token-bucket", r#"{"count":10}"#, "count: unknown field `count`, expected `config`"),
            ("token-bucket", r#"{"config":{},"config":{}}"#, "duplicate field `config`"),
            ("token-bucket/burst", r#"{"counts":10}"#, "expected `config` or `count`"),
            ("state", r#"{"config":{"gcra":{}}}"#, "config.gcra: unknown field `gcra`"),
            (
                "state",
                r#"{"config":{"token-bucket":[]}}"#,
                "config.token-bucket: invalid type: sequence",
            ),
            ("state", r#"{"config":[]}"#, "config: invalid type: sequence"),
            (
                "compare",
                r#"{"config":{"leaky-bucket":7}}"#,
                "config.leaky-bucket: invalid type: integer",
            ),
        ] {
            refused(path, body, "", want);
        }
        assert_nothing_was_spent(server);
    });
}

#[test]
fn bad_reservations_and_settlements_are_400_and_hold_nothing() {
    on_each_store(|server, _| {
        for (path, body, want) in [
            ("concurrency", "{}", "concurrency decides no requests"),
            ("concurrency/burst", "{}", "use /api/rate-limit/concurrency/reserve"),
            ("token-bucket/reserve", r#"{"units":0}"#, "units: 0 is out of range; use 1 to 1000"),
            ("token-bucket/reserve", r#"{"units":1001}"#, "units: 1001 is out of range"),
            ("token-bucket/reserve", r#"{"units":1.5}"#, "expected a whole number"),
            ("token-bucket/reserve", r#"{"units":null}"#, "expected a whole number"),
            ("token-bucket/reserve", r#"{"seconds":0}"#, "seconds: 0 is out of range; use 0.1 to"),
            ("token-bucket/reserve", r#"{"seconds":3601}"#, "seconds: 3601 is out of range"),
            ("token-bucket/reserve", r#"{"seconds":1e308}"#, "is out of range; use 0.1 to 3600"),
            ("token-bucket/reserve", r#"{"seconds":null}"#, "expected a number"),
            ("token-bucket/reserve", r#"{"hold":1}"#, "hold: unknown field `hold`"),
            (
                "leaky-bucket/reserve",
                r#"{"config":{"mode":"shaping"}}"#,
                "a shaping leaky bucket cannot have holds; use `mode=policing`",
            ),
            ("token-bucket/settle", "{}", "hold: missing; send the number of a hold"),
            ("token-bucket/settle", "", "hold: missing; send the number of a hold"),
            ("token-bucket/settle", r#"{"hold":-1}"#, "hold: invalid type: integer `-1`"),
            ("token-bucket/settle", r#"{"hold":"1"}"#, "hold: invalid type: string"),
            ("token-bucket/settle", r#"{"hold":1,"used":1001}"#, "used: 1001 is out of range"),
            ("token-bucket/settle", r#"{"hold":1,"used":-1}"#, "used: invalid type"),
            ("token-bucket/settle", r#"{"hold":1,"config":{}}"#, "unknown field `config`"),
            ("nope/reserve", "{}", "there is no algorithm `nope`"),
            ("nope/settle", "{}", "there is no algorithm `nope`"),
        ] {
            let (status, detail) = send(server, path, Some("application/json"), body.as_bytes());
            assert_eq!(status, 400, "{path} {body}: {detail}");
            assert!(detail.contains(want), "{path} {body}: {detail}");
        }
        assert_nothing_was_spent(server);
    });
}

#[test]
fn malformed_bodies_are_refused_and_charge_nothing() {
    let server = ServerProcess::start(&[]);
    let json = Some("application/json");
    let deep = [&b"{\"config\":"[..], &b"[".repeat(8_000), &b"]".repeat(8_000), b"}"].concat();
    let deep_object =
        [&b"{\"config\":{\"mode\":"[..], &b"{\"a\":".repeat(2_000), b"1", &b"}".repeat(2_002)]
            .concat();
    let long = |bytes: usize| [&b"{}"[..], &b" ".repeat(bytes - 2)].concat();
    let name =
        format!(r#"{{"config":{{"{}\u0000\u001b[31m":1}}}}"#, "x".repeat(9_000)).into_bytes();
    for path in ["fixed-window", "fixed-window/burst", "fixed-window/reserve", "state", "compare"] {
        let most = if path == "compare" { 64 << 10 } else { 16 << 10 };
        for (content_type, body, status) in [
            (json, b"\xff\xfe".to_vec(), 400),
            (json, b"{\"config\":\"\xff\"}".to_vec(), 400),
            (json, b"\xef\xbb\xbf{}".to_vec(), 400),
            (json, b"{".to_vec(), 400),
            (json, b"{}{}".to_vec(), 400),
            (json, b"{'config':{}}".to_vec(), 400),
            (json, b"{\"config\":{},}".to_vec(), 400),
            (json, b"[]".to_vec(), 400),
            (json, b"[{}]".to_vec(), 400),
            (json, b"\"{}\"".to_vec(), 400),
            (json, b"10".to_vec(), 400),
            (json, b" ".to_vec(), 400),
            (json, b"\0".to_vec(), 400),
            (json, deep.clone(), 400),
            (json, deep_object.clone(), 400),
            (json, name.clone(), 400),
            (json, long(most + 1), 413),
            (None, long(most + 1), 413),
            (None, b"{}".to_vec(), 415),
            (Some("text/plain"), b"{}".to_vec(), 415),
            (Some("application/x-www-form-urlencoded"), b"config=1".to_vec(), 415),
            (Some("application/jsonp"), b"{}".to_vec(), 415),
        ] {
            let (got, detail) = send(&server, path, content_type, &body);
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(got, status, "{path} {content_type:?} {shown}: {detail}");
        }
        let mut player = PlaygroundClient { server: &server, cookie: Some(format!("{COOKIE}0")) };
        let longest = player.send(path, String::from_utf8(long(most)).unwrap());
        assert_eq!(longest.status(), 200, "{path}");
    }
    let zipped = server.post("/api/rate-limit/state", "{}").header("content-encoding", "gzip");
    assert_eq!(problem(zipped.send().unwrap()).0, 415);
    for (path, status) in [
        ("", 404),
        ("token-bucket/", 404),
        ("%ff", 400),
        ("%ff/burst", 400),
        ("a%0ab", 400),
        ("TOKEN-BUCKET", 400),
        ("token-bucket/bursts", 404),
    ] {
        assert_eq!(send(&server, path, None, b"").0, status, "{path}");
    }
    let get = problem(server.get("/api/rate-limit/token-bucket").send().unwrap());
    assert_eq!(get.0, 405);
    assert_nothing_was_spent(&server);
}

/// Asserts that the refused requests of this session charged nothing.
fn assert_nothing_was_spent(server: &ServerProcess) {
    let mut player = PlaygroundClient { server, cookie: Some(COOKIE.to_owned()) };
    let state = player.ask("state", json!({}));
    for algorithm in ALGORITHMS {
        assert_eq!(state["algorithms"][algorithm]["remaining"], 10, "{algorithm}");
    }
}
