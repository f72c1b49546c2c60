//! The limiter: names and limits, checks, waiting, the memory store, and the interface of other stores.
//!
//! Use it through the crate `tollgate`, which re-exports it and has the tutorial. Each module uses only
//! modules listed before it:
//!
//! - `clock`, `error`, `key` and `address`: time, errors, and the client of a request
//! - `names`: the registry of names
//! - `receipt`, `decision`, `joint`, `health`, `failure`: decisions, and the failure policies of stores
//! - `answer`: the future of every operation
//! - [`store`]: the interface of stores across the network; the memory store; decisions without a store
//! - `leases`: decides in this process with units that a store has set aside
//! - `queues`: the queues of waiters, one for each key
//! - `limiter`: a store, a clock, and the registry of names
//! - `scope`: a limit under a name; `check`: one request on it; `check_all`: one request on several;
//!   `acquire`: waiting until a request is admitted
//! - `hold`: units that are set aside and settled later, with `hold_answers`; `hold_request`: a reservation of one limit;
//!   `joint_hold`: a hold of several limits; `reserve_all`: a reservation of several limits
//! - `store_lease`: requests for leases as a store gets them, for the conformance suite
//! - `serialize`: decisions and receipts for serde (feature `serde`)

mod acquire;
mod address;
mod answer;
mod check;
mod check_all;
mod clock;
mod decision;
mod error;
mod failure;
mod health;
mod hold;
mod hold_answers;
mod hold_request;
mod joint;
mod joint_hold;
mod key;
mod leases;
mod limiter;
mod names;
mod queues;
mod receipt;
mod reserve_all;
mod scope;
#[cfg(feature = "serde")]
mod serialize;
pub mod store;
mod store_lease;

pub use acquire::{Acquire, AcquireFuture, AcquireOutcome, Gate};
pub use address::{ClientAddress, Ipv6Prefix, Ipv6PrefixError};
pub use answer::Answer;
pub use check::Check;
pub use clock::{Clock, ManualClock};
pub use decision::Decision;
pub use error::{Error, StoreError};
pub use failure::OnFailure;
pub use health::{BreakerState, Health, ServerHealth};
pub use hold::Hold;
pub use hold_answers::{HoldExtension, HoldSettlement, JointExtension};
pub use hold_request::{DEFAULT_HOLD_FOR, HoldDecision, HoldRequest};
pub use joint::JointDecision;
pub use joint_hold::JointHold;
pub use key::Key;
pub use leases::LeaseOptions;
pub use limiter::{Builder, DEADLINE, Limiter, RemoteBuilder};
pub use receipt::{Fingerprint, Receipt};
pub use reserve_all::{JointHoldDecision, ReservationPart};
pub use scope::{MAX_KEY_BYTES, Scope};
pub use store::memory::{CeilingCounts, Usage};
pub use tollgate_lease::{LeaseCounters, TermsError};
