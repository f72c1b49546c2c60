//! Identifies the sender of an HTTP request: by its address, an API key, or a token.
//!
//! Use it through the crate `tollgate`, as `tollgate::http`. Modules, each using those before it:
//!
//! - [`config`]: how clients are identified, as configured in a file
//! - `forwarded`, `proxies`: the client's address behind proxies
//! - `invalid_token`, `token_refusal`: why a token is rejected, and why its request is refused
//! - `jwt`, `jwks`: the signature and the claims of a token; `tokens`: which tokens are accepted
//! - `identity`: the settings; `head`: a request without its body, and its sender; `with_tokens`: the sender's token

pub mod config;
mod forwarded;
mod head;
mod identity;
mod invalid_token;
mod proxies;
mod token_refusal;

// Tokens need cryptography, and keys from a URL a client, which not every program wants to build.
#[cfg(feature = "jwks")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
#[cfg(feature = "jwt")]
mod tokens;
#[cfg(not(feature = "jwt"))]
#[path = "tokens_off.rs"]
mod tokens;
#[cfg(feature = "jwt")]
mod with_tokens;

pub use forwarded::Forwarding;
pub use head::{Findings, PREFLIGHT, Peer, RequestHead};
pub use identity::{Identity, UNKNOWN_ADDRESS};
pub use invalid_token::InvalidToken;
#[cfg(feature = "jwks")]
pub use jwks::JwksUrl;
#[cfg(feature = "jwt")]
pub use jwt::{Claims, Jwks, JwksError, JwksStatus, Jwt, JwtError, JwtKey, KeySet};
pub use proxies::{TrustError, TrustedProxies};
pub use token_refusal::TokenRefusal;
pub use tollgate_limiter::{ClientAddress, Ipv6Prefix, Ipv6PrefixError};
