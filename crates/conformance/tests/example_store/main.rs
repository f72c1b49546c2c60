//! An example for authors of stores, and a test that the public interface is enough to write one.
//!
//! `store.rs` is the store. This file is all that its author writes to test it. `failures.rs` shows how the limiter
//! handles a store that fails, and `local.rs` its default policy.

#![allow(clippy::panic, clippy::unwrap_used)]

mod failures;
mod local;
mod store;

use std::time::Duration;

use store::ExampleStore;
use tollgate_limiter::{Limiter, ManualClock, OnFailure};

tollgate_conformance::suite!(make);
tollgate_conformance::hold_suite!(make);
tollgate_conformance::lease_suite!(make);

fn make(clock: &ManualClock) -> Limiter {
    let store = Limiter::builder().clock(clock).store(|_| Ok(ExampleStore::start())).unwrap();
    store.on_failure(OnFailure::Closed).deadline(Duration::from_secs(30)).build()
}
