//! A client's requests wait their turn, and for as long as the server asks, under tokio's paused clock.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod failure;
mod giving_up;
mod hold;
mod order;
mod patience;
mod retry;
mod setup;
mod sockets;
