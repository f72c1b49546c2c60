//! Checks of a body that the server accepts, and of the problem that it reports otherwise.

use serde_json::Value;

pub fn is_object(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| value.is_object())
}

/// Checks that a problem response is JSON with a short, printable detail.
pub fn assert_short(body: &str) {
    let problem: Value = serde_json::from_str(body).expect("JSON");
    assert!((400..500).contains(&problem["status"].as_u64().expect("a status")), "{body}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(!detail.is_empty() && detail.chars().count() <= 1024, "{body}");
    assert!(!detail.chars().any(char::is_control), "{body}");
}
