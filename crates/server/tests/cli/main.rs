//! The command `tollgate`, run as people run it.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod check;
mod command;
mod complete;
mod fake;
mod help;
mod serve;
// What is not used here, the tests of the server use.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
mod variables;
