//! The bounds of connections.

use std::time::Duration;

/// How many connections a port may have, and how long each step of a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most connections at a time.
    pub max_connections: u32,
    /// The time from accepting a connection to its first byte.
    pub first_byte: Duration,
    /// The time from the first byte of a request to its last.
    pub request: Duration,
    /// The time between two requests, and while the client does not read its answer.
    pub idle: Duration,
}
