//! The state of a limiter's servers.

use crate::error::StoreError;

/// The state of a limiter's servers, as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The servers. In a cluster, the nodes that are known to own a slot, and the nodes that were queried for
    /// the owners.
    pub servers: Vec<ServerHealth>,
    /// How many requests the servers have failed to decide so far, whatever the failure policy made of them.
    /// A check of limits on several servers counts as several requests.
    pub failed: u64,
    /// The same number by [kind](StoreError::kind): every kind is listed, also with a count of 0.
    pub failed_by_kind: Vec<(&'static str, u64)>,
    /// The reason of the last failure.
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

/// The state of one server, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerHealth {
    /// The server's address, without user and password.
    pub server: String,
    /// Whether requests are sent to the server.
    pub breaker: BreakerState,
    /// The work in the queue of the server: 1 for each charge, and more for requests on logs of more than 64 units.
    pub waiting: usize,
}

/// Whether requests are sent to a server. A server that fails or is too slow again and again gets no requests
/// for a moment, so that no caller waits for it in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests are sent.
    Closed,
    /// No requests are sent.
    Open,
    /// One request is sent as a probe; if it succeeds, requests are sent again.
    HalfOpen,
}
