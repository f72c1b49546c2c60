//! The answers and requests that a driver gets from the leases.

use tollgate_core::{Cost, HoldId, HoldReference, HoldUse, LeaseRequest, LimitDecision};

use crate::terms::LeaseTerms;

/// The answer to a check of a key.
#[derive(Debug)]
#[must_use = "a check that is not decided here must be sent to the store, or wait"]
pub enum TakeAnswer<K> {
    /// Allowed by the lease of the key. The units are taken.
    Hit(LeasedDecision),
    /// Send this request. Its answer has the decision on this check.
    Ask(LeaseCall<K>),
    /// A request for this key is in flight. When it has been answered, call [`Leases::take_again`]. Each answer can admit only a
    /// part of the checks that wait, so a driver bounds how many wait, and how long.
    ///
    /// [`Leases::take_again`]: crate::Leases::take_again
    Wait,
    /// Refused. The store answered less than a pace before, and had too little.
    Refuse(LimitDecision),
    /// The store failed less than a pace before: the failure policy decides.
    Fail,
    /// The limit of the key has changed, and its lease is over: send this settlement, and then a check, as without
    /// leases.
    Changed(LeaseEnd<K>),
    /// The key is not leased: send a check, as without leases.
    Strict,
}

/// The answer to one limit of a check of several.
#[derive(Debug)]
#[must_use = "a request that is to be sent must be sent"]
pub enum TakeOneOfSeveral<K> {
    /// Allowed by the lease of the key. The units are taken.
    Hit(LeasedDecision),
    /// Refused. The store answered less than a pace before, and had too little.
    Refuse(LimitDecision),
    /// The store decides this limit. If there is a request, send it too: it renews the lease and decides no check.
    Store(Option<LeaseCall<K>>),
    /// The limit of the key has changed, and its lease is over: send this settlement. The store decides this limit.
    Changed(LeaseEnd<K>),
}

/// A check that was allowed by a lease.
#[derive(Debug, PartialEq, Eq)]
pub struct LeasedDecision {
    /// The decision. `remaining` and `reset_after_us` are the store's values at the last renewal, less what was used
    /// here since: estimates, because other processes use the key too.
    pub decision: LimitDecision,
    /// The proof of the use, with which it can be refunded.
    pub receipt: LeaseReceipt,
    /// Whether [`Leases::next_due`](crate::Leases::next_due) is earlier than before: whatever calls
    /// [`Leases::tick`](crate::Leases::tick) then must be woken.
    pub wakes: bool,
}

/// The proof of units that were taken from a lease. It is good for one refund, until the units are in a settlement that
/// was sent.
#[derive(Debug, PartialEq, Eq)]
pub struct LeaseReceipt {
    pub(crate) id: HoldId,
    pub(crate) settlement: u32,
    pub(crate) cost: Cost,
}

impl LeaseReceipt {
    /// Makes a receipt again from its parts. The caller vouches for them: invented ones give back units that other
    /// checks took.
    pub const fn of(lease: HoldId, settlement: u32, cost: Cost) -> LeaseReceipt {
        LeaseReceipt { id: lease, settlement, cost }
    }

    /// The lease that the units were taken from.
    pub const fn lease(&self) -> HoldId {
        self.id
    }

    /// How many settlements of the lease were sent before.
    pub const fn settlement(&self) -> u32 {
        self.settlement
    }

    /// The units that were taken.
    pub const fn cost(&self) -> Cost {
        self.cost
    }
}

/// A request to the store that opens or renews a lease, and decides a check if it has a `need`.
///
/// The driver must report its end with [`Leases::replied`](crate::Leases::replied), whatever happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseCall<K> {
    /// The key.
    pub key: K,
    /// The limit, and how its keys are leased.
    pub terms: LeaseTerms,
    /// The number of this request, to be passed with its answer.
    pub sequence: u64,
    /// The request.
    pub request: LeaseRequest,
}

/// A settlement that ends a lease. Its answer is not needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEnd<K> {
    /// The key.
    pub key: K,
    /// The limit, and how its keys are leased.
    pub terms: LeaseTerms,
    /// The lease.
    pub hold: HoldReference,
    /// The units that were used.
    pub used: HoldUse,
}

/// Something that the driver must send, in the order in which it got the effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEffect<K> {
    /// Send a request that decides no check, and report its end with [`Leases::replied`](crate::Leases::replied).
    Renew(LeaseCall<K>),
    /// Send a settlement.
    End(LeaseEnd<K>),
}

/// The next steps after the answer to a [`LeaseCall`].
#[derive(Debug)]
#[must_use = "the effects must be sent, and the checks that wait must be taken again"]
pub struct ReplyEffects<K> {
    /// To be sent first. At most one.
    pub end: Option<LeaseEnd<K>>,
    /// To be sent in place of the request that was answered: its check is not decided yet, because it would have fitted
    /// without the lease of this process. The answer to this request decides the check. The checks that wait go on waiting.
    pub ask_again: Option<LeaseCall<K>>,
}

impl<K> ReplyEffects<K> {
    pub(crate) const NONE: ReplyEffects<K> = ReplyEffects { end: None, ask_again: None };
}

/// A request to the store that failed: it was not sent, not answered in time, or answered with an error. The store may
/// have received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseFailure;
