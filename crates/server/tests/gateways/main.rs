//! Real gateways before a real server: limits are enforced through each.

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
// What is not used here, the tests of the server use.
#[allow(dead_code)]
#[path = "../serve/server.rs"]
mod server;
mod traefik;
