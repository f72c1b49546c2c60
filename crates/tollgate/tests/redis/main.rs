//! The Redis store when a server misbehaves: missing scripts, foreign keys, users with few rights, broken
//! connections, replies in an unexpected format.
//!
//! The tests for every store are in `tests/conformance`. Each test here has its own server, real or fake.

// Many tests only charge and do not read the decision.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod acl;
mod acquire;
mod batching;
mod changed_limits;
#[path = "../shared/child.rs"]
mod child;
mod denials;
mod expiry;
mod failures;
mod fake;
mod garbage;
mod holders;
mod holds;
mod keys;
mod leases;
mod nonsense;
mod processes;
mod runtimes;
mod scripts;
mod secrets;
mod setup;
mod shares;
