//! What a limiter promises, whichever store it is on: the suite of `tollgate-conformance`, run on each of ours.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod memory;
#[cfg(feature = "redis")]
mod redis;

#[cfg(feature = "redis")]
use tollgate_conformance as suite;
