//! The Dockerfile, the compose file and the Kubernetes manifest: their syntax, and whether they fit the command.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod compose;
mod docker;
mod files;
mod kubernetes;
// What is not used here, the tests of the server use.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
