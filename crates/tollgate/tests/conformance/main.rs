//! The suite of `tollgate-conformance`, run on each of our stores.

// Many tests only charge and do not read the decision.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod memory;
#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "redis")]
use tollgate_conformance as suite;
