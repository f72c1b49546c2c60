//! Requests and replies, and their form on the wire, which `check.lua` describes.
//!
//! - `arguments`: a batch of requests as the script's arguments; `answers`: the script's reply
//! - `limit`, `log`, `state` and `holds`: limits, states and holds as bytes; `number`: numbers as bytes

mod answers;
mod arguments;
mod holds;
mod limit;
mod log;
mod number;
mod state;

use tollgate_core::{
    self as core, ChargePlace, DecisionPart, ExtendAnswer, GrantedExtension, HoldGrowth,
    HoldReference, HoldUse, Holds, Intent, LeaseAnswer, LeaseRequest, Limit, MAX_TIME_US,
    SettleAnswer, State,
};
use tollgate_limiter::store::{Demand, HoldTerms};
use tollgate_limiter::{Decision, JointDecision, store};

use super::batcher::MAX_BATCH;
use super::denials::DenialQuery;
pub(super) use answers::{RequestOutcome, ScriptReply};
pub(super) use arguments::Arguments;

/// The most units of work of one check of several limits, or of one request on holds. A charge counts as 1 unit, and under
/// a log as 64, 16 or 2 ([`ServerCharge::counts_as`]); an operation on a hold counts as 64 or 16. The server serves nothing
/// else during the request: 2 ms at most, as the tests in `costs.rs` assert.
pub(crate) const MAX_CHARGES: usize = 256;

/// A log of more units may have holes, which make it slower to read. The same number as `NEAR` in `ring.lua`.
const LONG_LOG_UNITS: u64 = 64;

/// The server may have to move the string of a log of more units when it grows. The same number as `4096` in `ring.lua`.
const MOVED_LOG_UNITS: u64 = 4_096;

/// The weight of a check of a long log.
const LONG_LOG_WEIGHT: usize = 4;

/// The weight of an operation on a hold. On a long log it is twice that.
const HOLD_WEIGHT: usize = 4;

/// A charge of one key, as it is sent to a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerCharge {
    /// The key on the server.
    pub(super) key: Box<[u8]>,
    /// The charge as the limiter makes it.
    pub(super) original: store::Charge,
}

impl ServerCharge {
    pub(super) fn limit(&self) -> &Limit {
        self.original.limit()
    }

    pub(super) fn demand(&self) -> &Demand {
        self.original.demand()
    }

    pub(super) fn denial_query(&self) -> DenialQuery<'_> {
        DenialQuery {
            key: &self.key,
            limit: self.limit(),
            cost: self.demand().request.cost.units(),
        }
    }

    /// Whether the key is charged if nothing refuses the request; otherwise this is a peek.
    pub(super) fn is_charged(&self) -> bool {
        self.demand().intent == Intent::Charge
    }

    /// Returns the terms on which its units are set aside; `None` if they are charged.
    pub(super) fn hold_terms(&self) -> Option<HoldTerms> {
        self.demand().hold
    }

    /// Whether its limit is a log that may have holes.
    fn is_on_long_log(&self) -> bool {
        matches!(self.limit(), Limit::SlidingWindowLog(log) if log.limit() > LONG_LOG_UNITS)
    }

    /// Returns the work of a check in the worst case, in checks of a window or a bucket.
    fn weight(&self) -> usize {
        if self.is_on_long_log() { LONG_LOG_WEIGHT } else { 1 }
    }

    /// Returns its work in a check of several limits, in the units of [`MAX_CHARGES`].
    pub(super) fn counts_as(&self) -> usize {
        match self.limit() {
            _ if self.hold_terms().is_some() => self.counts_as_hold(),
            Limit::SlidingWindowLog(log) if log.limit() > MOVED_LOG_UNITS => 64,
            Limit::SlidingWindowLog(log) if log.limit() > LONG_LOG_UNITS => 16,
            Limit::SlidingWindowLog(_) => 2,
            _ => 1,
        }
    }

    /// Returns the work of an operation on a hold under its limit, in the units of [`MAX_CHARGES`].
    pub(super) fn counts_as_hold(&self) -> usize {
        match self.limit() {
            Limit::SlidingWindowLog(log) if log.limit() > MOVED_LOG_UNITS => 64,
            _ => 16,
        }
    }

    /// Returns the charge's part in the decision on several limits. If the caller sets a longest wait, fewer requests may fit
    /// than `requests_remaining` says.
    pub(super) fn part(&self, decision: &core::LimitDecision) -> DecisionPart {
        let requests_remaining = decision.remaining / self.demand().request.cost.units();
        DecisionPart { role: self.demand().role, decision: *decision, requests_remaining }
    }
}

/// A request to a server.
#[derive(Debug)]
pub(crate) enum StoreRequest {
    Check {
        charge: ServerCharge,
        at_us: Option<u64>,
    },
    Peek {
        charge: ServerCharge,
        at_us: Option<u64>,
    },
    /// Several charges, all or none.
    CheckAll {
        charges: Vec<ServerCharge>,
        at_us: Option<u64>,
    },
    Refund {
        charge: ServerCharge,
        place: ChargePlace,
        at_us: Option<u64>,
    },
    Reset {
        charge: ServerCharge,
    },
    State {
        charge: ServerCharge,
        at_us: Option<u64>,
    },
    /// Charges what was used of holds. There is a hold for each charge, whose cost is not used.
    Settle {
        charges: Vec<ServerCharge>,
        uses: Vec<(HoldReference, HoldUse)>,
        at_us: Option<u64>,
    },
    /// Extends holds, all or none. There is a hold for each charge.
    Extend {
        charges: Vec<ServerCharge>,
        growths: Vec<(HoldReference, HoldGrowth)>,
        at_us: Option<u64>,
    },
    /// Takes an extension back, because another place has refused the rest of its request.
    TakeBack {
        charge: ServerCharge,
        extended: GrantedExtension,
        at_us: Option<u64>,
    },
    /// Opens or renews a lease, and decides the check that waits.
    Lease {
        charge: ServerCharge,
        lease: LeaseRequest,
        at_us: Option<u64>,
    },
}

/// A server's reply to a [`StoreRequest`]. A check and a peek get a decision, a check of several limits gets a joint decision,
/// and the other requests get the reply of the same name.
#[derive(Debug)]
pub(crate) enum Reply {
    Decision(Decision),
    JointDecision(JointDecision),
    Refunded(u64),
    Reset,
    State {
        /// The limit that decides on the state: the request's, or the old one at the new size.
        limit: Limit,
        /// Boxed, because every request in flight has room for a reply.
        state: Box<State>,
        holds: Holds,
        /// The time at which to read the state.
        now_us: u64,
    },
    Settled(Vec<SettleAnswer>),
    Extended(Vec<ExtendAnswer>),
    /// Boxed, for the same reason.
    Leased(Box<LeaseAnswer>),
}

impl StoreRequest {
    /// Returns the work of the server in the worst case, in checks of a window or a bucket.
    pub(super) fn weight(&self) -> usize {
        match self {
            StoreRequest::State { .. } if self.is_slow() => MAX_BATCH,
            StoreRequest::Refund { .. } if self.is_slow() => MAX_BATCH / 2,
            StoreRequest::Reset { charge } if charge.is_on_long_log() => MAX_BATCH / 4,
            _ if self.has_holds() => {
                self.charges().iter().map(|charge| charge.weight().max(2) * HOLD_WEIGHT / 2).sum()
            }
            _ => self.charges().iter().map(ServerCharge::weight).sum(),
        }
    }

    /// Returns the weight if the states are long logs, whatever the limits say: a limit may have been lowered.
    pub(super) fn weight_on_long_logs(&self) -> usize {
        match self {
            StoreRequest::State { .. } => MAX_BATCH,
            StoreRequest::Refund { .. } => MAX_BATCH / 2,
            StoreRequest::Reset { .. } => MAX_BATCH / 4,
            _ if self.has_holds() => self.charges().len() * LONG_LOG_WEIGHT * HOLD_WEIGHT / 2,
            _ => self.charges().len() * LONG_LOG_WEIGHT,
        }
    }

    /// Whether it lists or compacts logs: on long logs that takes the server much longer than a check.
    pub(super) fn is_slow_on_long_logs(&self) -> bool {
        matches!(self, StoreRequest::State { .. } | StoreRequest::Refund { .. })
    }

    /// Whether the server may take much longer than for a check: the request lists or compacts a long log.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow_on_long_logs() && self.charges().iter().any(ServerCharge::is_on_long_log)
    }

    pub(super) fn charges(&self) -> &[ServerCharge] {
        match self {
            StoreRequest::CheckAll { charges, .. }
            | StoreRequest::Settle { charges, .. }
            | StoreRequest::Extend { charges, .. } => charges,
            StoreRequest::Check { charge, .. }
            | StoreRequest::Peek { charge, .. }
            | StoreRequest::Refund { charge, .. }
            | StoreRequest::Reset { charge }
            | StoreRequest::State { charge, .. }
            | StoreRequest::TakeBack { charge, .. }
            | StoreRequest::Lease { charge, .. } => std::slice::from_ref(charge),
        }
    }

    /// Whether it settles or changes holds that were reserved before.
    pub(super) fn is_on_open_holds(&self) -> bool {
        matches!(
            self,
            StoreRequest::Settle { .. }
                | StoreRequest::Extend { .. }
                | StoreRequest::TakeBack { .. }
        )
    }

    /// Whether it sets units aside, or settles or changes holds that were reserved before.
    pub(super) fn has_holds(&self) -> bool {
        match self {
            StoreRequest::CheckAll { charges, .. } => {
                charges.iter().any(|charge| charge.hold_terms().is_some())
            }
            StoreRequest::Lease { .. } => true,
            _ => self.is_on_open_holds(),
        }
    }

    /// Returns the request that ends a hold and charges nothing.
    pub(super) fn release(
        charge: ServerCharge,
        hold: HoldReference,
        at_us: Option<u64>,
    ) -> StoreRequest {
        let none = HoldUse { units: 0, is_last: true };
        StoreRequest::Settle { charges: vec![charge], uses: vec![(hold, none)], at_us }
    }

    pub(super) fn at_us(&self) -> Option<u64> {
        match self {
            StoreRequest::Check { at_us, .. }
            | StoreRequest::Peek { at_us, .. }
            | StoreRequest::CheckAll { at_us, .. }
            | StoreRequest::Refund { at_us, .. }
            | StoreRequest::Settle { at_us, .. }
            | StoreRequest::Extend { at_us, .. }
            | StoreRequest::TakeBack { at_us, .. }
            | StoreRequest::Lease { at_us, .. }
            | StoreRequest::State { at_us, .. } => at_us.map(|us| us.min(MAX_TIME_US)),
            StoreRequest::Reset { .. } => None,
        }
    }

    /// Whether the request asks for a decision, which a failure policy can make instead.
    pub(super) fn is_decision(&self) -> bool {
        matches!(
            self,
            StoreRequest::Check { .. }
                | StoreRequest::Peek { .. }
                | StoreRequest::CheckAll { .. }
                | StoreRequest::Lease { .. }
        )
    }
}
