//! The keys that tokens are signed with.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::crypto::CryptoProvider;
use jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER;
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};

use crate::config::{JwtAlgorithm, JwtKeyConfig, MIN_SECRET_BYTES};

/// The provider of cryptography. Named here, because the process's default may be unset, which panics, or be another one.
static PROVIDER: &CryptoProvider = &DEFAULT_PROVIDER;

/// The sizes of RSA keys. RFC 7518, 3.3 sets the smallest, the library the largest.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// The beginning of the DER of every public key on the curve P-256; the point follows, in 65 bytes.
const P256_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\
    \x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";

/// The beginning of the DER of every public key on the curve P-384; the point follows, in 97 bytes.
const P384_PREFIX: &[u8] = b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\
    \x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00";

/// The beginning of the DER of every Ed25519 public key (RFC 8410, 4); the key follows, in 32 bytes.
const ED25519_PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// The length of an Ed25519 public key.
const ED25519_BYTES: usize = 32;

/// The mark of a point that is written in full.
const UNCOMPRESSED: u8 = 4;

/// A key with which tokens are verified, by its own algorithm and no other.
///
/// ```
/// use tollgate::http::{JwtError, JwtKey};
///
/// let short = JwtKey::hs256(b"secret").err();
/// assert_eq!(short, Some(JwtError::ShortSecret { bytes: 6, least: 32 }));
/// ```
#[derive(Clone)]
pub struct JwtKey {
    algorithm: Algorithm,
    id: Option<Box<str>>,
    key: DecodingKey,
}

/// Why a key cannot be used. Contains no part of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtError {
    /// A secret that can be guessed.
    #[error("an HS256 secret of {bytes} bytes; use at least {least} random ones (RFC 7518, 3.2)")]
    ShortSecret {
        /// The length of the secret.
        bytes: usize,
        /// The least length.
        least: usize,
    },
    /// A secret that may be public.
    #[error(
        "an HS256 secret that is a PEM; use `JwtKey::rs256` or `JwtKey::es256` for public keys"
    )]
    PemAsSecret,
    /// The text is not the PEM of exactly one public key.
    #[error("not the PEM of one public key; it begins with `-----BEGIN PUBLIC KEY-----`")]
    NotPem,
    /// A private key, which only the issuer should have.
    #[error(
        "a private key, which only signs; use its public one: `openssl pkey -pubout -in key.pem`"
    )]
    PrivateKey,
    /// A certificate, whose name and expiry would be ignored.
    #[error("a certificate; use its public key: `openssl x509 -noout -pubkey -in certificate.pem`")]
    Certificate,
    /// RS256 with another kind of key.
    #[error("not an RSA public key; use `JwtKey::es256` for one on the curve P-256")]
    NotRsa,
    /// An RSA key that is too weak, or too slow.
    #[error("an RSA key of {bits} bits; use one of 2048 to 8192 (RFC 7518, 3.3)")]
    RsaBits {
        /// The bits of its modulus.
        bits: usize,
    },
    /// ES256 with another kind of key, another curve, or a compressed point.
    #[error(
        "not a public key on the curve P-256 with its point in full; \
         use `openssl pkey -pubout -ec_conv_form uncompressed -in key.pem`, or `JwtKey::rs256` for RSA"
    )]
    NotP256,
    /// ES384 with another kind of key, another curve, or a compressed point.
    #[error(
        "not a public key on the curve P-384 with its point in full; \
         use `openssl pkey -pubout -ec_conv_form uncompressed -in key.pem`"
    )]
    NotP384,
    /// EdDSA with another kind of key, or with Ed448.
    #[error(
        "not an Ed25519 public key; use `JwtKey::rs256` for RSA, `JwtKey::es256` for the curve P-256"
    )]
    NotEd25519,
    /// There are no keys, so that no token could be verified.
    #[error("no keys; give at least one")]
    NoKeys,
    /// Two keys have the same id, so that a token could name both.
    #[error("two keys have the id `{id}`; give each its own")]
    SameId {
        /// The id.
        id: Box<str>,
    },
    /// Too many keys have no id: a token that names no key would be tried with all of them.
    #[error(
        "over {most} keys of one algorithm have no id; give them the ids that tokens name in `kid`"
    )]
    TooManyWithoutId {
        /// The largest number.
        most: usize,
    },
}

impl JwtKey {
    /// Returns the key that a file configures.
    pub(crate) fn configured(config: &JwtKeyConfig) -> Result<JwtKey, JwtError> {
        let key = JwtKey::of(config.algorithm, &config.material)?;
        Ok(match &config.id {
            Some(id) => key.id(&**id),
            None => key,
        })
    }

    /// Returns a key of this algorithm, made from a secret or a PEM.
    pub fn of(algorithm: JwtAlgorithm, material: &[u8]) -> Result<JwtKey, JwtError> {
        match algorithm {
            JwtAlgorithm::Hs256 => JwtKey::hs256(material),
            JwtAlgorithm::Rs256 => JwtKey::rs256(material),
            JwtAlgorithm::Es256 => JwtKey::es256(material),
            JwtAlgorithm::Es384 => JwtKey::es384(material),
            JwtAlgorithm::EdDsa => JwtKey::eddsa(material),
        }
    }

    /// Returns the key of a secret that the issuer has too (HMAC with SHA-256), of at least 32 bytes.
    pub fn hs256(secret: &[u8]) -> Result<JwtKey, JwtError> {
        // A PEM may be a public key: everyone with that key could then sign tokens.
        if secret.windows(BEGIN.len()).any(|bytes| bytes == BEGIN.as_bytes()) {
            return Err(JwtError::PemAsSecret);
        }
        if secret.len() < MIN_SECRET_BYTES {
            return Err(JwtError::ShortSecret { bytes: secret.len(), least: MIN_SECRET_BYTES });
        }
        Ok(JwtKey::new(Algorithm::HS256, DecodingKey::from_secret(secret)))
    }

    /// Returns an RSA public key of 2048 to 8192 bits, from its PEM (PKCS #1 v1.5 with SHA-256).
    pub fn rs256(pem: &[u8]) -> Result<JwtKey, JwtError> {
        JwtKey::rsa_der(&public_key(pem)?)
    }

    /// Returns an RSA public key from its two numbers, with the same bounds.
    pub(super) fn rsa_components(modulus: &[u8], exponent: &[u8]) -> Result<JwtKey, JwtError> {
        // Converted to DER, so that these numbers get the same checks as a PEM.
        JwtKey::rsa_der(&der(0x30, &[der_number(modulus), der_number(exponent)].concat()))
    }

    /// Returns a public key on the curve P-256, from 64 bytes: x and y.
    pub(super) fn p256_point(point: &[u8]) -> JwtKey {
        let point = [&[UNCOMPRESSED], point].concat();
        JwtKey::new(Algorithm::ES256, DecodingKey::from_ec_der(&point))
    }

    /// Returns a public key on the curve P-384, from 96 bytes: x and y.
    pub(super) fn p384_point(point: &[u8]) -> JwtKey {
        let point = [&[UNCOMPRESSED], point].concat();
        JwtKey::new(Algorithm::ES384, DecodingKey::from_ec_der(&point))
    }

    pub(super) fn ed25519(key: &[u8; ED25519_BYTES]) -> JwtKey {
        JwtKey::new(Algorithm::EdDSA, DecodingKey::from_ed_der(key))
    }

    /// Returns an RSA public key from its DER, with or without the name of its algorithm.
    fn rsa_der(der: &[u8]) -> Result<JwtKey, JwtError> {
        let components = (PROVIDER.key_utils.rsa_pub_components_from_public_key)(der);
        let (modulus, exponent) = components.map_err(|_| JwtError::NotRsa)?;
        let bits = bits(&modulus);
        if !RSA_BITS.contains(&bits) {
            return Err(JwtError::RsaBits { bits });
        }
        let key = DecodingKey::from_rsa_raw_components(&modulus, &exponent);
        Ok(JwtKey::new(Algorithm::RS256, key))
    }

    /// Returns a public key on the curve P-256, from its PEM (ECDSA with SHA-256).
    pub fn es256(pem: &[u8]) -> Result<JwtKey, JwtError> {
        let der = public_key(pem)?;
        let point = der.strip_prefix(P256_PREFIX).ok_or(JwtError::NotP256)?;
        if point.len() != 65 || point.first() != Some(&UNCOMPRESSED) {
            return Err(JwtError::NotP256);
        }
        Ok(JwtKey::new(Algorithm::ES256, DecodingKey::from_ec_der(point)))
    }

    /// Returns a public key on the curve P-384, from its PEM (ECDSA with SHA-384).
    pub fn es384(pem: &[u8]) -> Result<JwtKey, JwtError> {
        let der = public_key(pem)?;
        let point = der.strip_prefix(P384_PREFIX).ok_or(JwtError::NotP384)?;
        if point.len() != 97 || point.first() != Some(&UNCOMPRESSED) {
            return Err(JwtError::NotP384);
        }
        Ok(JwtKey::new(Algorithm::ES384, DecodingKey::from_ec_der(point)))
    }

    /// Returns an Ed25519 public key, from its PEM. Tokens call the algorithm `EdDSA`, or `Ed25519` (RFC 9864).
    pub fn eddsa(pem: &[u8]) -> Result<JwtKey, JwtError> {
        let der = public_key(pem)?;
        let point = der.strip_prefix(ED25519_PREFIX).ok_or(JwtError::NotEd25519)?;
        if point.len() != ED25519_BYTES {
            return Err(JwtError::NotEd25519);
        }
        Ok(JwtKey::new(Algorithm::EdDSA, DecodingKey::from_ed_der(point)))
    }

    /// Uses this key only for tokens that name this id (`kid`).
    pub fn id(mut self, id: impl Into<String>) -> JwtKey {
        self.id = Some(id.into().into());
        self
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.id.as_deref()
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether both keys may be the key of the same token.
    pub(super) fn is_alike(&self, other: &JwtKey) -> bool {
        self.algorithm == other.algorithm && self.id == other.id
    }

    /// Whether both are the same key, for the same tokens.
    pub(super) fn is_same(&self, other: &JwtKey) -> bool {
        use DecodingKeyKind::{RsaModulusExponent, SecretOrDer};
        let is_same_key = match (self.key.kind(), other.key.kind()) {
            (SecretOrDer(own), SecretOrDer(other)) => own == other,
            (RsaModulusExponent { n, e }, RsaModulusExponent { n: modulus, e: exponent }) => {
                n == modulus && e == exponent
            }
            _ => false,
        };
        self.is_alike(other) && is_same_key
    }

    /// Whether `signature` is the signature of `message` by this key.
    pub(super) fn signed(&self, message: &[u8], signature: &Vec<u8>) -> bool {
        let verifier = (PROVIDER.verifier_factory)(&self.algorithm, &self.key);
        verifier.is_ok_and(|verifier| verifier.verify(message, signature).is_ok())
    }

    fn new(algorithm: Algorithm, key: DecodingKey) -> JwtKey {
        JwtKey { algorithm, id: None, key }
    }
}

/// Omits the key.
impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKey")
            .field("algorithm", &self.algorithm)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

const BEGIN: &str = "-----BEGIN ";

/// Returns the DER of the one public key in a PEM. Text before and after the PEM is allowed.
fn public_key(pem: &[u8]) -> Result<Vec<u8>, JwtError> {
    let pem = str::from_utf8(pem).map_err(|_| JwtError::NotPem)?;
    if pem.contains("PRIVATE KEY-----") {
        return Err(JwtError::PrivateKey);
    }
    let (_, block) = pem.split_once(BEGIN).ok_or(JwtError::NotPem)?;
    let (label, block) = block.split_once("-----").ok_or(JwtError::NotPem)?;
    let (body, after) = block.split_once("-----END ").ok_or(JwtError::NotPem)?;
    match label {
        _ if after.contains(BEGIN) => return Err(JwtError::NotPem),
        "PUBLIC KEY" | "RSA PUBLIC KEY" => {}
        "CERTIFICATE" => return Err(JwtError::Certificate),
        _ => return Err(JwtError::NotPem),
    }
    let body: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(body).map_err(|_| JwtError::NotPem)
}

/// Returns one value in DER.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = value.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|byte| *byte == 0).collect();
    let head = match (value.len(), significant.len()) {
        // OK because the length is below 128, and a length in bytes has at most 8.
        (..128, _) => vec![tag, value.len() as u8],
        (_, bytes) => [&[tag, 0x80 | bytes as u8], &significant[..]].concat(),
    };
    [&head, value].concat()
}

/// Returns a whole number that is not negative, in DER.
fn der_number(number: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = number.iter().copied().skip_while(|byte| *byte == 0).collect();
    match digits.first() {
        Some(..128) => der(2, &digits),
        // A zero is put first, because the highest bit would be a sign.
        _ => der(2, &[&[0], &digits[..]].concat()),
    }
}

/// Returns the number of bits of a big-endian number.
pub(super) fn bits(number: &[u8]) -> usize {
    let mut digits = number.iter().skip_while(|byte| **byte == 0);
    let highest = digits.next().map_or(0, |byte| 8 - byte.leading_zeros() as usize);
    highest + 8 * digits.count()
}
