//! P10: one server that stalls, crashes, fills up, answers with errors, loses replies or has another
//! time. Everybody is told in time, what is charged is bounded, and all is well again when its cause
//! is gone.

// Many tests only charge: `unused_must_use` is about decisions that they do not read.
#![allow(clippy::panic, clippy::unwrap_used, unused_must_use)]

mod breaker;
mod clocks;
mod connections;
mod crash;
mod crowd;
mod deadlines;
mod hostile;
mod latency;
mod lines;
mod memory;
mod policy;
mod replies;
mod replies_lost;
mod resident;
mod scopes;
mod setup;
mod stall;
