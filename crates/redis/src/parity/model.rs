//! Plays a trace with the core: the requests, the expected answers, and every key's state.

use std::sync::Arc;
use tollgate_core::store::LogStorage;
use tollgate_core::{
    CarryOver, ChargePlace, ChargeReceipt, CheckResult, Cost, ExtendAnswer, Extension, HoldGrowth,
    HoldId, HoldReference, HoldTime, HoldUse, Holds, Intent, LeaseAnswer, LeaseRequest, LeaseState,
    Limit, LimitDecision, MAX_STEP_BACK_US, MAX_TIME_US, MAX_UNITS, Reservation, ReserveAnswer,
    SettleAnswer, Settlement, State, UnitRequest,
};

use super::super::wire::{ServerCharge, StoreRequest};
use super::trace::{Act, Batch, LeaseStep, Price, Step, Time};
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
    Reserved(ReserveAnswer),
    Settled(SettleAnswer),
    Extended(ExtendAnswer),
    Leased(LeaseAnswer),
}

/// One key as the core keeps it.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    pub(super) limit: Limit,
    other: Limit,
    state: State,
    holds: Holds,
    /// The holds as their callers know them, also some that have ended.
    references: Vec<HoldReference>,
    /// Every lease, and the last expiry that was granted.
    leases: Vec<(HoldId, Option<u64>)>,
    ids: u64,
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
            holds: Holds::default(),
            references: Vec::new(),
            leases: Vec::new(),
            ids: 0,
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
            Act::Reserve(hold_for_us) => {
                self.ids += 1;
                let hold_for = HoldTime::from_us(hold_for_us).unwrap();
                let reservation = Reservation { id: HoldId(self.ids), cost: ask.cost, hold_for };
                let charge = self.demanding(Demand::of_reservation(reservation));
                let request = StoreRequest::CheckAll { charges: vec![charge], at_us };
                (request, ExpectedReply::Reserved(self.reserve(reservation, when)))
            }
            Act::Settle(which, part, is_last) => {
                let hold = self.reference(which)?;
                let held = self.holds.iter().find(|open| open.id == hold.id);
                let whole = held.map_or(ask.cost.units(), |open| open.units + open.used);
                let units = (u128::from(whole) * u128::from(part) / 1_000) as u64;
                let used = HoldUse { units, is_last };
                let request =
                    StoreRequest::Settle { charges: vec![charge], uses: vec![(hold, used)], at_us };
                (request, ExpectedReply::Settled(self.settle(hold, used, when)))
            }
            Act::Extend(which, has_more, hold_for_us) => {
                let hold = self.reference(which)?;
                let hold_for = HoldTime::from_us(hold_for_us).unwrap();
                let growth = HoldGrowth { more: has_more.then_some(ask.cost), hold_for };
                let (charges, growths) = (vec![charge], vec![(hold, growth)]);
                let request = StoreRequest::Extend { charges, growths, at_us };
                (request, ExpectedReply::Extended(self.extend(hold, growth, when)))
            }
            Act::Lease(ref step) => {
                let lease = self.lease_request(step, ask.cost)?;
                let request = StoreRequest::Lease { charge, lease, at_us };
                (request, ExpectedReply::Leased(self.lease(lease, ask.cost, when)))
            }
            Act::Reset => {
                self.is_kept = false;
                self.holds = Holds::default();
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
                let (limit, state, holds) = self.decides(now_us, Cost::ONE);
                let peek = limit.peek_beside(&state, &holds, now_us, Cost::ONE.into());
                peek.remaining.saturating_add_signed(off)
            }
            Price::MoreThanAll => size + 1,
        };
        Cost::new(units.clamp(1, MAX_UNITS)).unwrap()
    }

    fn peek(&self, ask: UnitRequest, when: When) -> ExpectedReply {
        let (limit, state, holds) = self.decides(when.us(), ask.cost);
        let decision = limit.peek_beside(&state, &holds, when.us(), ask);
        ExpectedReply::Peeked(limit.in_place_of(&self.limit, decision))
    }

    fn check(&mut self, ask: UnitRequest, when: When) -> CheckResult {
        let (limit, mut state, mut holds) = self.decides(when.us(), ask.cost);
        let is_new_clock = is_new_clock(&state, when);
        let is_carried = self.is_carried(when.us(), ask.cost);
        self.is_restarted |= is_new_clock || is_carried;
        let checked = limit.check_beside(&mut state, &mut holds, when.us(), ask);
        let CheckResult { decision, receipt } = checked;
        let checked = CheckResult { decision: limit.in_place_of(&self.limit, decision), receipt };
        self.last = Some((when.us(), checked.decision));
        self.receipts.extend(checked.receipt.as_ref().map(|it| (it.cost(), it.place())));
        // A refusal writes a key only if a new clock has restarted the key's clock since the state was read, or if the
        // state was carried over from another limit.
        if checked.decision.is_allowed() || self.is_restarted {
            // A state that has expired already is kept from now on instead.
            let may_be_over = !checked.decision.is_allowed() && !is_new_clock;
            let spare = if may_be_over { Spare::AtLeast } else { Spare::Seconds };
            self.write(is_carried, (state, holds), when.spare(spare));
        }
        checked
    }

    /// Keeps a state, unless it is of a concurrency limit without holds: the server then deletes the key.
    fn write(&mut self, is_carried: bool, (state, holds): (State, Holds), spare: Spare) {
        self.keep(is_carried, state);
        self.holds = holds;
        self.written = Some(spare);
        if matches!(self.reached_under, Limit::Concurrency(_)) && self.holds.is_empty() {
            (self.is_kept, self.written) = (false, None);
        }
    }

    fn reference(&self, which: usize) -> Option<HoldReference> {
        let count = self.references.len();
        (count > 0).then(|| self.references[which % count])
    }

    fn reserve(&mut self, reservation: Reservation, when: When) -> ReserveAnswer {
        let (limit, mut state, mut holds) = self.decides(when.us(), reservation.cost);
        let is_new_clock = is_new_clock(&state, when);
        let is_carried = self.is_carried(when.us(), reservation.cost);
        self.is_restarted |= is_new_clock || is_carried;
        let answer = limit.reserve(&mut state, &mut holds, when.us(), reservation).unwrap();
        let decision = limit.in_place_of(&self.limit, answer.decision);
        self.last = Some((when.us(), decision));
        self.references.extend(answer.hold);
        if answer.hold.is_some() || self.is_restarted {
            self.write(is_carried, (state, holds), when.spare(Spare::AtLeast));
        }
        ReserveAnswer { decision, ..answer }
    }

    /// The limit that the key is under, and what is kept of it.
    fn under(&self) -> (Limit, State, Holds) {
        match self.is_kept {
            true => (self.reached_under, self.state.clone(), self.holds.clone()),
            false => (self.limit, self.limit.fresh(), Holds::default()),
        }
    }

    fn settle(&mut self, hold: HoldReference, used: HoldUse, when: When) -> SettleAnswer {
        let (limit, mut state, mut holds) = self.under();
        self.is_restarted |= is_new_clock(&state, when);
        let answer = limit.settle_hold(&mut state, &mut holds, when.us(), hold, used);
        if let Settlement::Done { receipt, .. } = &answer.settlement {
            self.receipts.extend(receipt.as_ref().map(|it| (it.cost(), it.place())));
        }
        if matches!(answer.settlement, Settlement::Done { .. }) || self.is_restarted {
            self.write(false, (state, holds), when.spare(Spare::AtLeast));
        }
        answer
    }

    fn extend(&mut self, hold: HoldReference, growth: HoldGrowth, when: When) -> ExtendAnswer {
        let more = growth.more.filter(|_| self.holds.contains(hold.id) && self.is_kept);
        let (limit, mut state, mut holds) = match more {
            Some(more) => self.decides(when.us(), more),
            None => self.under(),
        };
        let is_carried = more.is_some_and(|more| self.is_carried(when.us(), more));
        self.is_restarted |= is_new_clock(&state, when) || is_carried;
        let answer = limit.extend_hold(&mut state, &mut holds, when.us(), hold, growth);
        if let Extension::Granted { expires_us, .. } = answer.extension {
            let mut known = self.references.iter_mut().filter(|known| known.id == hold.id);
            known.by_ref().for_each(|known| known.expires_us = expires_us);
        }
        let is_granted = matches!(answer.extension, Extension::Granted { .. });
        if is_granted || self.is_restarted {
            self.write(is_carried, (state, holds), when.spare(Spare::AtLeast));
        }
        answer
    }

    fn lease_request(&mut self, step: &LeaseStep, cost: Cost) -> Option<LeaseRequest> {
        let (id, granted_us) = match step.which {
            Some(which) => self.leases[which.checked_rem(self.leases.len())?],
            None => {
                self.leases.push((HoldId::of_lease(self.leases.len() as u64), None));
                self.leases[self.leases.len() - 1]
            }
        };
        let of = |units: u64, part: u64| {
            (u128::from(units) * u128::from(part) / 1_000).min(MAX_UNITS.into()) as u64
        };
        let open = self.holds.iter().find(|open| open.id == id);
        let has = open.map_or(cost.units(), |open| open.units.saturating_add(open.used));
        Some(LeaseRequest {
            id,
            expires_us: granted_us.filter(|_| !step.is_repeated),
            used: of(has, step.used),
            need: step.needs.then_some(cost),
            want: of(self.limit.size(), step.want),
            most: of(self.limit.size(), step.most),
            lease_for: HoldTime::from_us(step.lease_for_us).unwrap(),
        })
    }

    fn lease(&mut self, request: LeaseRequest, cost: Cost, when: When) -> LeaseAnswer {
        let (limit, mut state, mut holds) = self.decides(when.us(), cost);
        let is_carried = self.is_carried(when.us(), cost);
        let (state_before, holds_before) = (state.clone(), holds.clone());
        self.is_restarted |= is_new_clock(&state, when) || is_carried;
        let answer = match limit.lease(&mut state, &mut holds, when.us(), request) {
            Ok(answer) => answer,
            Err(_) => {
                let one = store::StoredState { limit, state: state.clone(), holds: holds.clone() };
                let mut stored = Some(one);
                let charge = self.charge(cost.into());
                let original = store::Charge::new(
                    Arc::clone(charge.original.name()),
                    &self.name,
                    limit,
                    *charge.demand(),
                );
                let answer = original.lease(&mut stored, when.us(), request);
                if let Some(stored) = stored {
                    (state, holds) = (stored.state, stored.holds);
                }
                answer
            }
        };
        let decision = limit.in_place_of(&self.limit, answer.decision);
        self.last = Some((when.us(), decision));
        self.receipts.extend(answer.receipt.as_ref().map(|it| (it.cost(), it.place())));
        if let LeaseState::Open { expires_us, .. } = answer.lease {
            self.granted_lease(HoldReference { id: request.id, expires_us });
        }
        let is_changed = state != state_before || holds != holds_before;
        let is_open = matches!(answer.lease, LeaseState::Open { .. });
        let was_renewed = is_open && holds_before.contains(request.id);
        if is_changed || self.is_restarted || was_renewed || answer.receipt.is_some() {
            self.write(is_carried, (state, holds), when.spare(Spare::AtLeast));
        }
        LeaseAnswer { decision, ..answer }
    }

    /// Notes that a lease was opened or renewed. It can also be settled and extended as any hold.
    fn granted_lease(&mut self, reference: HoldReference) {
        let leases = self.leases.iter_mut().filter(|(id, _)| *id == reference.id);
        leases.for_each(|(_, granted_us)| *granted_us = Some(reference.expires_us));
        match self.references.iter_mut().find(|known| known.id == reference.id) {
            Some(known) => *known = reference,
            None => self.references.push(reference),
        }
    }

    fn refund(&mut self, receipt: ChargeReceipt, when: When) -> u64 {
        // Under the limit that the state has.
        if !self.is_kept {
            return self.limit.refund(&mut self.limit.fresh(), when.us(), receipt);
        }
        let (mut state, mut holds) = (self.state.clone(), self.holds.clone());
        let under = self.reached_under;
        let back = under.refund_beside(&mut state, &mut holds, when.us(), receipt);
        self.write(false, (state, holds), when.spare(Spare::AtLeast));
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
    pub(super) fn decides(&self, now_us: u64, cost: Cost) -> (Limit, State, Holds) {
        let mut holds = self.holds.clone();
        match (self.is_kept, self.is_under_another()) {
            (false, _) => (self.limit, self.limit.fresh(), Holds::default()),
            (true, false) => (self.limit, self.state.clone(), holds),
            (true, true) => {
                let carried = self.carry_over(&mut holds, now_us, cost);
                let (limit, state) = carried.decides(&self.limit);
                (limit, state, holds)
            }
        }
    }

    fn carry_over(&self, holds: &mut Holds, now_us: u64, cost: Cost) -> CarryOver {
        let state = self.state.clone();
        self.limit.carry_over_beside(&self.reached_under, state, holds, now_us, cost)
    }

    /// Returns whether a request of this cost carries the state over to the key's limit.
    fn is_carried(&self, now_us: u64, cost: Cost) -> bool {
        let carry_over = || self.carry_over(&mut self.holds.clone(), now_us, cost);
        self.is_under_another() && matches!(carry_over(), CarryOver::Done(_))
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
        let (limit, state, holds) = (&self.reached_under, &self.state, &self.holds);
        let over_us =
            |at_us: u64| at_us + limit.peek(state, at_us, Cost::ONE.into()).reset_after_us;
        let beside_us =
            now_us + limit.peek_beside(state, holds, now_us, Cost::ONE.into()).reset_after_us;
        let last_us = holds.iter().map(|hold| hold.expires_us).max().unwrap_or(0);
        let expires_us = match (limit, state) {
            (Limit::FixedWindow(limit), State::Window(state)) => state.start_us + limit.window_us(),
            (Limit::SlidingWindowCounter(limit), State::WindowPair(state)) => {
                state.start_us + 2 * limit.window_us()
            }
            (_, State::Fill(fill)) => over_us(fill.as_of_us) / STEP_US * STEP_US + STEP_US,
            _ => 0,
        };
        expires_us.max(over_us(now_us)).max(beside_us).max(last_us)
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
