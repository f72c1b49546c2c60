//! How much memory requests and answers may take, on all connections together.

pub(crate) use tollgate_listener::budget::{
    Budget, BudgetExhausted, HeldMemory, MemoryAccount, MemoryCharge, SMALL_BYTES,
};

/// The most bytes that requests may take on both ports: bodies, answers, and gRPC calls that are not yet answered.
pub(crate) const REQUEST_BYTES: u32 = 80 << 20;

/// The part of [`REQUEST_BYTES`] that bodies and answers above [`SMALL_BYTES`] cannot take, so that small requests
/// are answered however many large ones are under way.
pub(crate) const SMALL_RESERVE_BYTES: u32 = 16 << 20;

/// The most bytes of answers that describe the server, such as its metrics. Apart from the rest, so that an operator
/// can read the metrics while requests take all the memory that they may.
pub(crate) const PAGE_BYTES: u32 = 16 << 20;
