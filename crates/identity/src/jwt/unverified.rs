//! A token before it is verified.

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

/// A token that is well-formed, and whose signature was not computed yet.
pub(super) struct UnverifiedToken<'a> {
    /// The signed text: header and claims, unchanged.
    message: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    key_id: Option<String>,
}

/// The members of a header that are used. Two members with one of these names are an error, as RFC 7515 allows.
#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    #[serde(default, deserialize_with = "present")]
    kid: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: Option<IgnoredAny>,
}

impl<'a> UnverifiedToken<'a> {
    /// Splits a token into its parts. Cheap, because the claims are not read.
    pub(super) fn read(token: &'a str) -> Result<UnverifiedToken<'a>, InvalidToken> {
        let (message, signature) = token.rsplit_once('.').ok_or(InvalidToken::Malformed)?;
        let (header, claims) = message.split_once('.').ok_or(InvalidToken::Malformed)?;
        let TokenHeader { alg, kid: key_id, crit } = TokenHeader::read(header)?;
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

    /// Returns the keys that have the name that the token gives.
    pub(super) fn named<'k>(
        &self,
        keys: &'k [JwtKey],
        sets: impl Iterator<Item = &'k KeySet>,
    ) -> Vec<&'k JwtKey> {
        let Some(id) = self.key_id() else { return Vec::new() };
        let keys = keys.iter().chain(sets.flat_map(KeySet::keys));
        keys.filter(|key| key.name() == Some(id)).collect()
    }

    /// Returns the keys that may have signed the token: the `named` keys; without such keys, the keys without an id, and if the
    /// token names no key, also the only key of its algorithm in each set.
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

    /// Returns the claims, in base64url.
    pub(super) fn claims(&self) -> &'a str {
        self.claims
    }

    /// Whether the token names its key (`kid`).
    pub(super) fn is_naming_a_key(&self) -> bool {
        self.key_id.is_some()
    }

    fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }
}

impl TokenHeader {
    /// Reads a header. Other members are skipped, not kept.
    fn read(part: &str) -> Result<TokenHeader, InvalidToken> {
        if part.len() > MAX_HEADER_BYTES {
            return Err(InvalidToken::TooLong);
        }
        let json = decoded(part)?;
        let json = str::from_utf8(&json).map_err(|_| InvalidToken::Malformed)?;
        // Tested here, because serde would accept a list.
        if !json.trim_start().starts_with('{') {
            return Err(InvalidToken::Malformed);
        }
        serde_json::from_str(json).map_err(|_| InvalidToken::Malformed)
    }
}

/// Reads a member that may be missing but must not be null. (For an `Option`, serde treats null as missing.)
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// Returns the JSON object with the claims of a token whose signature is valid.
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
        // `Ed25519` is the newer name (RFC 9864) for the one curve that is supported.
        "EdDSA" | "Ed25519" => Ok(Algorithm::EdDSA),
        _ => Err(InvalidToken::Algorithm),
    }
}

fn is_base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}
