//! The memory that requests and answers may take, on all connections together.

pub(crate) use tollgate_listener::budget::{
    Budget, BudgetExhausted, HeldMemory, MemoryAccount, MemoryCharge, SMALL_BYTES,
};

/// The most bytes that requests may take on both ports together: bodies, answers, and unanswered gRPC calls.
pub(crate) const REQUEST_BYTES: u32 = 80 << 20;

/// The part of [`REQUEST_BYTES`] that bodies and answers above [`SMALL_BYTES`] cannot take. Large requests can
/// therefore not keep small ones from being answered.
pub(crate) const SMALL_RESERVE_BYTES: u32 = 16 << 20;

/// The most bytes of answers that describe the server, such as its metrics. Separate from [`REQUEST_BYTES`], so that an
/// operator can read the metrics while requests take all of their memory.
pub(crate) const PAGE_BYTES: u32 = 16 << 20;
