//! The reasons for closing connections.

/// Why the server closed a connection that its client still used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The client sent nothing.
    FirstByte,
    /// The request was not complete in time.
    Request,
    /// No further request was received, or an answer was not read.
    Idle,
    /// The connection was stuck, silent or idle, and a new connection needed its slot.
    Evicted,
    /// The client reset too many of its calls.
    Resets,
    /// The connection held most of the memory that requests share when that was nearly used up.
    Memory,
}

impl CloseReason {
    pub(crate) const ALL: [CloseReason; 6] = [
        CloseReason::FirstByte,
        CloseReason::Request,
        CloseReason::Idle,
        CloseReason::Evicted,
        CloseReason::Resets,
        CloseReason::Memory,
    ];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            CloseReason::FirstByte => "first_byte",
            CloseReason::Request => "request",
            CloseReason::Idle => "idle",
            CloseReason::Evicted => "evicted",
            CloseReason::Resets => "resets",
            CloseReason::Memory => "memory",
        }
    }
}
