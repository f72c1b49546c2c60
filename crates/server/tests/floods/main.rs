//! Attacks on the server's ports: its memory stays within the documented bound, and other clients are answered.
//!
//! These tests are a separate program and run one at a time, because a flood uses every core. Each takes a few seconds.
//! SOAK_SECONDS makes the floods of `calls` longer, and gives them the number of connections of a real attacker.
//!
//! - `calls`: floods of calls; `held`: clients that make the server hold memory; `frames`: frames without a call
//! - `honest`: the attacked server, and the honest clients that it has to answer during the attack
//! - `http2`: bytes that an attacker sends

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod calls;
mod frames;
mod held;
mod honest;
mod http2;
#[path = "../serve/prometheus.rs"]
#[allow(dead_code)]
mod prometheus;
#[path = "../serve/rls/raw.rs"]
#[allow(dead_code)]
mod raw;
#[path = "../serve/server.rs"]
#[allow(dead_code)]
mod server;
