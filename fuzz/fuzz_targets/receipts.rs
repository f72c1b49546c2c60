//! Whatever is sent as a receipt: no panic, and none is read that was not signed. What could be signed is the
//! same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tollgate_server::fuzz::receipt(input));
