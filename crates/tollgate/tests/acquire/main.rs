//! Waiting for a turn: order, patience, delays and giving up, under tokio's paused clock.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cancel;
mod changed;
mod forecast;
mod order;
mod patience;
mod random;
mod setup;
mod shaping;
mod threads;
