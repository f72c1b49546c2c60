//! What a limiter promises, whichever store it is on: written once, run on each.
//!
//! A behaviour is an `async fn` of a [`Make`], which opens an empty limiter; a property is a plain
//! `fn` of it, which opens one for every case. `suite!` makes each of them a test for one store.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod agreement;
#[allow(dead_code)]
#[path = "../../../core/tests/behaviour/any.rs"]
mod any;
mod batches;
mod changed;
mod changing;
mod clocks;
mod keys;
mod memory;
mod promises;
#[cfg(feature = "redis")]
mod redis;
mod refunds;
mod store;
mod suite;
mod threads;
mod together;
#[allow(dead_code)]
#[path = "../../../core/tests/behaviour/trace.rs"]
mod trace;
