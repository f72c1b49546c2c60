//! How the servers of a limiter are.

use crate::error::StoreError;

/// How the servers of a limiter are, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Each of them; of a cluster those that are known to own a slot, or were asked who does.
    pub servers: Vec<ServerHealth>,
    /// How many requests servers failed to decide so far, whatever became of them. A check of several
    /// limits on different servers is several.
    pub failed: u64,
    /// The same by [kind](StoreError::kind): every one, also those of which there were none.
    pub failed_by_kind: Vec<(&'static str, u64)>,
    /// Why the last of those failed.
    pub last_failure: Option<StoreError>,
}

impl Health {
    /// Returns the health of these servers, with the requests that they failed to decide by kind.
    pub fn new(
        servers: Vec<ServerHealth>,
        failed_by_kind: Vec<(&'static str, u64)>,
        last_failure: Option<StoreError>,
    ) -> Health {
        let failed = failed_by_kind.iter().map(|(_, count)| count).sum();
        Health { servers, failed, failed_by_kind, last_failure }
    }
}

impl ServerHealth {
    /// Returns the health of one server, whose address has no user and no password.
    pub fn new(server: &str, breaker: BreakerState, waiting: usize) -> ServerHealth {
        ServerHealth { server: server.to_owned(), breaker, waiting }
    }
}

/// How one server is, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerHealth {
    /// Its address, without user and password.
    pub server: String,
    /// Whether it is asked.
    pub breaker: BreakerState,
    /// How many charges wait to be sent to it.
    pub waiting: usize,
}

/// Whether a server is asked. One that fails or is too slow again and again is left alone for a
/// moment, so that nobody waits for it in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It is asked.
    Closed,
    /// It is left alone.
    Open,
    /// It is asked once, and if that goes well, again.
    HalfOpen,
}
