//! P10: one server that stalls, crashes, fills up or answers with errors. Everybody is told in time,
//! what is charged is bounded, and all is well again when its cause is gone.

#![allow(clippy::panic, clippy::unwrap_used)]

mod breaker;
mod connections;
mod crash;
mod crowd;
mod memory;
mod replies;
mod resident;
mod setup;
mod stall;
