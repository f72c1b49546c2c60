//! Whatever is sent as a message of Envoy's, the server reads it or says what is wrong: no panic, no hang, and what it says
//! is short and printable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_server::fuzz;

fuzz_target!(|message: &[u8]| {
    if let Err(told) = fuzz::rate_limit(message) {
        assert!(!told.is_empty() && told.len() <= 1024, "{told}");
        assert!(!told.chars().any(char::is_control), "{told}");
    }
});
