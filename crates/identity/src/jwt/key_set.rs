//! The keys of a JSON Web Key Set (RFC 7517), read with bounds.

mod jwk;

use std::io;

use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_json::Value;

use super::key::JwtKey;
use crate::config::MAX_JWKS_BYTES;

/// The most keys in a set: each is looked at for a token that names no key.
const MAX_KEYS: usize = 64;

/// Keys that verify signatures.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<JwtKey>,
    skipped: usize,
}

/// Why a JSON Web Key Set is not used. Says nothing of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwksError {
    /// Not a URL to fetch a set from.
    #[error(
        "not a URL of a key set; it begins with `https://` or `http://`, and has no user name or password"
    )]
    Url,
    /// The file cannot be read.
    #[error("the key set cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// Over 256 KiB.
    #[error("the key set is larger than 256 KiB")]
    TooLarge,
    /// Not a JSON object that has a list `keys`.
    #[error("the key set is not a JSON object with a list `keys` (RFC 7517, 5)")]
    Malformed,
    /// Over 64 keys.
    #[error("the key set has {keys} keys, above the most of {most}")]
    TooManyKeys {
        /// How many it has.
        keys: usize,
        /// How many it may have.
        most: usize,
    },
    /// A secret, which every reader of the set could sign tokens with.
    #[error(
        "the key set has a symmetric key (`oct`), with which each of its readers could sign tokens; \
         use a secret by itself (HS256), or public keys"
    )]
    SymmetricKey,
    /// A private key, which every reader of the set could sign tokens with.
    #[error(
        "the key set has a private key (`d`), with which each of its readers could sign tokens; \
         publish the public part alone"
    )]
    PrivateKey,
}

#[derive(Deserialize)]
struct Written {
    keys: Vec<Value>,
}

impl KeySet {
    /// Reads a set. Keys that are for something else than signatures, or of an unknown kind or algorithm, or damaged,
    /// are skipped and counted.
    ///
    /// `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"…"},{"kty":"EC","crv":"P-521","x":"…","y":"…"}]}` has one key, and
    /// one that is skipped.
    pub fn parse(json: &[u8]) -> Result<KeySet, JwksError> {
        if json.len() > MAX_JWKS_BYTES {
            return Err(JwksError::TooLarge);
        }
        // A list would do for serde.
        if !json.trim_ascii_start().starts_with(b"{") {
            return Err(JwksError::Malformed);
        }
        let Written { keys: written } =
            serde_json::from_slice(json).map_err(|_| JwksError::Malformed)?;
        if written.len() > MAX_KEYS {
            return Err(JwksError::TooManyKeys { keys: written.len(), most: MAX_KEYS });
        }
        let mut set = KeySet::default();
        for one in &written {
            match jwk::read(one)? {
                // A second key of the same name and algorithm: which one is meant cannot be told.
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

    /// The key for a token that names none: the only one of the token's algorithm.
    pub(super) fn only_of(&self, algorithm: Algorithm) -> Option<&JwtKey> {
        let mut fitting = self.keys.iter().filter(|key| key.algorithm() == algorithm);
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// Whether the same tokens are good with both sets.
    pub(super) fn is_same(&self, other: &KeySet) -> bool {
        let has = |set: &KeySet, key: &JwtKey| set.keys.iter().any(|own| own.is_same(key));
        self.keys.len() == other.keys.len() && self.keys.iter().all(|key| has(other, key))
    }
}
