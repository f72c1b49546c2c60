//! Decodes any bytes as a reservation, a settlement and an extension, and as a batch of each. The server must not panic or
//! hang, and must accept the body or report a short, printable problem. An accepted body is JSON, and a batch of one
//! operation is decoded like the operation.

#![no_main]

#[path = "shared/problems.rs"]
mod problems;

use libfuzzer_sys::fuzz_target;
use problems::{assert_short, is_object};
use tollgate_server::fuzz::{self, BodyResult};

fuzz_target!(|input: &[u8]| {
    let alone = fuzz::holds(input);
    assert_read(input, &alone);
    match fuzz::hold_batch(input) {
        Ok(items) => items
            .iter()
            .flatten()
            .filter_map(|item| item.as_ref().err())
            .for_each(|it| assert_short(it)),
        Err(problem) => assert_short(&problem),
    }
    if alone.iter().any(Result::is_ok) {
        let batch = fuzz::hold_batch(&[b"[", input, b"]"].concat()).expect("a batch");
        // The texts of problems may differ, because they have the position in the text.
        let is_read = |each: &[BodyResult; 3]| each.each_ref().map(Result::is_ok);
        assert_eq!(batch.iter().map(is_read).collect::<Vec<_>>(), [is_read(&alone)]);
    }
});

fn assert_read(input: &[u8], alone: &[BodyResult]) {
    for read in alone {
        match read {
            Ok(()) => assert!(is_object(input)),
            Err(problem) => assert_short(problem),
        }
    }
}
