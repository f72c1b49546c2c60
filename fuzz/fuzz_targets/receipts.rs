//! Decodes any bytes as a receipt. The server must not panic, and must not accept a receipt that it has not signed. A signed
//! receipt must be unchanged after it is encoded and decoded.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tollgate_server::fuzz::receipt(input));
