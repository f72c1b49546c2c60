//! Checks that tokens can be verified with a key, by parsing it.

use super::{KeyFault, other_key};
use tollgate_identity::config::JwtAlgorithm;
use tollgate_identity::{JwtError, JwtKey};

/// The algorithms whose keys are PEMs.
const OF_PEMS: [JwtAlgorithm; 4] =
    [JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::Es384, JwtAlgorithm::EdDsa];

/// Refuses a key here, with its line. Otherwise it would be refused when the rules are compiled, without a line.
pub(super) fn check(algorithm: JwtAlgorithm, bytes: &[u8]) -> Result<(), KeyFault> {
    match JwtKey::of(algorithm, bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(fault(algorithm, &error, bytes)),
    }
}

fn fault(algorithm: JwtAlgorithm, error: &JwtError, bytes: &[u8]) -> KeyFault {
    let fits = OF_PEMS.into_iter().find(|other| JwtKey::of(*other, bytes).is_ok());
    if let Some(fits) = fits.filter(|_| algorithm != JwtAlgorithm::Hs256) {
        return other_key(algorithm, fits);
    }
    match error {
        JwtError::NotRsa => {
            let remedy = "use an RSA key of 2048 to 8192 bits, with every line of its PEM";
            ("has no RSA key, which RS256 needs".into(), remedy)
        }
        JwtError::RsaBits { bits } => {
            (format!("has an RSA key of {bits} bits").into(), "use one of 2048 to 8192 bits")
        }
        JwtError::NotP256 => (point("P-256").into(), POINT_REMEDY),
        JwtError::NotP384 => (point("P-384").into(), POINT_REMEDY),
        JwtError::NotEd25519 => (
            "has no Ed25519 key".into(),
            "use one with every line of its PEM; Ed448 is not supported",
        ),
        JwtError::NotPem => {
            let remedy = "use the PEM of one key, whole: from `-----BEGIN PUBLIC KEY-----` to \
                          `-----END PUBLIC KEY-----`";
            ("has a PEM that is damaged, or more than one".into(), remedy)
        }
        // Refused earlier, with their own messages.
        _ => ("has a key that cannot be used".into(), "use another"),
    }
}

const POINT_REMEDY: &str = "use one with every line of its PEM; its point is written in full by \
    `openssl pkey -pubin -pubout -ec_conv_form uncompressed -in KEY`";

fn point(curve: &str) -> String {
    format!("has no key on the curve {curve} with its point in full")
}
