//! Keys that verify tokens, from an issuer's key set.

#![allow(clippy::unwrap_used)]

mod issuer;
mod keys;
