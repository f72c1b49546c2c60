//! Decodes any bytes as a message from Envoy. The server must not panic or hang, and must accept the message or report a
//! short, printable problem.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzz;

fuzz_target!(|message: &[u8]| {
    if let Err(problem) = fuzz::rate_limit(message) {
        assert!(!problem.is_empty() && problem.len() <= 1024, "{problem}");
        assert!(!problem.chars().any(char::is_control), "{problem}");
    }
});
