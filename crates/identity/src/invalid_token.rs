//! The reasons to reject a token.

/// The reason why a token is rejected. Contains no part of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// The token has more than 8 KiB, or its header more than 1 KiB, in base64url.
    #[error("the token is longer than 8 KiB, or its header longer than 1 KiB")]
    TooLong,
    /// The token is not three parts of base64url with two JSON objects first; or a claim is not a number and must be one.
    #[error("the token is malformed")]
    Malformed,
    /// The header requires an extension that is not supported (`crit`).
    #[error("the token asks for an extension that is not supported")]
    Critical,
    /// The token's algorithm is not one of HS256, RS256, ES256, ES384 and EdDSA, or not the algorithm of its key.
    #[error("the token's algorithm is not its key's")]
    Algorithm,
    /// There is no key for the token.
    #[error("the token's key is unknown")]
    UnknownKey,
    /// The signature was not made with the token's key.
    #[error("the token's signature does not hold")]
    Signature,
    /// The token has no `exp`.
    #[error("the token has no expiry")]
    NoExpiry,
    /// The time in `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// The time in `nbf` is still to come.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token's `iss` is not the required issuer.
    #[error("the token is from another issuer")]
    Issuer,
    /// The token's `aud` does not have the required audience.
    #[error("the token is for another audience")]
    Audience,
}
