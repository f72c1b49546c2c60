//! The real lease manager and the real algorithms in virtual time, with faults.

#![allow(clippy::unwrap_used)]

mod figures;
mod seeds;
