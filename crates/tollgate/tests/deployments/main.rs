//! The Redis store on more than one server: clusters, sentinels, shards, and several limits of one
//! check on different ones.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod across;
mod across_failing;
mod asking;
mod changed_limits;
mod cluster;
mod replica;
mod runtimes;
mod sentinel;
mod sentinel_rights;
mod setup;
mod shards;
mod watched;
