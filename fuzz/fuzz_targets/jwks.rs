//! Parses any bytes as a key set, and verifies a token without a valid signature, which must be refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::http::{Jwks, Jwt};

/// The token: `{"alg":"EdDSA"}`, no claims, and a signature of four bytes.
const FORGED: &str = "eyJhbGciOiJFZERTQSJ9.e30.AAAAAA";

fuzz_target!(|json: &[u8]| {
    if let Ok(jwks) = Jwks::parse(json) {
        assert!(jwks.status().keys + jwks.status().skipped <= 64);
        assert!(Jwt::from_jwks(jwks).claims(FORGED).is_err());
    }
});
