//! The Lua twins decide as the Rust does, on a real Redis and a real Valkey.
//!
//! Rust plays a random trace first and writes down what it did, a line for each step; the servers
//! play the same steps and must write the same lines. `PROPTEST_CASES` scales it up.

#![allow(clippy::panic, clippy::unwrap_used)]

mod decisions;
mod muldiv;
mod servers;
mod trace;
