//! Exact rate-limiting algorithms as pure functions.
//!
//! No clock, no I/O, no lock and, without features, no dependency: time is an argument, in microseconds since the
//! Unix epoch, and a key's state is a small plain value that the caller keeps.
//!
//! ```
//! use tollgate_core::{Cost, Limit, UnitRequest};
//!
//! let limit: Limit = "sliding-window-counter limit=100 window=60s".parse()?;
//! let mut state = limit.fresh();
//! let checked = limit.check(&mut state, 90_000_000, UnitRequest::new(Cost::ONE));
//! assert_eq!(checked.decision.remaining, 99);
//! # Ok::<(), tollgate_core::LimitError>(())
//! ```
//!
//! The layout:
//!
//! - [`Limit`]: an algorithm with its numbers; parses from and prints to text, and rejects numbers
//!   with which the arithmetic would not be exact.
//! - [`Algorithm`]: the operations of each algorithm; one file each, the buckets share one implementation.
//! - [`LimitDecision`], [`ChargeReceipt`]: the answer, and the record that a refund of the charge needs.
//! - [`check_all()`]: several limits, all or none.
//! - [`store`]: for authors of stores: fast paths, logs in few bytes, the algorithms in Lua.
//!
//! With the feature `serde` these types are `Serialize` and `Deserialize`:
//!
//! | type | form | as JSON |
//! |---|---|---|
//! | [`Limit`] | its text | `"token-bucket capacity=60 refill=1/s"` |
//! | [`LimitDecision`] | fields, named as `tollgate replay` names them | `{"allowed":true,"limit":60,"remaining":59,"retry_after_us":null,"reset_after_us":1000000,"delay_us":0,"first_back_us":0}` |
//! | [`Verdict`] | three of those fields | `{"allowed":false,"retry_after_us":100000,"delay_us":0}` |
//! | [`Retry`] | microseconds, or nothing if waiting cannot help | `100000`, `null` |
//! | [`ChargeReceipt`] | a cost and a [`ChargePlace`] | `{"cost":1,"place":{"bucket":{"charged":7,"over_us":9}}}` |
//! | [`Cost`] | a number | `1` |
//!
//! Deserialized values are checked like values made in code. A receipt that is invented, or refunded twice, gives back
//! units that other requests were charged, but never more than is spent.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod algorithm;
mod check_all;
mod decision;
mod holds;
mod lease;
mod limit;
mod muldiv;
mod parameter;
mod range;
#[cfg(feature = "serde")]
mod serialize;
pub mod store;

pub use algorithm::{
    Algorithm, Concurrency, Entry, Fill, FixedWindow, KeyClock, LeakyBucket, Level, Log,
    MAX_STEP_BACK_US, MAX_TIME_US, Mode, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
    Window, WindowPair,
};
pub use check_all::{
    CombinedDecision, DecisionPart, Intent, LimitCheck, Role, TightestLimit, check_all,
};
pub use decision::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, CostError, LimitDecision, Retry, UnitRequest,
    Verdict,
};
pub use holds::{
    EndedHold, ExtendAnswer, Extension, GrantedExtension, HoldError, HoldGrowth, HoldId,
    HoldReference, HoldTime, HoldUse, Holds, MAX_HOLDS, OpenHold, Reservation, ReserveAnswer,
    SettleAnswer, Settlement,
};
pub use lease::{LeaseAnswer, LeaseRequest, LeaseState};
pub use limit::{Bound, CarryOver, Limit, State};
pub use parameter::{
    AlgorithmName, Excerpt, LimitError, Notation, Rate, duration_text, parse_duration,
};
pub use range::{MAX_FILL_US, MAX_LOG_UNITS, MAX_UNITS, MAX_WINDOW_US};
