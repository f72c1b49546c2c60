//! Tokens that count, and every way we know to pass off one that should not.

mod attacks;
mod claims;
mod key;
mod key_set;
mod keys;
mod memory;
mod rules;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};

use super::*;

const SECRET: &[u8] = b"a secret for tests, 34 bytes long.";
const NOW_US: u64 = 1_700_000_000_000_000;

/// Claims that count for 100 seconds from [`NOW_US`].
const CLAIMS: &str = r#"{"sub":"ada","exp":1700000100}"#;

/// Who makes tokens.
#[derive(Clone, Copy, Debug)]
enum Issuer {
    Hs256(&'static [u8]),
    Rs256,
    Es256,
    Es384,
    EdDsa,
}

const ISSUERS: [Issuer; 5] =
    [Issuer::Hs256(SECRET), Issuer::Rs256, Issuer::Es256, Issuer::Es384, Issuer::EdDsa];

impl Issuer {
    /// A token with this header and these claims, signed.
    fn token(self, header: &str, claims: &str) -> String {
        self.sign(&format!("{}.{}", encode(header), encode(claims)))
    }

    /// A token with a header of its own.
    fn token_with(self, claims: &str) -> String {
        self.token(&format!(r#"{{"typ":"JWT","alg":"{}"}}"#, self.algorithm()), claims)
    }

    /// Appends a signature to any message.
    fn sign(self, message: &str) -> String {
        let (key, algorithm) = match self {
            Issuer::Hs256(secret) => (Ok(EncodingKey::from_secret(secret)), Algorithm::HS256),
            Issuer::Rs256 => {
                (EncodingKey::from_rsa_pem(keys::RSA_PRIVATE.as_bytes()), Algorithm::RS256)
            }
            Issuer::Es256 => {
                (EncodingKey::from_ec_pem(keys::P256_PRIVATE.as_bytes()), Algorithm::ES256)
            }
            Issuer::Es384 => {
                (EncodingKey::from_ec_pem(keys::P384_PRIVATE.as_bytes()), Algorithm::ES384)
            }
            Issuer::EdDsa => {
                (EncodingKey::from_ed_pem(keys::ED25519_PRIVATE.as_bytes()), Algorithm::EdDSA)
            }
        };
        let signature = crypto::sign(message.as_bytes(), &key.unwrap(), algorithm).unwrap();
        format!("{message}.{signature}")
    }

    fn key(self) -> JwtKey {
        match self {
            Issuer::Hs256(secret) => JwtKey::hs256(secret),
            Issuer::Rs256 => JwtKey::rs256(keys::RSA_PUBLIC.as_bytes()),
            Issuer::Es256 => JwtKey::es256(keys::P256_PUBLIC.as_bytes()),
            Issuer::Es384 => JwtKey::es384(keys::P384.as_bytes()),
            Issuer::EdDsa => JwtKey::eddsa(keys::ED25519.as_bytes()),
        }
        .unwrap()
    }

    /// Believes this issuer to the microsecond.
    fn jwt(self) -> Jwt {
        Jwt::new([self.key()]).unwrap().leeway(Duration::ZERO)
    }

    fn algorithm(self) -> &'static str {
        match self {
            Issuer::Hs256(_) => "HS256",
            Issuer::Rs256 => "RS256",
            Issuer::Es256 => "ES256",
            Issuer::Es384 => "ES384",
            Issuer::EdDsa => "EdDSA",
        }
    }
}

fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

fn at(jwt: &Jwt, token: &str, now_us: u64) -> Result<Arc<Claims>, InvalidToken> {
    match jwt.verify(token, now_us, || true) {
        TokenStatus::Verified(claims) => Ok(claims),
        TokenStatus::Invalid(invalid) => Err(invalid),
        TokenStatus::KeyPending => panic!("all keys are here"),
        TokenStatus::NotVerified => panic!("it may"),
    }
}

/// Why a token does not count now. `None` if it does.
fn why_not(jwt: &Jwt, token: &str) -> Option<InvalidToken> {
    at(jwt, token, NOW_US).err()
}

/// Why a token does not count, found without a signature being computed. `None` if one would be.
fn why_not_for_free(jwt: &Jwt, token: &str) -> Option<InvalidToken> {
    match jwt.verify(token, NOW_US, || false) {
        TokenStatus::Verified(_) => panic!("nobody verified it"),
        TokenStatus::Invalid(invalid) => Some(invalid),
        TokenStatus::KeyPending => panic!("all keys are here"),
        TokenStatus::NotVerified => None,
    }
}
