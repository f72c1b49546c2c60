//! What a limiter promises, whichever store it is on: written once, run on each.
//!
//! A behaviour is an `async fn` of a [`Make`], which opens an empty limiter; a property is a plain
//! `fn` of it, which opens one for every case. `suite!` makes each of them a test for one store.

#![allow(clippy::panic, clippy::unwrap_used)]

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
