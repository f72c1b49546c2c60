//! Waiting for a turn: order, patience, delays and giving up, under tokio's paused clock.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, unused_must_use)]

mod cancel;
mod changed;
mod forecast;
mod order;
mod patience;
mod random;
mod setup;
mod shaping;
mod threads;
