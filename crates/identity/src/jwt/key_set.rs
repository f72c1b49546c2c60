//! The keys of a JSON Web Key Set (RFC 7517), read with bounds.

mod jwk;

use std::io;

use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_json::Value;

use super::key::JwtKey;
use crate::config::MAX_JWKS_BYTES;

/// The most keys in a set: for a token that names no key, each of them is examined.
const MAX_KEYS: usize = 64;

/// Keys that verify signatures.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<JwtKey>,
    skipped: usize,
}

/// Why a JSON Web Key Set is not used. Contains no part of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// The text is not a URL from which a set can be fetched.
    #[error(
        "not a URL of a key set; it begins with `https://` or `http://`, and has no user name or password"
    )]
    Url,
    /// The file cannot be read.
    #[error("the key set cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The set has more than 256 KiB.
    #[error("the key set is larger than 256 KiB")]
    TooLarge,
    /// The set is not a JSON object that has a list `keys`.
    #[error("the key set is not a JSON object with a list `keys` (RFC 7517, 5)")]
    Malformed,
    /// The set has more than 64 keys.
    #[error("the key set has {keys} keys, above the maximum of {most}")]
    TooManyKeys {
        /// The number of keys.
        keys: usize,
        /// The largest number.
        most: usize,
    },
    /// The set has a secret, with which every reader of the set could sign tokens.
    #[error(
        "the key set has a symmetric key (`oct`), with which each of its readers could sign tokens; \
         use a secret by itself (HS256), or public keys"
    )]
    SymmetricKey,
    /// The set has a private key, with which every reader of the set could sign tokens.
    #[error(
        "the key set has a private key (`d`), with which each of its readers could sign tokens; \
         publish the public part alone"
    )]
    PrivateKey,
}

#[derive(Deserialize)]
struct KeySetJson {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a set. Keys that are not for signatures, have an unknown kind or algorithm, or are damaged are skipped and
    /// counted.
    ///
    /// `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"…"},{"kty":"EC","crv":"P-521","x":"…","y":"…"}]}` has one key, and
    /// one that is skipped.
    pub fn parse(json: &[u8]) -> Result<KeySet, JwksError> {
        if json.len() > MAX_JWKS_BYTES {
            return Err(JwksError::TooLarge);
        }
        // Tested here, because serde would accept a list.
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(JwksError::Malformed);
        }
        let KeySetJson { keys: written } =
            serde_json::from_slice(json).map_err(|_| JwksError::Malformed)?;
        if written.len() > MAX_KEYS {
            return Err(JwksError::TooManyKeys { keys: written.len(), most: MAX_KEYS });
        }
        let mut set = KeySet::default();
        for one in &written {
            match jwk::read(one)? {
                // A second key of the same name and algorithm is skipped: it is unclear which of them tokens name.
                Some(key)
                    if key.name().is_some() && set.keys.iter().any(|own| own.is_alike(&key)) =>
                {
                    set.skipped += 1;
                }
                Some(key) => set.keys.push(key),
                None => set.skipped += 1,
            }
        }
        Ok(set)
    }

    /// Returns the keys.
    pub fn keys(&self) -> &[JwtKey] {
        &self.keys
    }

    /// The number of keys that are not used.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// Returns the key for a token that names no key: the only key of the token's algorithm.
    pub(super) fn only_of(&self, algorithm: Algorithm) -> Option<&JwtKey> {
        let mut fitting = self.keys.iter().filter(|key| key.algorithm() == algorithm);
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// Whether both sets accept the same tokens.
    pub(super) fn is_same(&self, other: &KeySet) -> bool {
        let has = |set: &KeySet, key: &JwtKey| set.keys.iter().any(|own| own.is_same(key));
        self.keys.len() == other.keys.len() && self.keys.iter().all(|key| has(other, key))
    }
}
