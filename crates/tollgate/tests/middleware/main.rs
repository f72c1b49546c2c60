//! The middleware, as services see it and over real sockets.
// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unused_must_use)]

mod failure;
mod headers;
mod identity;
mod layer;
#[path = "../shared/log.rs"]
mod log;
mod refunds;
mod reload;
mod servers;
mod shaping;
mod sockets;
mod spoofing;
mod support;
mod tokens;
mod tonic;
