//! Limits hold behind each of several real gateways.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod behaviour;
mod caddy;
mod envoy;
#[path = "../serve/eventually.rs"]
mod eventually;
mod frozen;
mod gateway;
mod nginx;
mod operators;
#[allow(dead_code)]
#[path = "../serve/prometheus.rs"]
mod prometheus;
// The tests of the server use the rest of this module.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
mod traefik;
