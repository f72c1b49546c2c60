//! Exact rate-limiting algorithms as pure functions.
//!
//! No clock, no I/O, no lock and no dependency: time is an argument, in microseconds since the
//! Unix epoch, and a key's state is a small plain value that the caller keeps.
//!
//! ```
//! use tollgate_core::{Ask, Cost, Limit};
//!
//! let limit: Limit = "sliding-window-counter limit=100 window=60s".parse()?;
//! let mut state = limit.fresh();
//! let checked = limit.check(&mut state, 90_000_000, Ask::new(Cost::ONE));
//! assert_eq!(checked.decision.remaining, 99);
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```
//!
//! The layout:
//!
//! - [`Limit`]: an algorithm with its numbers; parses from and prints to text, and refuses numbers
//!   that would not be exact.
//! - [`Algorithm`]: what each algorithm does; one file each, the buckets on one kernel.
//! - [`Decision`], [`Receipt`]: the answer, and the way to take a charge back.
//! - [`check_all`]: several limits, all or none.
//! - [`store`]: what an author of a store needs: fast paths, logs in few bytes, the algorithms in Lua.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod algorithm;
mod decision;
mod limit;
mod muldiv;
pub mod store;
mod together;

pub use algorithm::{
    Algorithm, Entry, Fill, FixedWindow, LeakyBucket, Level, Log, MAX_STEP_BACK_US, MAX_TIME_US,
    Mode, SlidingWindowCounter, SlidingWindowLog, TokenBucket, Window, WindowPair,
};
pub use decision::{Ask, Checked, Cost, CostError, Decision, Place, Receipt, Retry, Verdict};
pub use limit::{
    AlgorithmName, Bound, CarryOver, Excerpt, Limit, LimitError, MAX_FILL_US, MAX_LOG_UNITS,
    MAX_UNITS, MAX_WINDOW_US, Notation, Rate, State, duration_text, parse_duration,
};
pub use together::{Charge, Intent, Part, Role, TightestLimit, Together, check_all};
