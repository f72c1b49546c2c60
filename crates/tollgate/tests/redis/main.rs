//! The Redis store beside what can go wrong on a server: scripts that are gone, keys that are not
//! ours, users that may do little, connections that break, answers that are nonsense.
//!
//! What it shares with every other store is in `tests/conformance`. Each test has a server of its
//! own, real or fake.

#![allow(clippy::panic, clippy::unwrap_used)]

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
