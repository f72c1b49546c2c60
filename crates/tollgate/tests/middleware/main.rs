//! The middleware, as services see it and over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod headers;
mod layer;
mod shaping;
mod support;
