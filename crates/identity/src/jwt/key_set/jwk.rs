//! One key of a set (RFC 7517, 4; RFC 7518, 6; RFC 8037, 2).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::JwksError;
use crate::jwt::key::JwtKey;

/// The longest name of a key, as in a rules file.
const MAX_ID_CHARS: usize = 256;

/// The longest number of a key in base64url: an RSA modulus of 8192 bits has 1,366 characters.
const MAX_NUMBER_CHARS: usize = 2_048;

/// Reads a key. Returns `None` if it is not a key that can verify signatures here.
pub(super) fn read(value: &Value) -> Result<Option<JwtKey>, JwksError> {
    let Some(members) = value.as_object() else { return Ok(None) };
    match text(members, "kty") {
        Some("oct") => Err(JwksError::SymmetricKey),
        Some("RSA" | "EC" | "OKP") if members.contains_key("d") => Err(JwksError::PrivateKey),
        Some(kind @ ("RSA" | "EC" | "OKP")) => Ok(public_key(kind, members)),
        _ => Ok(None),
    }
}

fn public_key(kind: &str, members: &Map<String, Value>) -> Option<JwtKey> {
    if !is_for_signatures(members) {
        return None;
    }
    let key = match (kind, text(members, "crv")) {
        ("RSA", _) => {
            JwtKey::rsa_components(&number(members, "n")?, &number(members, "e")?).ok()?
        }
        ("EC", Some("P-256")) => JwtKey::p256_point(&point::<32>(members)?),
        ("EC", Some("P-384")) => JwtKey::p384_point(&point::<48>(members)?),
        ("OKP", Some("Ed25519")) => {
            JwtKey::ed25519(&<[u8; 32]>::try_from(number(members, "x")?).ok()?)
        }
        _ => return None,
    };
    match members.get("alg") {
        None => {}
        Some(algorithm) if is_name_of(key.algorithm(), algorithm.as_str()?) => {}
        Some(_) => return None,
    }
    match members.get("kid") {
        None => Some(key),
        Some(id) => {
            let id = id.as_str()?;
            let is_id = !id.is_empty() && id.chars().nth(MAX_ID_CHARS).is_none();
            is_id.then(|| key.id(id))
        }
    }
}

/// Whether `use` and `key_ops` allow the key to verify signatures.
fn is_for_signatures(members: &Map<String, Value>) -> bool {
    let is_used = members.get("use").is_none_or(|usage| usage == "sig");
    let operations = members.get("key_ops").map(|operations| operations.as_array());
    let is_verifying = match operations {
        None => true,
        Some(None) => false,
        Some(Some(operations)) => operations.iter().any(|one| one == "verify"),
    };
    is_used && is_verifying
}

fn is_name_of(algorithm: Algorithm, name: &str) -> bool {
    match algorithm {
        Algorithm::RS256 => name == "RS256",
        Algorithm::ES256 => name == "ES256",
        Algorithm::ES384 => name == "ES384",
        Algorithm::EdDSA => matches!(name, "EdDSA" | "Ed25519"),
        _ => false,
    }
}

/// Returns a point of a curve in its uncompressed encoding: `x` and `y`, each of exactly `N` bytes (RFC 7518, 6.2.1.2).
fn point<const N: usize>(members: &Map<String, Value>) -> Option<Vec<u8>> {
    let x = <[u8; N]>::try_from(number(members, "x")?).ok()?;
    let y = <[u8; N]>::try_from(number(members, "y")?).ok()?;
    Some([&x[..], &y[..]].concat())
}

fn number(members: &Map<String, Value>, name: &str) -> Option<Vec<u8>> {
    let text = text(members, name).filter(|text| text.len() <= MAX_NUMBER_CHARS)?;
    URL_SAFE_NO_PAD.decode(text).ok()
}

fn text<'m>(members: &'m Map<String, Value>, name: &str) -> Option<&'m str> {
    members.get(name)?.as_str()
}
