//! What a connection may take.

use std::time::Duration;

/// How many connections a port may have, and how long each may take for what.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most connections at a time.
    pub max_connections: u32,
    /// From when a connection is accepted to its first byte.
    pub first_byte: Duration,
    /// From the first byte of a request to its last.
    pub request: Duration,
    /// Between two requests, and while the client does not read its answer.
    pub idle: Duration,
}
