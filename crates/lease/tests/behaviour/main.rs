//! The leases of a table, seen from a driver.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod bounds;
mod ends;
mod failures;
mod random;
mod renewals;
mod setup;
mod takes;
