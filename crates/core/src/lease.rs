//! Leases: holds by a process for requests to come.

use crate::decision::{ChargeReceipt, Cost, LimitDecision};
use crate::holds::{EndedHold, HoldId, HoldTime};

/// A request of a process to open a lease on a key, or to renew it.
///
/// The process takes units from its lease without asking the store. A lease never shrinks by such a request, because
/// a message that arrives late must not take away units that the process believes it has; to give units back, settle
/// the lease as any hold, and open another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The id of the lease, made with [`HoldId::of_lease`].
    pub id: HoldId,
    /// The last expiry that was granted for the lease; `None` to open it.
    pub expires_us: Option<u64>,
    /// The units taken from the lease since it was opened, including the units of earlier requests. Because each
    /// request has the sum, one that arrives twice or out of order charges nothing twice.
    pub used: u64,
    /// A check that waits for the answer. It is decided beside all holds, and charged directly if it is allowed.
    pub need: Option<Cost>,
    /// The unused units that the process wants to have after this request.
    pub want: u64,
    /// The most unused units that the process may have.
    pub most: u64,
    /// How long the lease lasts from now on. Under a window it ends with the window at the latest.
    pub lease_for: HoldTime,
}

/// The answer to a [`LeaseRequest`].
#[derive(Debug, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// The verdict on the check that waits, "allowed" if none does; and what remains after the request.
    pub decision: LimitDecision,
    /// The receipt of the check, if it was charged.
    pub receipt: Option<ChargeReceipt>,
    /// The lease after the request.
    pub lease: LeaseState,
}

/// A lease after a [`LeaseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The process has a lease.
    Open {
        /// The units that it has and that were not used when the request was sent.
        unused: u64,
        /// When the lease expires, by the store's clock.
        expires_us: u64,
        /// How long that is from the time of the request.
        lasts_us: u64,
        /// How many leases of the key are open, including this one.
        holders: u32,
    },
    /// No lease was opened: the key has no units for one, or no place for one more hold.
    None,
    /// The lease to be renewed has ended. No unit of it can be used any more.
    Ended(EndedHold),
}
