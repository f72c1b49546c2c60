//! How the servers of a limiter are.

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
