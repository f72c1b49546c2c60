//! Decodes any bytes as a hold token. The server must not panic, and must not accept a token that it has not signed, or a
//! signed token that was changed. A signed token must be unchanged after it is encoded and decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tollgate_server::fuzz::hold_token(input));
