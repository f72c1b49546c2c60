//! Leases: units of a key that a process sets aside on the store, and from which it decides without asking the store.
//!
//! A state machine: no clock, no I/O, no thread. The driver passes the time, the checks and the store's answers, and
//! does what the machine returns. The simulator runs the same machine in virtual time.
//!
//! A lease never admits more than the limit. Each unit that is taken here is held on the store at that moment, and is
//! charged there at a time not before its use. A message that is lost, repeated or late, a process that crashes and one
//! that is frozen leave units unused, and never create any.
//!
//! ```
//! use tollgate_core::Cost;
//! use tollgate_lease::{LeaseTerms, Leases, Now, TableSize, TakeAnswer};
//!
//! let terms = LeaseTerms::new("token-bucket capacity=1000 refill=1000/s".parse()?)?;
//! let mut leases: Leases<String> = Leases::new(TableSize::default(), 42);
//! let now = Now { monotonic_us: 1_000, wall_us: 1_700_000_000_000_000 };
//! // The first checks of a key are not leased.
//! assert!(matches!(leases.take(now, "user:42", &terms, Cost::ONE), TakeAnswer::Strict));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layout:
//!
//! - [`Leases`] (`leases.rs`): the leases of many keys in bounded memory; what a driver uses.
//! - `lease.rs`: the lease of one key, with its transitions; `lease/` has their parts.
//! - `hot_keys.rs`: finds the keys that are checked often enough.
//! - `recent_demand.rs`: the units that a key needs in a pace.
//! - `due_times.rs`: the times at which leases need attention.
//! - [`LeaseTerms`] (`terms.rs`), [`Now`] (`time.rs`), [`LeaseCounters`] (`counters.rs`).

#![forbid(unsafe_code)]

mod counters;
mod due_times;
mod hot_keys;
mod lease;
mod leases;
mod messages;
mod random;
mod recent_demand;
mod terms;
mod time;

pub use counters::LeaseCounters;
pub use leases::{Leases, TableSize};
pub use messages::{
    LeaseCall, LeaseEffect, LeaseEnd, LeaseFailure, LeaseReceipt, LeasedDecision, ReplyEffects,
    TakeAnswer, TakeOneOfSeveral,
};
pub use terms::{LeaseTerms, TermsError};
pub use time::Now;
