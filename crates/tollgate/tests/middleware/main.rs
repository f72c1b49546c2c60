//! The middleware, as services see it and over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod failure;
mod headers;
mod identity;
mod layer;
#[path = "../shared/log.rs"]
mod log;
mod reload;
mod servers;
mod shaping;
mod sockets;
mod spoofing;
mod support;
mod tokens;
mod tonic;
