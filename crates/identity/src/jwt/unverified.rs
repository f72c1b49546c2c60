//! A token as it is written, before it is verified.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::InvalidToken;
use super::key::JwtKey;
use super::key_set::KeySet;

/// The longest header that is read, in base64url: any client can send a header, and issuers' headers have about 100
/// characters.
const MAX_HEADER_BYTES: usize = 1024;

/// A token whose parts are in order and whose signature is yet to be computed.
pub(super) struct UnverifiedToken<'a> {
    /// The signed text: header and claims, as they came.
    message: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
}

/// The members of a header that are used. A second member of one of these names is an error, as RFC 7515 allows.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default, deserialize_with = "there")]
    kid: Option<String>,
    #[serde(default, deserialize_with = "there")]
    crit: Option<IgnoredAny>,
}

impl<'a> UnverifiedToken<'a> {
    /// Takes a token apart, for little: its claims are not read.
    pub(super) fn read(token: &'a str) -> Result<UnverifiedToken<'a>, InvalidToken> {
        let (message, signature) = token.rsplit_once('.').ok_or(InvalidToken::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(InvalidToken::Malformed)?;
        let Header { alg, kid: key_id, crit } = Header::read(header)?;
        if crit.is_some() {
            return Err(InvalidToken::Critical);
        }
        let algorithm = algorithm(&alg)?;
        if !claims.bytes().all(is_base64url) {
            return Err(InvalidToken::Malformed);
        }
        let signature = decoded(signature)?;
        Ok(UnverifiedToken { message, claims, signature, algorithm, key_id })
    }

    /// The keys that have the name that it gives.
    pub(super) fn named<'k>(
        &self,
        keys: &'k [JwtKey],
        sets: impl Iterator<Item = &'k KeySet>,
    ) -> Vec<&'k JwtKey> {
        let Some(id) = self.key_id() else { return Vec::new() };
        let keys = keys.iter().chain(sets.flat_map(KeySet::keys));
        keys.filter(|key| key.name() == Some(id)).collect()
    }

    /// The keys that may have signed it: the `named` ones; or else those without an id, and if it names none, of each
    /// set the only key of its algorithm.
    pub(super) fn candidates<'k>(
        &self,
        named: Vec<&'k JwtKey>,
        keys: &'k [JwtKey],
        sets: impl Iterator<Item = &'k KeySet>,
    ) -> Result<Vec<&'k JwtKey>, InvalidToken> {
        let mut candidates = match named.is_empty() {
            false => named,
            true => {
                let of_sets = sets.filter(|_| !self.is_naming_a_key());
                let of_sets = of_sets.filter_map(|set| set.only_of(self.algorithm));
                keys.iter().filter(|key| key.name().is_none()).chain(of_sets).collect()
            }
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

    /// Whether it says which key signed it (`kid`).
    pub(super) fn is_naming_a_key(&self) -> bool {
        self.key_id.is_some()
    }

    fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }
}

impl Header {
    /// Its other members are skipped, not kept.
    fn read(part: &str) -> Result<Header, InvalidToken> {
        if part.len() > MAX_HEADER_BYTES {
            return Err(InvalidToken::TooLong);
        }
        let json = decoded(part)?;
        let json = str::from_utf8(&json).map_err(|_| InvalidToken::Malformed)?;
        // A list would do for serde.
        if !json.trim_start().starts_with('{') {
            return Err(InvalidToken::Malformed);
        }
        serde_json::from_str(json).map_err(|_| InvalidToken::Malformed)
    }
}

/// Unlike an `Option`, null is not as if it were not there.
fn there<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// The JSON object that the claims of a token are, once its signature holds.
pub(super) fn object(part: &str) -> Result<Map<String, Value>, InvalidToken> {
    // Bounded: the token by its length, the depth by serde_json, to 128. If two members have the same name,
    // the last one counts, as in RFC 7519.
    serde_json::from_slice(&decoded(part)?).map_err(|_| InvalidToken::Malformed)
}

fn decoded(part: &str) -> Result<Vec<u8>, InvalidToken> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| InvalidToken::Malformed)
}

fn algorithm(name: &str) -> Result<Algorithm, InvalidToken> {
    match name {
        "HS256" => Ok(Algorithm::HS256),
        "RS256" => Ok(Algorithm::RS256),
        "ES256" => Ok(Algorithm::ES256),
        "ES384" => Ok(Algorithm::ES384),
        // The newer name (RFC 9864) for the one curve that is supported.
        "EdDSA" | "Ed25519" => Ok(Algorithm::EdDSA),
        _ => Err(InvalidToken::Algorithm),
    }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
