//! Any bytes sent as a receipt: no panic, and no receipt is accepted that was not signed. A receipt that can be
//! signed is unchanged after it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tollgate_server::fuzz::receipt(input));
