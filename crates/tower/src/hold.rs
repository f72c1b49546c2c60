//! The hold of a request: units that a layer sets aside until the response has ended.
//!
//! - `actual`: what a request really cost, from its response; `terms`: a layer's settings for holds
//! - `shared`: the hold itself, and when it ends; `held_limits`: the units under each limit; `renewal`: moves the expiry
//!   while the request is under way; `settlement`: settlements whose answer no caller awaits
//! - `handle`: the hold as the inner service sees it; `body`: a response body that keeps the hold until it has ended

mod actual;
mod body;
mod handle;
mod held_limits;
mod renewal;
mod settlement;
mod shared;
mod terms;

pub use actual::{ActualCost, BodyMeter};
pub use body::{BodyHold, HeldBody};
pub use handle::RequestHold;
pub(crate) use held_limits::HeldLimits;
pub(crate) use shared::SharedHold;
pub(crate) use terms::HoldSettings;
