//! The server reads any bytes sent as a check or a batch, or reports what is wrong: no panic, no hang, and the report
//! is short and printable. Everything it accepts is JSON, and a batch of one check is read like that check.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tollgate_server::fuzz;

fuzz_target!(|input: &[u8]| {
    let alone = fuzz::check(input);
    match &alone {
        Ok(()) => assert!(is_object(input)),
        Err(told) => assert_short(told),
    }
    match fuzz::batch(input) {
        Ok(each) => each.iter().filter_map(|one| one.as_ref().err()).for_each(|told| assert_short(told)),
        Err(told) => assert_short(&told),
    }
    let batch = [b"[", input, b"]"].concat();
    if alone.is_ok() {
        assert_eq!(fuzz::batch(&batch), Ok(vec![Ok(())]));
    }
});

fn is_object(json: &[u8]) -> bool {
    serde_json::from_slice(json).is_ok_and(|value: Value| value.is_object())
}

/// Checks that a problem response is JSON with a short, printable detail.
fn assert_short(told: &str) {
    let problem: Value = serde_json::from_str(told).expect("JSON");
    assert!((400..500).contains(&problem["status"].as_u64().expect("a status")), "{told}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(!detail.is_empty() && detail.chars().count() <= 1024, "{told}");
    assert!(!detail.chars().any(char::is_control), "{told}");
}
