//! The command `tollgate`, run in a process.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod check;
mod command;
mod complete;
mod fake;
mod help;
mod serve;
// The tests of the server use the rest of this module.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
mod variables;
