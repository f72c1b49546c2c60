//! Decodes any bytes as a check and as a batch. The server must not panic or hang, and must accept the body or report a
//! short, printable problem. An accepted body is JSON, and a batch of one check is decoded like the check.

#![no_main]

#[path = "shared/problems.rs"]
mod problems;

use libfuzzer_sys::fuzz_target;
use problems::{assert_short, is_object};
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
    let batch = [b"[", input, b"]"].concat();
    if check.is_ok() {
        assert_eq!(fuzz::batch(&batch), Ok(vec![Ok(())]));
    }
});
