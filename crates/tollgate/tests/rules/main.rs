//! Rules, from a file to decisions.

#![allow(clippy::unwrap_used, clippy::panic)]

mod each;
mod example;
mod explained;
mod following;
#[path = "../shared/log.rs"]
mod log;
mod matching;
mod reloading;
mod replacing;
mod setup;
mod spending;
mod stores;
