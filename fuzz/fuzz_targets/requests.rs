//! Decodes any bytes as a check, as a batch, and as the requests about holds. The server must not panic or hang, and must accept the body or report a
//! short, printable problem. An accepted body is JSON, and a batch of one check is decoded like the check.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate_server::fuzz;

fuzz_target!(|input: &[u8]| {
    let check = fuzz::check(input);
    match &check {
        Ok(()) => assert!(is_object(input)),
        Err(problem) => assert_short(problem),
    }
    match fuzz::batch(input) {
        Ok(checks) => checks
            .iter()
            .filter_map(|check| check.as_ref().err())
            .for_each(|problem| assert_short(problem)),
        Err(problem) => assert_short(&problem),
    }
    for held in fuzz::holds(input) {
        match held {
            Ok(()) => assert!(is_object(input)),
            Err(problem) => assert_short(&problem),
        }
    }
    let batch = [b"[", input, b"]"].concat();
    if check.is_ok() {
        assert_eq!(fuzz::batch(&batch), Ok(vec![Ok(())]));
    }
});

fn is_object(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| value.is_object())
}

/// Checks that a problem response is JSON with a short, printable detail.
fn assert_short(body: &str) {
    let problem: Value = serde_json::from_str(body).expect("JSON");
    assert!((400..500).contains(&problem["status"].as_u64().expect("a status")), "{body}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(!detail.is_empty() && detail.chars().count() <= 1024, "{body}");
    assert!(!detail.chars().any(char::is_control), "{body}");
}
