//! The Redis store on more than one server: clusters, sentinels, shards, and checks of several limits on
//! different servers.

// Many tests only charge and do not read the decision.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod across;
mod across_failing;
mod across_holds;
mod across_holds_failing;
mod changed_limits;
#[path = "../shared/child.rs"]
mod child;
mod cluster;
mod failover_holds;
mod history;
mod live_processes;
mod polling;
mod replica;
mod runtimes;
mod sentinel;
mod sentinel_rights;
mod setup;
mod shards;
mod watched;
