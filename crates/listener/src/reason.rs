//! Why connections are closed.

/// Why the server closed a connection that its client had not done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It said nothing.
    FirstByte,
    /// Its request did not end.
    Request,
    /// No further request came, or an answer was not read.
    Idle,
    /// It was stuck, silent or idle, and others had no room.
    Evicted,
    /// Its client reset too many calls that it had made.
    Resets,
    /// It held most of the memory that requests share when that was nearly spent.
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

    /// As metrics name it.
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
