//! Rules, from their file to decisions.

// Many tests only charge and do not read the decision.
#![allow(clippy::unwrap_used, clippy::panic, unused_must_use)]

mod concurrency;
mod domains;
mod each;
mod example;
mod explained;
mod following;
mod leases;
#[path = "../shared/log.rs"]
mod log;
mod matching;
mod networks;
mod reloading;
mod replacing;
mod reservations;
mod setup;
mod spending;
mod stores;
