//! The server, as a process of its own, over real sockets.

#![allow(clippy::unwrap_used)]

mod check;
mod eventually;
mod fleet;
mod grpc;
mod kept;
mod lifecycle;
mod readiness;
mod server;
