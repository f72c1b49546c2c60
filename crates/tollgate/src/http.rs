//! Requests over HTTP: who a client is, and what it is told.
//!
//! The middleware in [`tower`](crate::tower) is made of it, and a server of one's own can be.
//!
//! - `head`: a request without its body; `identity`: who sent it
//! - `proxies`, `forwarded`: the client's address behind proxies; `tokens`, `jwt`: the claims of its token;
//!   `jwks`: its issuer's keys, fetched
//! - `outcome`: what was decided about it
//! - `headers`, `problem`: how the client is told

mod forwarded;
mod head;
mod headers;
mod identity;
#[cfg(feature = "jwks")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
mod outcome;
mod problem;
mod proxies;
#[cfg(feature = "jwt")]
mod tokens;

pub use forwarded::Forwarding;
pub(crate) use head::{Findings, PREFLIGHT};
pub use head::{Peer, RequestHead};
pub use headers::HeaderFamilies;
pub(crate) use headers::{Ready, Told};
pub use identity::{Identity, NOWHERE};
#[cfg(feature = "jwks")]
pub use jwks::JwksUrl;
#[cfg(feature = "jwt")]
pub(crate) use jwt::KeySet;
#[cfg(feature = "jwt")]
pub use jwt::{Claims, InvalidToken, Jwks, JwksError, JwksStatus, Jwt, JwtError, JwtKey};
pub use outcome::{Outcome, Policy};
pub use problem::{Reason, Refusal};
pub use proxies::{TrustError, TrustedProxies};
#[cfg(feature = "jwt")]
pub use tokens::Unwelcome;

pub use crate::address::{ClientAddress, Ipv6Prefix, Ipv6PrefixError};
