//! The same traffic for all algorithms.

use serde_json::{Value, json};

use super::{ALGORITHMS, PlaygroundClient};
use crate::check::problem;
use crate::openapi::assert_valid;
use crate::server::ServerProcess;

fn compared(client: &mut PlaygroundClient<'_>, body: Value) -> Vec<Value> {
    let rows = client.ask("compare", body);
    let rows = rows.as_array().unwrap().clone();
    rows.iter().for_each(|row| assert_valid("Compared", row));
    let names: Vec<_> = rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ALGORITHMS);
    assert_eq!(names[5..], ["leaky-bucket", "concurrency"], "a leaky bucket in each mode");
    rows
}

#[test]
fn burst_across_a_boundary_doubles_only_a_fixed_window() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let before = (0..10).map(|nth| 9_500 + 40 * nth);
    let after = (0..10).map(|nth| 10_100 + 40 * nth);
    let at_ms: Vec<u64> = before.chain(after).collect();
    let mut rows = compared(&mut client, json!({"at_ms": at_ms}));
    rows.pop();
    let of = |field: &str| rows.iter().map(|row| row[field].clone()).collect::<Vec<_>>();
    // The sliding window counter weighs the 10 earlier requests as 9.9. At the end, the buckets have got back 0.96 units.
    assert_eq!(of("allowed"), [20, 10, 11, 10, 10, 10]);
    assert_eq!(of("worst"), [20, 10, 11, 10, 10, 10]);
    assert_eq!(of("worst_from_ms"), [9_500.0; 6]);
    // The bounds for all traffic. Shaped requests leave at an even rate for all traffic.
    assert_eq!(of("bound"), [20, 10, 20, 19, 19, 10]);
    assert_eq!(rows[0]["limit"], "fixed-window limit=10 window=10s");
    assert_eq!(rows[4]["limit"], "leaky-bucket capacity=10 leak=1/s mode=policing");
    assert_eq!(rows[5]["limit"], "leaky-bucket capacity=10 leak=1/s mode=shaping");
    for row in &rows {
        let goes = row["goes_ms"].as_array().unwrap();
        assert_eq!(goes.len(), at_ms.len());
        assert_eq!(row["allowed"], goes.iter().filter(|at| at.is_number()).count());
    }
    assert_eq!(rows[1]["goes_ms"][9], 9_860.0);
    assert_eq!(rows[1]["goes_ms"][10], Value::Null);
}

#[test]
fn shaped_requests_leave_one_by_one_and_others_at_once() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let leaky = json!({"capacity": 3, "leakRate": 2, "mode": "shaping"});
    let config = json!({"leaky-bucket": leaky, "token-bucket": {"maxTokens": 3, "refillRate": 2}});
    let body = json!({"config": config, "at_ms": [0, 0, 0, 0, 500], "window_ms": 1_000});
    let rows = compared(&mut client, body);
    // The requested mode comes first.
    assert_eq!(rows[4]["goes_ms"], json!([0.0, 500.0, 1_000.0, null, 1_500.0]));
    assert_eq!((&rows[4]["worst"], &rows[4]["allowed"]), (&json!(2), &json!(4)));
    assert_eq!(rows[5]["goes_ms"], json!([0.0, 0.0, 0.0, null, 500.0]));
    assert_eq!(rows[5]["goes_ms"], rows[3]["goes_ms"], "a token bucket mirrored");
    assert_eq!(rows[5]["worst"], 4);
    assert_eq!(rows[0]["goes_ms"], json!([0.0, 0.0, 0.0, 0.0, 500.0]));
    // A comparison charges nothing and starts no session.
    let state = client.ask("state", json!({}));
    for algorithm in ALGORITHMS {
        assert_eq!(state["algorithms"][algorithm]["remaining"], 10);
    }
    assert!(
        !PlaygroundClient::new(&server).send("compare", "").headers().contains_key("set-cookie")
    );
}

#[test]
fn concurrency_starts_a_job_when_another_has_ended() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let config = json!({"concurrency": {"maxConcurrent": 2, "holdSeconds": 60}});
    let at_ms = [0, 100, 200, 1_499, 1_500, 1_600, 1_700];
    let mut jobs = |takes_ms: u64, config: &Value| {
        let body = json!({"config": config, "at_ms": at_ms, "takes_ms": takes_ms});
        compared(&mut client, body).pop().unwrap()
    };
    let row = jobs(1_500, &config);
    assert_eq!(row["limit"], "concurrency limit=2 for=1m");
    assert_eq!(row["goes_ms"], json!([0.0, 100.0, null, null, 1_500.0, 1_600.0, null]));
    assert_eq!((&row["allowed"], &row["holds_ms"]), (&json!(4), &json!(1_500.0)));
    assert_eq!((&row["worst"], &row["worst_from_ms"]), (&json!(2), &json!(100.0)));
    assert_eq!(row["bound"], 2);
    // A job that takes longer than its hold loses its place at the expiry.
    let short = json!({"concurrency": {"maxConcurrent": 1, "holdSeconds": 0.2}});
    let row = jobs(3_600_000, &short);
    assert_eq!(row["goes_ms"], json!([0.0, null, 200.0, 1_499.0, null, null, 1_700.0]));
    assert_eq!(row["holds_ms"], 200.0);
    for (takes_ms, want) in [
        (json!(0), "takes_ms: 0 is out of range; use 1 to 3600000"),
        (json!(3_600_001), "takes_ms: 3600001 is out of range"),
        (json!(1.5), "takes_ms: invalid value"),
        (json!(null), "takes_ms: invalid type: null"),
    ] {
        let (status, detail) =
            problem(client.send("compare", json!({"takes_ms": takes_ms}).to_string()));
        assert_eq!(status, 400, "{detail}");
        assert!(detail.starts_with(want), "{detail}");
    }
}

#[test]
fn requests_that_reserve_hold_units_until_they_settle_them() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let at_ms = json!([0, 0, 0, 0, 1_999, 2_000, 2_000]);
    let body =
        |more: Value| json!({"at_ms": at_ms, "reserve": 3, "settle": more, "takes_ms": 2_000});
    let rows = client.ask("compare", body(json!(1)));
    let rows = rows.as_array().unwrap();
    rows.iter().for_each(|row| assert_valid("Compared", row));
    let names: Vec<_> = rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ALGORITHMS);
    assert_eq!(names[5..], ["concurrency"], "without a shaping bucket");
    for row in &rows[..5] {
        // Nine units are held. After two seconds three of them are spent, and two further requests fit.
        let want = json!([0.0, 0.0, 0.0, null, null, 2_000.0, 2_000.0]);
        assert_eq!(row["goes_ms"], want, "{row}");
        assert_eq!((&row["worst"], &row["excess"]), (&json!(5), &json!(0)), "{row}");
        assert_eq!(row["holds_ms"], 2_000.0);
    }
    assert_eq!(rows[5]["allowed"], 7, "each request takes one place");
    let rows = client.ask("compare", body(json!(4)));
    assert_eq!((&rows[0]["allowed"], &rows[0]["worst"]), (&json!(3), &json!(12)));
    assert_eq!((&rows[0]["excess"], &rows[0]["bound"]), (&json!(3), &json!(20)));
    let all = client.ask("compare", json!({"at_ms": at_ms, "reserve": 10}));
    assert_eq!((&all[1]["allowed"], &all[1]["worst"]), (&json!(1), &json!(10)));

    for (body, want) in [
        (json!({"reserve": 0}), "reserve: 0 is out of range; use 1 to 1000"),
        (json!({"reserve": 1_001}), "reserve: 1001 is out of range"),
        (json!({"reserve": 1, "settle": 1_001}), "settle: 1001 is out of range; use 0 to 1000"),
        (json!({"settle": 1}), "settle: requests reserve nothing; send `reserve` too"),
        (json!({"reserve": null}), "reserve: invalid type: null"),
    ] {
        let (status, detail) = problem(client.send("compare", body.to_string()));
        assert_eq!(status, 400, "{detail}");
        assert!(detail.starts_with(want), "{detail}");
    }
}

#[test]
fn traffic_is_bounded() {
    let server = ServerProcess::start(&[]);
    let mut client = PlaygroundClient::new(&server);
    let most = vec![3_600_000; 2_000];
    let configs: Value = ALGORITHMS.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    let rows =
        compared(&mut client, json!({"at_ms": most, "window_ms": 3_600_000, "config": configs}));
    assert_eq!(rows[0]["allowed"], 10);
    let rows = compared(&mut client, json!({}));
    assert_eq!((&rows[0]["goes_ms"], &rows[0]["worst"]), (&json!([]), &json!(0)));
    for (body, want) in [
        (json!({"at_ms": vec![1; 2_001]}), "at_ms: 2001 requests are too many; send at most 2000"),
        (json!({"at_ms": [3_600_001]}), "at_ms: 3600001 is too late; use at most 3600000"),
        (
            json!({"at_ms": [3_600_001, 0]}),
            "at_ms: the times are not in ascending order; sort them",
        ),
        (json!({"at_ms": [2, 1]}), "at_ms: the times are not in ascending order; sort them"),
        (
            json!({"at_ms": [0, -1]}),
            "at_ms[1]: invalid type: integer `-1`, expected a whole number",
        ),
        (json!({"at_ms": [0.5]}), "at_ms[0]: invalid value: floating point `0.5`"),
        (json!({"at_ms": [1e300]}), "at_ms[0]: invalid value: floating point `1e+300`"),
        (json!({"at_ms": ["0"]}), "at_ms[0]: invalid type: string"),
        (json!({"at_ms": [[0]]}), "at_ms[0]: invalid type: sequence"),
        (json!({"at_ms": null}), "at_ms: invalid type: null"),
        (json!({"at_ms": {}}), "at_ms: invalid type: map"),
        (json!({"window_ms": 0}), "window_ms: 0 is out of range; use 1 to 3600000"),
        (json!({"window_ms": 3_600_001}), "window_ms: 3600001 is out of range"),
        (json!({"window_ms": null}), "window_ms: invalid type: null"),
        (json!({"windows": 1}), "windows: unknown field `windows`"),
    ] {
        let (status, detail) = problem(client.send("compare", body.to_string()));
        assert_eq!(status, 400, "{detail}");
        assert!(detail.starts_with(want), "{detail}");
    }
}
