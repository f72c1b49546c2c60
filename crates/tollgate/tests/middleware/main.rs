//! The middleware, called as a service and over real sockets.
// Many tests only charge and do not read the decision.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, unused_must_use)]

mod failure;
mod headers;
mod holds;
mod identity;
mod layer;
mod leases;
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
