//! A token as it is written, before anything of it is believed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::InvalidToken;
use super::key::JwtKey;

/// A token whose parts are in order and whose signature is yet to be computed.
pub(super) struct Unproven<'a> {
    /// What is signed: header and claims, as they came.
    message: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
}

impl<'a> Unproven<'a> {
    /// Takes a token apart, for little: its claims are not read.
    pub(super) fn read(token: &'a str) -> Result<Unproven<'a>, InvalidToken> {
        let (message, signature) = token.rsplit_once('.').ok_or(InvalidToken::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(InvalidToken::Malformed)?;
        if !claims.bytes().all(is_base64url) {
            return Err(InvalidToken::Malformed);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| InvalidToken::Malformed)?;
        let mut header = object(header)?;
        if header.contains_key("crit") {
            return Err(InvalidToken::Critical);
        }
        let key_id = match header.remove("kid") {
            None => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return Err(InvalidToken::Malformed),
        };
        let algorithm = algorithm(header.get("alg"))?;
        Ok(Unproven { message, claims, signature, algorithm, key_id })
    }

    /// The keys that may have signed it: the one that it names, or else those without an id.
    pub(super) fn candidates<'k>(
        &self,
        keys: &'k [JwtKey],
    ) -> Result<Vec<&'k JwtKey>, InvalidToken> {
        let named = keys.iter().find(|key| key.name().is_some() && key.name() == self.key_id());
        let mut candidates = match named {
            Some(key) => vec![key],
            None => keys.iter().filter(|key| key.name().is_none()).collect(),
        };
        if candidates.is_empty() {
            return Err(InvalidToken::UnknownKey);
        }
        candidates.retain(|key| key.algorithm() == self.algorithm);
        match candidates.is_empty() {
            true => Err(InvalidToken::Algorithm),
            false => Ok(candidates),
        }
    }

    pub(super) fn is_signed_by(&self, key: &JwtKey) -> bool {
        key.signed(self.message.as_bytes(), &self.signature)
    }

    /// Its claims, still in base64url.
    pub(super) fn claims(&self) -> &'a str {
        self.claims
    }

    fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }
}

/// The JSON object that a part of a token holds.
pub(super) fn object(part: &str) -> Result<Map<String, Value>, InvalidToken> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| InvalidToken::Malformed)?;
    // Bounded: the token by its length, the depth by serde_json, to 128. Of two members of one name
    // the last counts, as RFC 7519 has it.
    serde_json::from_slice(&json).map_err(|_| InvalidToken::Malformed)
}

fn algorithm(name: Option<&Value>) -> Result<Algorithm, InvalidToken> {
    match name.and_then(Value::as_str) {
        Some("HS256") => Ok(Algorithm::HS256),
        Some("RS256") => Ok(Algorithm::RS256),
        Some("ES256") => Ok(Algorithm::ES256),
        Some(_) => Err(InvalidToken::Algorithm),
        None => Err(InvalidToken::Malformed),
    }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
