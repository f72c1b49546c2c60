//! Requests over HTTP: who a client is, and what it is told.

#[cfg(feature = "jwt")]
mod jwt;

#[cfg(feature = "jwt")]
pub use jwt::{Claims, Invalid, Jwt, JwtError, JwtKey};
