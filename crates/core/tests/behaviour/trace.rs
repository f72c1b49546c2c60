//! Random traces that seek out the edges: the moment a wait ends, the cost that just fits.

use proptest::prelude::*;
use tollgate_core::{Ask, Checked, Cost, Decision, Limit, MAX_UNITS, State};

/// Where a trace begins: late enough that its clock can step back by hours.
pub(crate) const START_US: u64 = 1_000_000_000_000_000;

/// Past this a trace ends: every wait must stay within the time there is.
const END_US: u64 = 4_000_000_000_000_000;

/// How the clock moves before a request.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    Stay,
    ByUs(u64),
    /// By thousandths of the limit's own interval.
    Part(u64),
    /// To the end of the last decision's wait, give or take a microsecond.
    Retry(i64),
    /// To the last decision's reset, give or take a microsecond.
    Reset(i64),
    /// Back, by less than a new clock would.
    BackUs(u64),
    /// Back to what is a new clock.
    Restart(u64),
}

/// What a request costs.
#[derive(Clone, Debug)]
pub(crate) enum Price {
    Units(u64),
    /// Thousandths of the limit.
    Part(u64),
    /// What remains, give or take one.
    Remaining(i64),
    All,
    MoreThanAll,
}

pub(crate) type Step = (Move, Price);

/// Traces on a clock that only moves forward.
pub(crate) fn forward() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((forward_move(), price()), 1..40)
}

/// Traces on a clock that also steps back.
pub(crate) fn any() -> impl Strategy<Value = Vec<Step>> {
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
#[derive(Clone)]
pub(crate) struct Walk {
    pub(crate) limit: Limit,
    pub(crate) state: State,
    pub(crate) now_us: u64,
    last: Option<Decision>,
}

impl Walk {
    pub(crate) fn new(limit: Limit) -> Walk {
        Walk { limit, state: limit.fresh(), now_us: START_US, last: None }
    }

    /// Moves the clock and says what the request costs; `None` past the end of time.
    pub(crate) fn aim(&mut self, (step, price): &Step) -> Option<Cost> {
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

    pub(crate) fn check(&mut self, cost: Cost) -> Checked {
        let checked = self.limit.check(&mut self.state, self.now_us, Ask::new(cost));
        self.last = Some(checked.decision);
        checked
    }

    pub(crate) fn peek_after(&self, wait_us: u64, units: u64) -> Decision {
        let cost = Cost::new(units).unwrap();
        self.limit.peek(&self.state, self.now_us + wait_us, Ask::new(cost))
    }

    pub(crate) fn remaining_after(&self, wait_us: u64) -> u64 {
        self.peek_after(wait_us, 1).remaining
    }
}
