//! Plays a trace with the core: the requests, the expected answers, and every key's state.

use std::sync::Arc;
use tollgate_core::store::LogStorage;
use tollgate_core::{
    CarryOver, ChargePlace, ChargeReceipt, CheckResult, Cost, Intent, Limit, LimitDecision,
    MAX_STEP_BACK_US, MAX_TIME_US, MAX_UNITS, State, UnitRequest,
};

use super::super::wire::{ServerCharge, StoreRequest};
use super::trace::{Act, Batch, Price, Step, Time};
use tollgate_limiter::store::Demand;
use tollgate_limiter::store::{self, Name};

/// All keys, and the server's time.
pub(super) struct World {
    keys: Vec<Key>,
    now_us: u64,
}

/// One batch as it is sent, and the answers that must come back.
pub(super) struct PlayedBatch {
    pub(super) now_us: u64,
    pub(super) requests: Vec<StoreRequest>,
    pub(super) expected: Vec<ExpectedReply>,
    pub(super) is_plain: bool,
}

#[derive(Debug)]
pub(super) enum ExpectedReply {
    CheckResult(CheckResult),
    Peeked(LimitDecision),
    Refunded(u64),
    Reset,
}

/// One key as the core keeps it.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    pub(super) limit: Limit,
    other: Limit,
    state: State,
    /// The limit that the state was reached under.
    reached_under: Limit,
    /// Whether the server has a state of the key.
    pub(super) is_kept: bool,
    /// If the batch writes the key: how long the server keeps it after it is no longer needed. The write may also leave
    /// the expiry as it was.
    pub(super) written: Option<Spare>,
    /// Whether the batch has met a new clock, or another limit.
    is_restarted: bool,
    last: Option<(u64, LimitDecision)>,
    receipts: Vec<(Cost, ChargePlace)>,
}

/// How long a state is kept after it is no longer needed, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// 10 to 11 s.
    Seconds,
    /// 10 s at least.
    AtLeast,
    /// Not known: a caller's clock was too far ahead of the server's.
    Unknown,
}

/// When a request is decided.
#[derive(Clone, Copy)]
struct When {
    server_us: u64,
    callers_us: Option<u64>,
}

impl When {
    fn us(self) -> u64 {
        self.callers_us.unwrap_or(self.server_us).min(MAX_TIME_US)
    }

    /// Returns how long a state is kept after it is no longer needed: `spare` if the request has the server's time. With
    /// a caller's time the script adds an hour, and the difference between the two clocks may use up all of that hour.
    fn spare(self, spare: Spare) -> Spare {
        const HOUR_US: u64 = 3_600_000_000;
        match self.callers_us {
            None => spare,
            Some(us) if us <= self.server_us + HOUR_US => Spare::AtLeast,
            Some(_) => Spare::Unknown,
        }
    }
}

impl World {
    pub(super) fn new(limits: &[(Limit, Limit)], start_us: u64) -> World {
        let key = |(index, &(limit, other)): (usize, &(Limit, Limit))| Key {
            name: format!("key {index}").into_bytes(),
            limit,
            other,
            state: limit.fresh(),
            reached_under: limit,
            is_kept: false,
            written: None,
            is_restarted: false,
            last: None,
            receipts: Vec::new(),
        };
        World { keys: limits.iter().enumerate().map(key).collect(), now_us: start_us }
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(super) fn play(&mut self, batch: &Batch) -> PlayedBatch {
        let count = self.keys.len();
        for key in &mut self.keys {
            (key.written, key.is_restarted) = (None, false);
        }
        let first = &self.keys[batch.steps[0].key % count];
        self.now_us = first.next_us(self.now_us, &batch.time);
        let now_us = self.now_us;
        let (mut requests, mut expected, mut is_plain) = (Vec::new(), Vec::new(), true);
        for step in &batch.steps {
            let key = &mut self.keys[step.key % count];
            if step.is_changing {
                std::mem::swap(&mut key.limit, &mut key.other);
            }
            if let Some((request, answer)) = key.take(step, now_us) {
                requests.push(request);
                expected.push(answer);
                is_plain &= matches!(step.act, Act::Check);
            }
        }
        PlayedBatch { now_us, requests, expected, is_plain }
    }
}

impl Key {
    fn next_us(&self, now_us: u64, time: &Time) -> u64 {
        let after = |wait_us: fn(&LimitDecision) -> u64, off: i64| {
            let end =
                |(at_us, decision): &(u64, LimitDecision)| at_us.saturating_add(wait_us(decision));
            self.last.as_ref().map_or(0, end).saturating_add_signed(off).max(now_us)
        };
        let next_us = match *time {
            Time::Stay => now_us,
            Time::ByUs(us) => now_us + us,
            Time::Part(part) => {
                let interval_us = u128::from(self.limit.bound().interval_us);
                now_us + (interval_us * u128::from(part) / 1_000) as u64
            }
            Time::Retry(off) => after(|decision| decision.retry_after_us().unwrap_or(0), off),
            Time::Reset(off) => after(|decision| decision.reset_after_us, off),
            Time::BackUs(us) => now_us.saturating_sub(us),
        };
        next_us.min(MAX_TIME_US)
    }

    /// Plays a step. Returns the request as it is sent, and the expected answer.
    fn take(&mut self, step: &Step, server_us: u64) -> Option<(StoreRequest, ExpectedReply)> {
        let at_us = match step.act {
            Act::CheckAtUs(off_us) | Act::Look(Some(off_us)) | Act::RefundAtUs(_, off_us) => {
                Some(server_us.saturating_add_signed(off_us))
            }
            _ => None,
        };
        let max_wait_us = match step.act {
            Act::CheckWithinUs(us) => Some(us),
            _ => None,
        };
        let when = When { server_us, callers_us: at_us };
        let ask = UnitRequest { cost: self.cost(&step.price, when.us()), max_wait_us };
        let charge = self.charge(ask);
        Some(match step.act {
            Act::Check | Act::CheckAtUs(_) | Act::CheckWithinUs(_) => (
                StoreRequest::Check { charge, at_us },
                ExpectedReply::CheckResult(self.check(ask, when)),
            ),
            Act::Peek => (StoreRequest::Peek { charge, at_us }, self.peek(ask, when)),
            Act::Look(_) => {
                let intent = Intent::Peek;
                let charge = self.demanding(Demand { intent, ..*charge.demand() });
                (StoreRequest::CheckAll { charges: vec![charge], at_us }, self.peek(ask, when))
            }
            Act::Refund(which) | Act::RefundAtUs(which, _) => {
                if self.receipts.is_empty() {
                    return None;
                }
                let (cost, place) = self.receipts.remove(which % self.receipts.len());
                let charge = self.charge(cost.into());
                let back = self.refund(ChargeReceipt::of(cost, place), when);
                (StoreRequest::Refund { charge, place, at_us }, ExpectedReply::Refunded(back))
            }
            Act::Reset => {
                self.is_kept = false;
                (self.written, self.is_restarted) = (None, false);
                (StoreRequest::Reset { charge }, ExpectedReply::Reset)
            }
        })
    }

    fn cost(&self, price: &Price, now_us: u64) -> Cost {
        let size = self.limit.size();
        let units = match *price {
            Price::Units(units) => units,
            Price::Part(part) => (u128::from(size) * u128::from(part) / 1_000) as u64,
            Price::Remaining(off) => {
                let (limit, state) = self.decides(now_us, Cost::ONE);
                let peek = limit.peek(&state, now_us, Cost::ONE.into());
                peek.remaining.saturating_add_signed(off)
            }
            Price::MoreThanAll => size + 1,
        };
        Cost::new(units.clamp(1, MAX_UNITS)).unwrap()
    }

    fn peek(&self, ask: UnitRequest, when: When) -> ExpectedReply {
        let (limit, state) = self.decides(when.us(), ask.cost);
        let decision = limit.peek(&state, when.us(), ask);
        ExpectedReply::Peeked(limit.in_place_of(&self.limit, decision))
    }

    fn check(&mut self, ask: UnitRequest, when: When) -> CheckResult {
        let (limit, mut state) = self.decides(when.us(), ask.cost);
        let is_new_clock = is_new_clock(&state, when);
        let is_carried = self.is_carried(when.us(), ask.cost);
        self.is_restarted |= is_new_clock || is_carried;
        let CheckResult { decision, receipt } = limit.check(&mut state, when.us(), ask);
        let checked = CheckResult { decision: limit.in_place_of(&self.limit, decision), receipt };
        self.last = Some((when.us(), checked.decision));
        self.receipts.extend(checked.receipt.as_ref().map(|it| (it.cost(), it.place())));
        // A refusal writes a key only if a new clock has restarted the key's clock since the state was read, or if the
        // state was carried over from another limit.
        if checked.decision.is_allowed() || self.is_restarted {
            self.keep(is_carried, state);
            // A state that has expired already is kept from now on instead.
            let may_be_over = !checked.decision.is_allowed() && !is_new_clock;
            self.written =
                Some(when.spare(if may_be_over { Spare::AtLeast } else { Spare::Seconds }));
        }
        checked
    }

    fn refund(&mut self, receipt: ChargeReceipt, when: When) -> u64 {
        // Under the limit that the state has.
        if !self.is_kept {
            return self.limit.refund(&mut self.limit.fresh(), when.us(), receipt);
        }
        let mut state = self.state.clone();
        let back = self.reached_under.refund(&mut state, when.us(), receipt);
        if self.is_kept {
            self.keep(false, state);
            self.written = Some(when.spare(Spare::AtLeast));
        }
        back
    }

    fn demanding(&self, demand: Demand) -> ServerCharge {
        let name = Arc::new(Name::new("test", []));
        let original = store::Charge::new(name, &self.name, self.limit, demand);
        ServerCharge { key: self.name.clone().into(), original }
    }

    pub(super) fn charge(&self, ask: UnitRequest) -> ServerCharge {
        self.demanding(Demand::of(ask))
    }

    /// Returns the limit that decides, and the state under it: the key's limit, or the one that the state stays under.
    pub(super) fn decides(&self, now_us: u64, cost: Cost) -> (Limit, State) {
        match (self.is_kept, self.is_under_another()) {
            (false, _) => (self.limit, self.limit.fresh()),
            (true, false) => (self.limit, self.state.clone()),
            (true, true) => self.carry_over(now_us, cost).decides(&self.limit),
        }
    }

    fn carry_over(&self, now_us: u64, cost: Cost) -> CarryOver {
        self.limit.carry_over(&self.reached_under, self.state.clone(), now_us, cost)
    }

    /// Returns whether a request of this cost carries the state over to the key's limit.
    fn is_carried(&self, now_us: u64, cost: Cost) -> bool {
        self.is_under_another() && matches!(self.carry_over(now_us, cost), CarryOver::Done(_))
    }

    /// Whether there is a state, and it was reached under another limit.
    fn is_under_another(&self) -> bool {
        self.is_kept && self.reached_under != self.limit
    }

    /// Keeps a state: under the key's limit if it is new or was carried over, otherwise under the limit that it had.
    fn keep(&mut self, is_carried: bool, state: State) {
        if is_carried || !self.is_kept {
            self.reached_under = self.limit;
        }
        (self.state, self.is_kept) = (state, true);
    }

    /// Returns when the server may forget the key, if it is written at `now_us`: not while it matters under the
    /// limit that it was reached under.
    pub(super) fn expires_us(&self, now_us: u64) -> u64 {
        const STEP_US: u64 = 8_000_000;
        let (limit, state) = (&self.reached_under, &self.state);
        let over_us =
            |at_us: u64| at_us + limit.peek(state, at_us, Cost::ONE.into()).reset_after_us;
        let expires_us = match (limit, state) {
            (Limit::FixedWindow(limit), State::Window(state)) => state.start_us + limit.window_us(),
            (Limit::SlidingWindowCounter(limit), State::WindowPair(state)) => {
                state.start_us + 2 * limit.window_us()
            }
            (_, State::Fill(fill)) => over_us(fill.as_of_us) / STEP_US * STEP_US + STEP_US,
            _ => 0,
        };
        expires_us.max(over_us(now_us))
    }
}

/// Returns whether the time is so far behind the key's own time that it must be another clock's.
fn is_new_clock(state: &State, when: When) -> bool {
    let floor_us = match state {
        State::Window(state) => state.start_us,
        State::WindowPair(state) => state.start_us,
        State::Log(log) => log.coarsened().charged_us,
        State::Fill(fill) => fill.as_of_us,
        State::KeyClock(clock) => clock.at_us,
    };
    floor_us > when.us() + MAX_STEP_BACK_US
}
