//! The Lua twins make the same decisions as the Rust code, on a real Redis and a real Valkey.
//!
//! Rust plays a random trace first and writes a line for each step. The servers play the same steps
//! and must write the same lines. `PROPTEST_CASES` sets the number of traces.

#![allow(clippy::panic, clippy::unwrap_used)]

mod decisions;
mod muldiv;
mod servers;
mod trace;
