//! The lease of one key.
//!
//! The units of the lease are held on the store under an id. `left` of them can still be taken here, and `used` were
//! taken since the lease was opened. At every moment the hold has at least `left` units, and the units that were used
//! and are not settled, unless the lease is over.

mod attention;
mod reply;
mod request;

pub(crate) use attention::Attention;
pub(crate) use reply::AfterReply;
pub(crate) use request::SequencedRequest;

use tollgate_core::{Cost, HoldId, HoldReference, HoldUse, LimitDecision, Retry, Verdict};

use crate::counters::LeaseCounters;
use crate::messages::LeaseReceipt;
use crate::random::RandomNumbers;
use crate::recent_demand::RecentDemand;
use crate::terms::LeaseTerms;
use crate::time::Now;

/// The parts of a table that all its leases use.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) counters: LeaseCounters,
    pub(crate) numbers: RandomNumbers,
    /// The number of the latest request.
    pub(crate) sequence: u64,
}

/// The lease of one hot key.
#[derive(Debug)]
pub(crate) struct Lease {
    terms: LeaseTerms,
    /// The units that can be taken. 0 unless the holding is open.
    left: u64,
    /// When the lease is over in this process.
    ends: Now,
    /// With fewer units left, the lease is renewed.
    low_units: u64,
    /// Whether the table knows that the lease is to be renewed, so that a hit need not say it again.
    is_renewal_planned: bool,
    /// The units used since the lease was opened.
    used: u64,
    /// How many requests were sent: units that were taken before the latest one may be settled.
    settlements: u32,
    demand: RecentDemand,
    last_check_us: u64,
    holding: Holding,
    in_flight: Option<InFlight>,
    /// The earliest time of the next request.
    ask_from_us: u64,
    /// When the lease is to be renewed although it has units enough.
    renew_from_us: u64,
    /// After a failed request the hold may exist on the store, or be open for longer than this process knows, until
    /// this time.
    doubt_until_us: u64,
    /// Whether the store gave all that the latest request wanted.
    gave_all: bool,
    /// Whether the latest request failed.
    is_failing: bool,
    round_trip_us: u64,
    last_answer: LastAnswer,
}

/// The hold on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    None,
    /// The request that opens it was sent, and not answered yet.
    Started {
        id: HoldId,
    },
    Open {
        id: HoldId,
        /// The last expiry that was granted, by the store's clock.
        expires_us: u64,
    },
}

/// A request that was not answered yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    sequence: u64,
    sent: Now,
    /// The units used when it was sent.
    used: u64,
    want: u64,
    need: Option<Cost>,
    is_second: bool,
}

/// The last answer of the store, with its times on the process's clock.
#[derive(Clone, Copy, Debug, Default)]
struct LastAnswer {
    remaining: u64,
    reset_at_us: u64,
    /// 0 if the answer had none.
    first_back_at_us: u64,
    /// The cost that was refused; `u64::MAX` if none was.
    refused_units: u64,
    refused_until_us: u64,
}

/// Whether a check has waited for a request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    First,
    AfterReply,
    /// It is one limit of a check of several. It never waits, and the store decides it with the others if the lease
    /// cannot.
    OneOfSeveral,
}

/// The answer of a lease to a check.
#[derive(Debug)]
pub(crate) enum TakeStep {
    Hit {
        decision: LimitDecision,
        receipt: LeaseReceipt,
        /// When the lease is to be renewed, if the table does not know yet.
        renewal_us: Option<u64>,
    },
    Ask(SequencedRequest),
    Wait,
    Refuse(LimitDecision),
    Fail,
}

impl Lease {
    /// Makes the lease of a key that has just become hot. Nothing is held for it yet.
    pub(crate) fn new(now: Now, terms: LeaseTerms, demand: RecentDemand) -> Lease {
        Lease {
            terms,
            left: 0,
            ends: Now::default(),
            low_units: 0,
            is_renewal_planned: false,
            used: 0,
            settlements: 0,
            demand,
            last_check_us: now.monotonic_us,
            holding: Holding::None,
            in_flight: None,
            ask_from_us: 0,
            renew_from_us: 0,
            doubt_until_us: 0,
            gave_all: false,
            is_failing: false,
            round_trip_us: 0,
            last_answer: LastAnswer { refused_units: u64::MAX, ..LastAnswer::default() },
        }
    }

    pub(crate) const fn terms(&self) -> &LeaseTerms {
        &self.terms
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.holding, Holding::Open { .. })
    }

    /// Takes units for a check.
    #[inline]
    pub(crate) fn take(
        &mut self,
        now: Now,
        cost: Cost,
        turn: Turn,
        shared: &mut Shared,
    ) -> TakeStep {
        if turn != Turn::AfterReply {
            self.demand.add(cost.units());
        }
        self.last_check_us = now.monotonic_us;
        if cost.units() <= self.left && now.is_before(self.ends) {
            return self.hit(now, cost, shared);
        }
        self.miss(now, cost, turn, shared)
    }

    #[inline]
    fn hit(&mut self, now: Now, cost: Cost, shared: &mut Shared) -> TakeStep {
        self.left -= cost.units();
        self.used = self.used.saturating_add(cost.units());
        shared.counters.hits += 1;
        shared.counters.used_units += cost.units();
        let is_due = self.left < self.low_units && !self.is_renewal_planned;
        let renewal_us = if is_due { self.plan_renewal(now) } else { None };
        let id = match self.holding {
            Holding::Open { id, .. } | Holding::Started { id } => id,
            // OK because units are left only while the holding is open.
            Holding::None => HoldId::of_lease(0),
        };
        TakeStep::Hit {
            decision: self.decision(now, Verdict::Allowed { delay_us: 0 }),
            receipt: LeaseReceipt { id, settlement: self.settlements, cost },
            renewal_us,
        }
    }

    #[cold]
    fn miss(&mut self, now: Now, cost: Cost, turn: Turn, shared: &mut Shared) -> TakeStep {
        self.notice_time(now, shared);
        if self.in_flight.is_some() {
            return match turn {
                // The store has more. The request in flight asks for the units of all that wait.
                Turn::AfterReply if !self.gave_all => self.refuse(now, cost, shared),
                Turn::First | Turn::AfterReply | Turn::OneOfSeveral => TakeStep::Wait,
            };
        }
        if now.monotonic_us >= self.ask_from_us {
            let is_alone = turn != Turn::OneOfSeveral;
            let count = match is_alone {
                true => &mut shared.counters.asks,
                false => &mut shared.counters.background_calls,
            };
            *count += 1;
            self.measure_demand(now);
            return TakeStep::Ask(self.request(now, is_alone.then_some(cost), shared));
        }
        if self.is_failing {
            return TakeStep::Fail;
        }
        self.refuse(now, cost, shared)
    }

    /// Refuses a check until the next request, or as long as the store said if that is longer.
    fn refuse(&mut self, now: Now, cost: Cost, shared: &mut Shared) -> TakeStep {
        shared.counters.refusals += 1;
        let refused = &self.last_answer;
        let is_refused = cost.units() >= refused.refused_units;
        let store_us = if is_refused { refused.refused_until_us } else { 0 };
        let wait_us = self.ask_from_us.max(store_us).saturating_sub(now.monotonic_us).max(1);
        let retry = Retry::AfterUs(wait_us);
        let decision = self.decision(now, Verdict::Denied { retry });
        let remaining = decision.remaining.min(cost.units() - 1);
        TakeStep::Refuse(LimitDecision { remaining, ..decision })
    }

    #[inline]
    fn decision(&self, now: Now, verdict: Verdict) -> LimitDecision {
        let limit = self.terms.limit().size();
        let answer = &self.last_answer;
        let until_us = |at_us: u64| at_us.saturating_sub(now.monotonic_us).max(1);
        LimitDecision {
            verdict,
            limit,
            remaining: answer.remaining.saturating_add(self.left).min(limit),
            reset_after_us: until_us(answer.reset_at_us),
            first_back_us: match answer.first_back_at_us {
                0 => 0,
                at_us => until_us(at_us),
            },
        }
    }

    /// Gives the units of a check back, if no settlement that was sent may have them. Returns how many.
    pub(crate) fn refund(&mut self, now: Now, receipt: &LeaseReceipt, shared: &mut Shared) -> u64 {
        let is_same = matches!(self.holding, Holding::Open { id, .. } if id == receipt.id);
        if !is_same || receipt.settlement != self.settlements || !now.is_before(self.ends) {
            return 0;
        }
        let units = receipt.cost.units();
        self.left = self.left.saturating_add(units);
        self.used = self.used.saturating_sub(units);
        shared.counters.refunded_units += units;
        units
    }

    /// Ends the lease. Returns the settlement to be sent, if the store may hold units for it.
    pub(crate) fn end(&mut self, shared: &mut Shared) -> Option<(HoldReference, HoldUse)> {
        let (id, expires_us) = match self.holding {
            Holding::None => return None,
            Holding::Started { id } => (id, 0),
            Holding::Open { id, expires_us } => (id, expires_us),
        };
        shared.counters.returned_units += self.left;
        shared.counters.background_calls += 1;
        self.left = 0;
        self.holding = Holding::None;
        self.in_flight = None;
        Some((HoldReference { id, expires_us }, HoldUse { units: self.used, is_last: true }))
    }

    /// Notices that the lease is over, and that a request was not answered for a whole lease time.
    fn notice_time(&mut self, now: Now, shared: &mut Shared) {
        let lease_us = self.terms.lease_for().as_us();
        let is_lost = |flight: &InFlight| {
            now.monotonic_us >= flight.sent.monotonic_us.saturating_add(lease_us)
        };
        if self.in_flight.as_ref().is_some_and(is_lost) {
            self.fail(now, shared);
        }
        if now.is_before(self.ends) {
            return;
        }
        shared.counters.expired_units += self.left;
        self.left = 0;
        if self.in_flight.is_none() && now.monotonic_us >= self.doubt_until_us {
            self.holding = Holding::None;
        }
    }
}
