//! Waiting in `acquire`: order, `max_wait`, delays and giving up, under tokio's paused clock.

// Many tests only charge and do not read the decision.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, unused_must_use)]

mod cancel;
mod changed;
mod forecast;
mod max_wait;
mod order;
mod paced;
mod random;
mod setup;
mod shaping;
mod threads;
