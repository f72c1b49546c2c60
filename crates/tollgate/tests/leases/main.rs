//! Leased scopes: what the limiter does with the leases of a store, under tokio's paused clock.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod one_limit;
mod several_limits;
mod store;
