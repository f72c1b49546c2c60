//! P10: one server that stalls, crashes, fills up, answers with errors, loses replies, or whose clock is
//! wrong. Every caller gets an answer in time, the charges are bounded, and the limiter uses the server
//! again when the cause of the failure is gone.

// Many tests only charge and do not read the decision.
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
