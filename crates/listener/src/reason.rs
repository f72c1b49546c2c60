//! The reasons for closing connections.

/// Why the server closed a connection that its client still used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client sent nothing.
    FirstByte,
    /// The request was not complete in time.
    Request,
    /// No further request was received, or an answer was not read.
    Idle,
    /// The connection was stuck, silent or idle, and a new connection needed room.
    Evicted,
    /// The client reset too many of its calls.
    Resets,
    /// The connection held most of the memory that requests share when that was nearly used up.
    Memory,
}

impl Reason {
    pub(crate) const ALL: [Reason; 6] = [
        Reason::FirstByte,
        Reason::Request,
        Reason::Idle,
        Reason::Evicted,
        Reason::Resets,
        Reason::Memory,
    ];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::FirstByte => "first_byte",
            Reason::Request => "request",
            Reason::Idle => "idle",
            Reason::Evicted => "evicted",
            Reason::Resets => "resets",
            Reason::Memory => "memory",
        }
    }
}
