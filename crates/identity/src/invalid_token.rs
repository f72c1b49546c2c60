//! The reasons to reject a token.

/// The reason why a token is rejected. Contains nothing of the token itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// Over 8 KiB, or its header over 1 KiB, in base64url.
    #[error("the token is longer than 8 KiB, or its header longer than 1 KiB")]
    TooLong,
    /// Not three parts of base64url, the first two JSON objects; or a claim that must be a number is not.
    #[error("the token is malformed")]
    Malformed,
    /// Its header says that something must be understood which is not (`crit`).
    #[error("the token asks for an extension that is not supported")]
    Critical,
    /// Its algorithm is not one of HS256, RS256, ES256, ES384 and EdDSA, or not the algorithm of its key.
    #[error("the token's algorithm is not its key's")]
    Algorithm,
    /// None of the keys is for it.
    #[error("the token's key is unknown")]
    UnknownKey,
    /// Its key did not sign it.
    #[error("the token's signature does not hold")]
    Signature,
    /// It has no `exp`.
    #[error("the token has no expiry")]
    NoExpiry,
    /// Its `exp` has come.
    #[error("the token has expired")]
    Expired,
    /// Its `nbf` has not come.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// Its `iss` is another.
    #[error("the token is from another issuer")]
    Issuer,
    /// Its `aud` is another.
    #[error("the token is for another audience")]
    Audience,
}
