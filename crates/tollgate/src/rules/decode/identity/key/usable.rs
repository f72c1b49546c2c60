//! Whether tokens can be verified with a key, which takes understanding it.

use super::{Fault, RSA_FOR_ES256};
use crate::http::{JwtError, JwtKey};
use crate::rules::config::JwtAlgorithm;

/// Refuses what would be refused when the rules are made, where no line could be named.
pub(super) fn check(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<(), Fault> {
    match JwtKey::of(algorithm, bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(fault(&error, bytes)),
    }
}

fn fault(error: &JwtError, bytes: &[u8]) -> Fault {
    match error {
        JwtError::NotRsa if JwtKey::es256(bytes).is_ok() => {
            let fault = "has a key on the curve P-256, and RS256 needs another";
            (fault.into(), "use `algorithm: ES256`")
        }
        JwtError::NotP256 if JwtKey::rs256(bytes).is_ok() => RSA_FOR_ES256,
        JwtError::NotRsa => {
            let remedy = "use an RSA key of 2048 to 8192 bits, with every line of its PEM";
            ("has no RSA key, which RS256 needs".into(), remedy)
        }
        JwtError::RsaBits { bits } => {
            (format!("has an RSA key of {bits} bits").into(), "use one of 2048 to 8192 bits")
        }
        JwtError::NotP256 => {
            let remedy = "use one with every line of its PEM; its point is written in full by \
                          `openssl pkey -pubin -pubout -ec_conv_form uncompressed -in KEY`";
            ("has no key on the curve P-256 with its point in full".into(), remedy)
        }
        JwtError::NotPem => {
            let remedy = "use the PEM of one key, whole: from `-----BEGIN PUBLIC KEY-----` to \
                          `-----END PUBLIC KEY-----`";
            ("has a PEM that is damaged, or more than one".into(), remedy)
        }
        // Refused before, in words of their own.
        _ => ("has a key that cannot be used".into(), "use another"),
    }
}
