//! A client's requests are sent at the limit's pace, and after the server's `Retry-After`, under tokio's paused clock.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod delays;
mod failure;
mod giving_up;
mod max_wait;
mod order;
mod retry;
mod setup;
mod sockets;
