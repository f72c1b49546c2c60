//! The store of limits that the server decides on.

use tollgate::Limiter;

/// Where the state of keys is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// In this process: a decision takes less than reading the clock.
    Memory,
    /// On Redis servers, across the network.
    Redis,
}

impl StoreKind {
    /// Returns the kind of a limiter's store.
    pub(crate) fn of(limiter: &Limiter) -> StoreKind {
        if limiter.health().is_none() { StoreKind::Memory } else { StoreKind::Redis }
    }

    /// The name in metrics, traces and answers: `memory` or `redis`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
            StoreKind::Redis => "redis",
        }
    }

    /// Returns whether a decision waits for the network.
    pub(crate) fn is_remote(self) -> bool {
        self != StoreKind::Memory
    }
}
