//! The hold of a request: units that a layer sets aside until the response has ended.
//!
//! - `actual`: what a request really cost, from its response; `terms`: a layer's settings for holds
//! - `shared`: the hold itself, and when it ends; `renewal`: moves its expiry while the request is under way
//! - `handle`: the hold as the inner service sees it; `body`: a response body that keeps the hold until it has ended

mod actual;
mod body;
mod handle;
mod renewal;
mod shared;
mod terms;

pub use actual::{ActualCost, BodyMeter};
pub use body::{BodyHold, HeldBody};
pub use handle::RequestHold;
pub(crate) use shared::SharedHold;
pub(crate) use terms::HoldSettings;
