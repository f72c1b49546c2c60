//! The tests that every store of Tollgate must pass, written once and run on each store.
//!
//! The author of a [`RemoteStore`](tollgate_limiter::store::RemoteStore) adds this crate to the dev-dependencies and
//! writes one file, `tests/conformance.rs`. [`suite!`] makes a `#[test]` of every behaviour:
//!
//! ```
//! # use tollgate_limiter::{Error, Limiter, ManualClock};
//! tollgate_conformance::suite!(make);
//!
//! /// Opens an empty limiter on this clock.
//! fn make(clock: &ManualClock) -> Limiter {
//! #   #[cfg(any())]
//!     let store = Limiter::builder().clock(clock).store(|_| MyStore::connect("127.0.0.1:7000"));
//! #   #[cfg(any())]
//!     store.unwrap().on_failure(OnFailure::Closed).deadline(Duration::from_secs(30)).build()
//! #   ; Limiter::builder().clock(clock).build()
//! }
//! ```
//!
//! A store with holds ([`RemoteStore::has_holds`](tollgate_limiter::store::RemoteStore::has_holds)) also calls
//! [`hold_suite!`], and one with leases ([`has_leases`](tollgate_limiter::store::RemoteStore::has_leases))
//! [`lease_suite!`].
//!
//! - The limiter must be empty, because tests use the same names and keys. A store that is shared by the tests needs a
//!   prefix of its own for each limiter.
//! - The policy is [`OnFailure::Closed`](tollgate_limiter::OnFailure::Closed), so that a store that fails fails the
//!   test, and the deadline is long.
//! - Several stores, or several settings of one, are several modules, each with a `make` and a [`suite!`].
//! - `PROPTEST_CASES=1000` tries more random cases than the 64 or 128 of each property.
//!
//! The tests open hundreds of limiters and make some hundred thousand requests. They compare every answer with
//! [`tollgate_core`], field by field. `tests/example_store` of this crate is a small store that passes.
//!
//! [`any`] and [`trace`] are the random limits and requests that the properties use. [`history`] judges what callers in
//! several processes saw of a store.
//!
//! A behaviour is an `async fn` of a [`Make`]; a property is a plain `fn` of it, which opens a limiter for every case.

// All of it runs in tests. Many only charge and do not read the decision.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

#[doc(hidden)]
pub mod agreement;
pub mod any;
#[doc(hidden)]
pub mod batches;
#[doc(hidden)]
pub mod changed;
#[doc(hidden)]
pub mod changing;
#[doc(hidden)]
pub mod clocks;
#[doc(hidden)]
pub mod concurrency;
pub mod history;
#[doc(hidden)]
pub mod holds;
#[doc(hidden)]
pub mod joint_holds;
#[doc(hidden)]
pub mod keys;
#[doc(hidden)]
pub mod leases;
#[doc(hidden)]
pub mod promises;
#[doc(hidden)]
pub mod refunds;
pub mod store;
mod suite;
#[doc(hidden)]
pub mod threads;
#[doc(hidden)]
pub mod together;
pub mod trace;

pub use store::Make;
