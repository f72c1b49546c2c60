//! Random traces that often hit the boundaries: the moment at which a wait ends, the cost that just fits.

use proptest::prelude::*;
use tollgate_core::{CheckResult, Cost, Limit, LimitDecision, MAX_UNITS, State, UnitRequest};

/// Where a trace begins: late enough that its clock can step back by hours.
pub const START_US: u64 = 1_000_000_000_000_000;

/// A trace ends at this time, so that no wait exceeds the range of times.
const END_US: u64 = 4_000_000_000_000_000;

/// How the clock moves before a request.
#[derive(Clone, Debug)]
pub enum Move {
    /// The clock does not move.
    Stay,
    /// Forward, in microseconds.
    ByUs(u64),
    /// Forward, in thousandths of the limit's interval.
    Part(u64),
    /// To the end of the last decision's wait, give or take a microsecond.
    Retry(i64),
    /// To the last decision's reset, give or take a microsecond.
    Reset(i64),
    /// Back, by at most 10 s: not a new clock.
    BackUs(u64),
    /// Back, by more than 10 s: a new clock.
    Restart(u64),
}

/// The cost of a request.
#[derive(Clone, Debug)]
pub enum Price {
    /// Units.
    Units(u64),
    /// Thousandths of the limit.
    Part(u64),
    /// The remaining units, plus or minus one.
    Remaining(i64),
    /// The size of the limit.
    All,
    /// One more than the size of the limit.
    MoreThanAll,
}

/// One request: when it comes, and what it costs.
pub type Step = (Move, Price);

/// Returns traces on a clock that only moves forward.
pub fn forward() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((forward_move(), price()), 1..40)
}

/// Returns traces on a clock that also steps back.
pub fn any() -> impl Strategy<Value = Vec<Step>> {
    let moves = prop_oneof![
        8 => forward_move(),
        1 => (1..=10_000_000_u64).prop_map(Move::BackUs),
        1 => (1..50_u64).prop_map(Move::BackUs),
        1 => (10_000_001..20_000_000_000_u64).prop_map(Move::Restart),
    ];
    prop::collection::vec((moves, price()), 1..40)
}

fn forward_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => Just(Move::Stay),
        2 => (0..20_u64).prop_map(Move::ByUs),
        3 => (0..3_000_u64).prop_map(Move::Part),
        3 => (-1..=1_i64).prop_map(Move::Retry),
        1 => (-1..=1_i64).prop_map(Move::Reset),
    ]
}

fn price() -> impl Strategy<Value = Price> {
    prop_oneof![
        4 => (1..4_u64).prop_map(Price::Units),
        3 => (1..1_000_u64).prop_map(Price::Part),
        2 => (-1..=1_i64).prop_map(Price::Remaining),
        1 => Just(Price::All),
        1 => Just(Price::MoreThanAll),
    ]
}

/// One key as it goes through a trace.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The limit that decides.
    pub limit: Limit,
    /// The state of the key.
    pub state: State,
    /// The time of the last request.
    pub now_us: u64,
    last: Option<LimitDecision>,
}

impl Walk {
    /// Returns a key that has spent nothing.
    pub fn new(limit: Limit) -> Walk {
        Walk { limit, state: limit.fresh(), now_us: START_US, last: None }
    }

    /// Moves the clock, and returns the cost of the request; `None` if the trace has ended.
    pub fn aim(&mut self, (step, price): &Step) -> Option<Cost> {
        let retry_us = self.last.and_then(|decision| decision.retry_after_us()).unwrap_or(0);
        let reset_us = self.last.map_or(0, |decision| decision.reset_after_us);
        let now_us = self.now_us;
        let next_us = match *step {
            Move::Stay => now_us,
            Move::ByUs(us) => now_us + us,
            Move::Part(part) => {
                now_us + (self.limit.bound().interval_us / 1_000).saturating_mul(part)
            }
            Move::Retry(off) => now_us + retry_us.saturating_add_signed(off),
            Move::Reset(off) => now_us + reset_us.saturating_add_signed(off),
            Move::BackUs(us) | Move::Restart(us) => now_us - us,
        };
        if next_us > END_US {
            return None;
        }
        self.now_us = next_us;
        Some(self.price(price))
    }

    fn price(&self, price: &Price) -> Cost {
        let size = self.limit.size();
        let remaining = self.limit.peek(&self.state, self.now_us, Cost::ONE.into()).remaining;
        let units = match *price {
            Price::Units(units) => units,
            Price::Part(part) => (u128::from(size) * u128::from(part) / 1_000) as u64,
            Price::Remaining(off) => remaining.saturating_add_signed(off),
            Price::All => size,
            Price::MoreThanAll => size.saturating_add(1),
        };
        Cost::new(units.clamp(1, MAX_UNITS)).unwrap()
    }

    /// Decides one request at the time of the walk, and charges it if it is allowed.
    pub fn check(&mut self, cost: Cost) -> CheckResult {
        let checked = self.limit.check(&mut self.state, self.now_us, UnitRequest::new(cost));
        self.last = Some(checked.decision);
        checked
    }

    /// Decides a request of `units` that comes `wait_us` later, and charges nothing.
    pub fn peek_after(&self, wait_us: u64, units: u64) -> LimitDecision {
        let cost = Cost::new(units).unwrap();
        self.limit.peek(&self.state, self.now_us + wait_us, UnitRequest::new(cost))
    }

    /// Returns the units that remain `wait_us` later.
    pub fn remaining_after(&self, wait_us: u64) -> u64 {
        self.peek_after(wait_us, 1).remaining
    }
}
