//! The Redis store on more than one server: clusters, sentinels, shards, and several limits of one
//! check on different ones.

#![allow(clippy::panic, clippy::unwrap_used)]

mod cluster;
mod setup;
