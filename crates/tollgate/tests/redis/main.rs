//! The Redis store beside what can go wrong on a server: scripts that are gone, keys that are not
//! ours, users that may do little, connections that break, answers that are nonsense.
//!
//! What it shares with every other store is in `tests/conformance`. Each test has a server of its
//! own, real or fake.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod acl;
mod acquire;
mod batching;
mod changed_limits;
mod denials;
mod expiry;
mod failures;
mod fake;
mod garbage;
mod keys;
mod nonsense;
mod processes;
mod runtimes;
mod scripts;
mod secrets;
mod setup;
