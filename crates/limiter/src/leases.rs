//! Leases: decides in this process with units that a store has set aside.
//!
//! The crate `tollgate-lease` decides; this drives it: with the time, the checks, and the answers of the store. Each
//! module uses only modules listed before it:
//!
//! - `clock`: the clocks by which leases end; `key`: the key of a lease; `options`: how a limit is leased
//! - `asking`: a check that a request can decide; `waiting`: the checks that wait for the answer about their key
//! - `shard`: the leases of a part of the keys, and the checks that wait
//! - `ticker`: the task that renews leases
//! - `driver`: takes units, sends requests, and handles answers; `several`: checks of several limits

mod asking;
mod clock;
mod driver;
mod key;
mod options;
mod several;
mod shard;
mod ticker;
mod waiting;

pub(crate) use asking::WaitOutcome;
pub(crate) use driver::{LeaseDriver, LeasedCheck, Taken};
pub use options::LeaseOptions;
pub(crate) use several::{LeasedParts, TakenParts};
