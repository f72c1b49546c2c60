//! The Dockerfile, the compose file and the Kubernetes manifest: their syntax, and whether they match the command.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod compose;
mod docker;
mod files;
mod kubernetes;
// The tests of the server use the rest of this module.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
