//! Tests of the server in its own process, over real sockets.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod authorize;
mod batch;
mod check;
mod collector;
mod concurrency;
mod connections;
mod document;
mod domains;
mod eventually;
mod fleet;
mod grpc;
mod holds;
mod holds_on_redis;
mod hostile;
mod kept_connection;
mod leases;
mod lifecycle;
mod limits;
mod logs;
mod memory;
mod metrics;
mod metrics_examples;
mod networks;
mod openapi;
mod operations;
mod operators;
mod outage;
mod page;
mod playground;
mod prometheus;
mod readiness;
mod refund;
mod rls;
mod server;
mod system;
mod tokens;
mod traces;
