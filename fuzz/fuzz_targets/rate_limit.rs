//! The server reads any bytes sent as an Envoy message, or reports what is wrong: no panic, no hang, and the report is
//! short and printable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzz;

fuzz_target!(|message: &[u8]| {
    if let Err(told) = fuzz::rate_limit(message) {
        assert!(!told.is_empty() && told.len() <= 1024, "{told}");
        assert!(!told.chars().any(char::is_control), "{told}");
    }
});
