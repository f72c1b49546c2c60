//! Random traces, played in Rust and written as text for the servers.

use std::fmt::Write;

use proptest::prelude::*;
use tollgate_core::{
    ChargeReceipt, Cost, EndedHold, Extension, GrantedExtension, HoldGrowth, HoldId, HoldReference,
    HoldTime, HoldUse, Holds, LeaseRequest, LeaseState, Limit, LimitDecision, MAX_TIME_US,
    MAX_UNITS, MAX_WINDOW_US, Mode, Reservation, Retry, Settlement, State, UnitRequest, Verdict,
};

/// One action of a trace, and when it happens.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    act: Act,
    time: Time,
    price: Price,
    patience: Patience,
}

#[derive(Clone, Debug)]
enum Act {
    Check,
    Peek,
    Fits,
    /// Refunds one of the receipts held; the number is taken modulo their count.
    Refund(usize),
    Reset,
    /// Moves to the other limit, or back to the first.
    CarryOver,
    /// Sets units aside.
    Reserve(Hold),
    /// Settles one of the holds; the number is modulo how many there have been. The part is of the hold's units, in
    /// thousandths.
    Settle(usize, u64, bool),
    /// Adds units to one of the holds, or none, and moves its expiry.
    Extend(usize, bool, Hold),
    /// Takes one of the granted extensions back; the number is modulo how many there have been.
    TakeBack(usize),
    Lease(LeaseStep),
}

/// A request to open or renew a lease.
#[derive(Clone, Debug)]
struct LeaseStep {
    /// The lease to renew, modulo how many there have been; `None` to open another one.
    which: Option<usize>,
    /// Whether the request is the one that opened the lease, sent again.
    is_repeated: bool,
    /// Whether a check waits for the answer.
    needs: bool,
    /// Thousandths of the units that the lease has had.
    used: u64,
    /// Thousandths of the limit.
    want: u64,
    most: u64,
    hold: Hold,
}

/// How long units are held.
#[derive(Clone, Debug)]
enum Hold {
    Us(u64),
    /// Thousandths of the limit's own interval.
    Part(u64),
}

/// How the clock moves before the action.
#[derive(Clone, Debug)]
enum Time {
    Stay,
    ByUs(u64),
    /// Forward, in thousandths of the limit's interval.
    Part(u64),
    /// To the end of the last decision's wait, give or take a microsecond.
    Retry(i64),
    /// To the last decision's reset, give or take a microsecond.
    Reset(i64),
    BackUs(u64),
}

/// The cost of a request.
#[derive(Clone, Debug)]
enum Price {
    Units(u64),
    /// Thousandths of the limit.
    Part(u64),
    /// The remaining units, plus or minus one.
    Remaining(i64),
    MoreThanAll,
}

/// The longest delay that the caller accepts.
#[derive(Clone, Debug)]
enum Patience {
    Any,
    Us(u64),
    /// Thousandths of the limit's interval.
    Part(u64),
    /// The last delay, give or take a microsecond.
    Delay(i64),
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(act()), 1..40)
}

/// Traces during which the limit changes.
pub(crate) fn changing_steps() -> impl Strategy<Value = Vec<Step>> {
    let act = prop_oneof![6 => act(), 1 => Just(Act::CarryOver)];
    prop::collection::vec(step(act), 1..40)
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => Just(Act::Check),
        2 => Just(Act::Peek),
        1 => Just(Act::Fits),
        4 => any::<usize>().prop_map(Act::Refund),
        1 => Just(Act::Reset),
    ]
}

fn hold() -> impl Strategy<Value = Hold> {
    prop_oneof![
        2 => (1..60_u64).prop_map(Hold::Us),
        3 => (1..2_500_u64).prop_map(Hold::Part),
        1 => Just(Hold::Us(MAX_WINDOW_US)),
    ]
}

fn lease() -> impl Strategy<Value = Act> {
    let used = prop_oneof![5 => 0..=1_000_u64, 1 => 1_000..3_000_u64, 1 => Just(u64::MAX)];
    let units = || prop_oneof![4 => 0..=600_u64, 1 => Just(u64::MAX)];
    let which = prop::option::weighted(0.7, any::<usize>());
    let request = (which, prop::bool::weighted(0.2), any::<bool>(), used, units(), units(), hold());
    request.prop_map(|(which, is_repeated, needs, used, want, most, hold)| {
        Act::Lease(LeaseStep { which, is_repeated, needs, used, want, most, hold })
    })
}

/// Traces with holds and leases, in the middle of which the limit may change.
pub(crate) fn holding_steps() -> impl Strategy<Value = Vec<Step>> {
    let used = prop_oneof![5 => 0..=1_000_u64, 2 => 1_000..4_000_u64, 1 => Just(u64::MAX)];
    let act = prop_oneof![
        8 => act(),
        6 => hold().prop_map(Act::Reserve),
        3 => (any::<usize>(), used, any::<bool>())
            .prop_map(|(which, part, is_last)| Act::Settle(which, part, is_last)),
        2 => (any::<usize>(), any::<bool>(), hold())
            .prop_map(|(which, adds, hold)| Act::Extend(which, adds, hold)),
        1 => any::<usize>().prop_map(Act::TakeBack),
        6 => lease(),
        1 => Just(Act::CarryOver),
    ];
    prop::collection::vec(step(act), 1..60)
}

fn step(act: impl Strategy<Value = Act>) -> impl Strategy<Value = Step> {
    let time = prop_oneof![
        6 => Just(Time::Stay),
        4 => (0..20_u64).prop_map(Time::ByUs),
        6 => (0..2_500_u64).prop_map(Time::Part),
        4 => (-1..=1_i64).prop_map(Time::Retry),
        2 => (-1..=1_i64).prop_map(Time::Reset),
        1 => (1..50_u64).prop_map(Time::BackUs),
        1 => prop::sample::select(vec![9_999_999, 10_000_000, 10_000_001]).prop_map(Time::BackUs),
        1 => (10_000_001..20_000_000_000_u64).prop_map(Time::BackUs),
    ];
    let price = prop_oneof![
        4 => (1..4_u64).prop_map(Price::Units),
        3 => (1..=1_000_u64).prop_map(Price::Part),
        3 => (-1..=1_i64).prop_map(Price::Remaining),
        1 => Just(Price::MoreThanAll),
    ];
    let patience = prop_oneof![
        4 => Just(Patience::Any),
        1 => (0..50_u64).prop_map(Patience::Us),
        1 => (0..1_100_u64).prop_map(Patience::Part),
        2 => (-1..=1_i64).prop_map(Patience::Delay),
        1 => Just(Patience::Us(u64::MAX)),
    ];
    (act, time, price, patience).prop_map(|(act, time, price, patience)| Step {
        act,
        time,
        price,
        patience,
    })
}

/// Traces that fill a log: many charges, close together.
pub(crate) fn crowded_steps() -> impl Strategy<Value = Vec<Step>> {
    let act = prop_oneof![
        12 => Just(Act::Check),
        2 => Just(Act::Peek),
        1 => any::<usize>().prop_map(Act::Refund),
    ];
    let time = (0..4_u64).prop_map(Time::ByUs);
    let price = prop_oneof![
        12 => (1..4_u64).prop_map(Price::Units),
        1 => (1..=1_000_u64).prop_map(Price::Part),
        1 => (0..=1_i64).prop_map(Price::Remaining),
    ];
    let step = (act, time, price).prop_map(|(act, time, price)| Step {
        act,
        time,
        price,
        patience: Patience::Any,
    });
    prop::collection::vec(step, 200..500)
}

/// A charge, a reset, the same charge at about the time at which the first one would have left, and then a refund of
/// the first.
pub(crate) fn stale_receipt(off: i64) -> Vec<Step> {
    let step = |act, time| Step { act, time, price: Price::Units(3), patience: Patience::Any };
    vec![
        step(Act::Check, Time::Stay),
        step(Act::Reset, Time::Stay),
        step(Act::Check, Time::Reset(off)),
        step(Act::Refund(0), Time::Stay),
    ]
}

/// The time at which a trace begins: in 2023, at the epoch, or near the latest time.
pub(crate) fn start_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(1_700_000_000_000_000_u64),
        1 => 0..100_u64,
        2 => (0..53_u32, 0..=MAX_TIME_US)
            .prop_map(|(bits, us)| MAX_TIME_US - (us & ((1 << bits) - 1))),
    ]
}

/// Past the latest time. Every later time counts as the latest.
const END_US: u64 = MAX_TIME_US + 1_000;

/// How many of a log's oldest and newest entries are compared.
const SHOWN: usize = 8;

/// A trace as text for a server, and the lines that the server must return.
pub(crate) struct PlayedTrace {
    pub(crate) text: String,
    pub(crate) lines: Vec<String>,
}

/// One key as it goes through a trace.
struct Walk {
    limit: Limit,
    other: Limit,
    age: u64,
    state: State,
    now_us: u64,
    last: Option<LimitDecision>,
    receipts: Vec<Option<ChargeReceipt>>,
    holds: Holds,
    /// Every hold that was granted, and its units at first.
    granted: Vec<(HoldReference, u64)>,
    /// Every lease, with the last expiry that was granted and the units that it has had.
    leases: Vec<(HoldId, Option<u64>, u64)>,
    /// Every extension that was granted.
    extensions: Vec<GrantedExtension>,
}

/// Plays the steps in Rust. On the server a log's running sums are raised by `age` units, which must not
/// change any answer.
pub(crate) fn play(limits: [Limit; 2], age: u64, start_us: u64, steps: &[Step]) -> PlayedTrace {
    let [limit, other] = limits;
    let mut walk = Walk {
        limit,
        other,
        age,
        state: limit.fresh(),
        now_us: start_us,
        last: None,
        receipts: Vec::new(),
        holds: Holds::default(),
        granted: Vec::new(),
        leases: Vec::new(),
        extensions: Vec::new(),
    };
    let mut played = PlayedTrace { text: limit_text(limit, age), lines: Vec::new() };
    for step in steps {
        if let Some((text, answer)) = walk.take(step) {
            write!(played.text, "\n{text}").unwrap();
            played.lines.push(format!("{answer}; {}", walk.show_state()));
        }
    }
    played
}

impl Walk {
    /// Performs one step. Returns it as text for the server, and the expected answer.
    fn take(&mut self, step: &Step) -> Option<(String, String)> {
        self.now_us = self.next_us(&step.time);
        let (now_us, cost) = (self.now_us, self.cost(&step.price));
        let max_wait_us = self.max_wait_us(&step.patience);
        let request = UnitRequest { cost, max_wait_us };
        let wait = max_wait_us.map_or("any".to_owned(), |us| us.to_string());
        let words = format!("{now_us} {} {wait}", cost.units());
        Some(match &step.act {
            Act::Check => {
                let checked =
                    self.limit.check_beside(&mut self.state, &mut self.holds, now_us, request);
                self.last = Some(checked.decision);
                self.receipts.extend(checked.receipt.map(Some));
                (format!("check {words}"), show_decision(checked.decision))
            }
            Act::Peek => {
                let decision = self.limit.peek_beside(&self.state, &self.holds, now_us, request);
                (format!("peek {words}"), show_decision(decision))
            }
            Act::Fits if !self.holds.is_empty() => return None,
            Act::Fits => {
                let fits = self.limit.fits(&self.state, now_us, request);
                (format!("fits {words}"), format!("fits {fits}"))
            }
            Act::Refund(which) => {
                let held = |&index: &usize| self.receipts[index].is_some();
                let held: Vec<_> = (0..self.receipts.len()).filter(held).collect();
                let index = *held.get(which.checked_rem(held.len())?)?;
                let receipt = self.receipts[index].take()?;
                let (state, holds) = (&mut self.state, &mut self.holds);
                let back = self.limit.refund_beside(state, holds, now_us, receipt);
                (format!("refund {now_us} {}", index + 1), format!("refunded {back}"))
            }
            Act::Reset => {
                (self.state, self.holds) = (self.limit.fresh(), Holds::default());
                (format!("reset {now_us}"), "reset".to_owned())
            }
            Act::CarryOver => {
                std::mem::swap(&mut self.limit, &mut self.other);
                let limit = limit_text(self.limit, self.age);
                let (state, holds) = (self.state.clone(), &mut self.holds);
                let carried =
                    self.limit.carry_over_beside(&self.other, state, holds, now_us, Cost::ONE);
                (self.limit, self.state) = carried.decides(&self.limit);
                (format!("carry-over {now_us} {limit}"), "carried over".to_owned())
            }
            Act::Reserve(hold) => self.reserve(cost, self.hold_time(hold))?,
            Act::Settle(which, part, is_last) => self.settle(*which, *part, *is_last)?,
            Act::Extend(which, adds, hold) => {
                self.extend(*which, adds.then_some(cost), self.hold_time(hold))?
            }
            Act::TakeBack(which) => self.take_back(*which)?,
            Act::Lease(step) => self.lease(step, cost)?,
        })
    }

    fn reserve(&mut self, cost: Cost, hold_for: HoldTime) -> Option<(String, String)> {
        let now_us = self.now_us;
        let id = HoldId::of_hold(self.granted.len() as u64);
        let (state, holds) = (&mut self.state, &mut self.holds);
        let reservation = Reservation { id, cost, hold_for };
        let answer = self.limit.reserve(state, holds, now_us, reservation).ok()?;
        self.last = Some(answer.decision);
        let until = answer.hold.map_or("nil".to_owned(), |hold| hold.expires_us.to_string());
        self.granted.extend(answer.hold.map(|hold| (hold, cost.units())));
        let (id, cost, us) = (id.0, cost.units(), hold_for.as_us());
        let text = format!("reserve {now_us} {cost} {us} {id}");
        Some((text, format!("{}, until {until}", show_decision(answer.decision))))
    }

    fn settle(&mut self, which: usize, part: u64, is_last: bool) -> Option<(String, String)> {
        let (hold, units) = *self.granted.get(which.checked_rem(self.granted.len())?)?;
        let units = (u128::from(units) * u128::from(part) / 1_000).min(MAX_UNITS.into()) as u64;
        let now_us = self.now_us;
        let (state, holds) = (&mut self.state, &mut self.holds);
        let used = HoldUse { units, is_last };
        let answer = self.limit.settle_hold(state, holds, now_us, hold, used);
        let shown = match answer.settlement {
            Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt } => {
                self.receipts.extend(receipt.map(Some));
                format!("done {charged_units} {excess_units} {cut_units} {freed_units}")
            }
            Settlement::Ended(ended) => show_ended(ended),
        };
        let (id, expires_us, last) = (show_id(hold.id), hold.expires_us, u8::from(is_last));
        let text = format!("settle {now_us} {units} {expires_us} {id} {last}");
        Some((text, format!("{shown}, {}", show_decision(answer.decision))))
    }

    fn extend(
        &mut self,
        which: usize,
        more: Option<Cost>,
        hold_for: HoldTime,
    ) -> Option<(String, String)> {
        let index = which.checked_rem(self.granted.len())?;
        let (hold, _) = *self.granted.get(index)?;
        let now_us = self.now_us;
        let (state, holds) = (&mut self.state, &mut self.holds);
        let growth = HoldGrowth { more, hold_for };
        let answer = self.limit.extend_hold(state, holds, now_us, hold, growth);
        if let Extension::Granted { expires_us, .. } = answer.extension {
            self.granted[index].0.expires_us = expires_us;
            self.extensions.push(GrantedExtension { hold, more, expires_us });
        }
        let shown = show_extension(answer.extension);
        let (id, expires_us, us) = (show_id(hold.id), hold.expires_us, hold_for.as_us());
        let more = more.map_or(0, Cost::units);
        let text = format!("extend {now_us} {more} {expires_us} {id} {us}");
        Some((text, format!("{shown}, {}", show_decision(answer.decision))))
    }

    fn take_back(&mut self, which: usize) -> Option<(String, String)> {
        let extended = *self.extensions.get(which.checked_rem(self.extensions.len())?)?;
        let (now_us, state, holds) = (self.now_us, &mut self.state, &mut self.holds);
        let answer = self.limit.take_back_extension(state, holds, now_us, extended);
        let GrantedExtension { hold, more, expires_us } = extended;
        let (more, id) = (more.map_or(0, Cost::units), show_id(hold.id));
        let text = format!("take-back {now_us} {more} {} {id} {expires_us}", hold.expires_us);
        let shown = show_extension(answer.extension);
        Some((text, format!("{shown}, {}", show_decision(answer.decision))))
    }

    fn lease(&mut self, step: &LeaseStep, cost: Cost) -> Option<(String, String)> {
        let index = match step.which {
            Some(which) => which.checked_rem(self.leases.len())?,
            None => {
                self.leases.push((HoldId::of_lease(self.leases.len() as u64), None, 0));
                self.leases.len() - 1
            }
        };
        let (id, granted_us, had) = self.leases[index];
        let of = |units: u64, part: u64| (u128::from(units) * u128::from(part) / 1_000) as u64;
        let units = |part: u64| if part == u64::MAX { part } else { of(self.limit.size(), part) };
        let request = LeaseRequest {
            id,
            expires_us: granted_us.filter(|_| !step.is_repeated),
            used: of(had, step.used.min(1_000_000)).min(MAX_UNITS),
            need: step.needs.then_some(cost),
            want: units(step.want).min(MAX_UNITS),
            most: units(step.most).min(MAX_UNITS),
            lease_for: self.hold_time(&step.hold),
        };
        let (now_us, state, holds) = (self.now_us, &mut self.state, &mut self.holds);
        let answer = self.limit.lease(state, holds, now_us, request).ok()?;
        self.last = Some(answer.decision);
        self.receipts.extend(answer.receipt.map(Some));
        let shown = match answer.lease {
            LeaseState::Open { unused, expires_us, lasts_us, holders } => {
                let lease = &mut self.leases[index];
                (lease.1, lease.2) = (Some(expires_us), lease.2.max(request.used + unused));
                let hold = HoldReference { id, expires_us };
                match self.granted.iter_mut().find(|(known, _)| known.id == id) {
                    Some(known) => known.0 = hold,
                    None => self.granted.push((hold, unused)),
                }
                format!("open {unused} {expires_us} {lasts_us} {holders}")
            }
            LeaseState::None => "none".to_owned(),
            LeaseState::Ended(ended) => show_ended(ended),
        };
        let LeaseRequest { used, want, most, .. } = request;
        let need = request.need.map_or(0, Cost::units);
        let expires = request.expires_us.map_or("none".to_owned(), |us| us.to_string());
        let (id, us) = (show_id(id), request.lease_for.as_us());
        let text = format!("lease {now_us} {need} {expires} {id} {used} {want} {most} {us}");
        Some((text, format!("{shown}, {}", show_decision(answer.decision))))
    }

    fn hold_time(&self, hold: &Hold) -> HoldTime {
        let us = match *hold {
            Hold::Us(us) => us,
            Hold::Part(part) => self.interval_part_us(part),
        };
        HoldTime::from_us(us.clamp(1, MAX_WINDOW_US)).unwrap()
    }

    fn next_us(&self, time: &Time) -> u64 {
        let retry_us = self.last.and_then(|decision| decision.retry_after_us()).unwrap_or(0);
        let reset_us = self.last.map_or(0, |decision| decision.reset_after_us);
        let now_us = self.now_us;
        let next_us = match *time {
            Time::Stay => now_us,
            Time::ByUs(us) => now_us + us,
            Time::Part(part) => now_us + self.interval_part_us(part),
            Time::Retry(off) => now_us + retry_us.saturating_add_signed(off),
            Time::Reset(off) => now_us + reset_us.saturating_add_signed(off),
            Time::BackUs(us) => now_us.saturating_sub(us),
        };
        next_us.min(END_US)
    }

    fn interval_part_us(&self, part: u64) -> u64 {
        (u128::from(self.limit.bound().interval_us) * u128::from(part) / 1_000) as u64
    }

    fn cost(&self, price: &Price) -> Cost {
        let size = self.limit.size();
        let units = match *price {
            Price::Units(units) => units,
            Price::Part(part) => (u128::from(size) * u128::from(part) / 1_000) as u64,
            Price::Remaining(off) => {
                let ask = Cost::ONE.into();
                let peek = self.limit.peek_beside(&self.state, &self.holds, self.now_us, ask);
                peek.remaining.saturating_add_signed(off)
            }
            Price::MoreThanAll => size + 1,
        };
        Cost::new(units.clamp(1, MAX_UNITS)).unwrap()
    }

    fn max_wait_us(&self, patience: &Patience) -> Option<u64> {
        match *patience {
            Patience::Any => None,
            Patience::Us(us) => Some(us),
            Patience::Part(part) => Some(self.interval_part_us(part)),
            Patience::Delay(off) => {
                let delay_us = self.last.map_or(0, |decision| decision.delay_us());
                Some(delay_us.saturating_add_signed(off))
            }
        }
    }

    fn show_state(&self) -> String {
        let mut text = self.show_units();
        for hold in self.holds.iter() {
            let (id, units, used) = (show_id(hold.id), hold.units, hold.used);
            write!(text, " held {id}:{units}:{}:{used}", hold.expires_us).unwrap();
        }
        text
    }

    fn show_units(&self) -> String {
        match &self.state {
            State::Window(it) => format!("start {} spent {}", it.start_us, it.spent),
            State::WindowPair(it) => {
                format!("start {} current {} previous {}", it.start_us, it.current, it.previous)
            }
            State::Log(_) => {
                let entries = || self.limit.entries(&self.state, self.now_us).unwrap();
                let count = entries().count();
                let mut text = format!("{count} entries");
                for (index, entry) in entries().enumerate() {
                    if index < SHOWN || index + SHOWN >= count {
                        write!(text, " {}:{}", entry.at_us, entry.cost.units()).unwrap();
                    }
                }
                text
            }
            State::Fill(it) => format!(
                "level {}+{} as of {} charged {}",
                it.level.units, it.level.fraction, it.as_of_us, it.charged
            ),
            State::KeyClock(it) => format!("at {}", it.at_us),
        }
    }
}

fn limit_text(limit: Limit, age: u64) -> String {
    match limit {
        Limit::FixedWindow(it) => format!("fixed-window {} {}", it.limit(), it.window_us()),
        Limit::SlidingWindowCounter(it) => {
            format!("sliding-window-counter {} {}", it.limit(), it.window_us())
        }
        Limit::SlidingWindowLog(it) => {
            format!("sliding-window-log {} {} {age}", it.limit(), it.window_us())
        }
        Limit::TokenBucket(it) => {
            let rate = it.refill();
            format!("token-bucket {} {} {}", it.capacity(), rate.units(), rate.per_us())
        }
        Limit::LeakyBucket(it) => {
            let (mode, rate): (Mode, _) = (it.mode(), it.leak());
            format!("{mode} {} {} {}", it.capacity(), rate.units(), rate.per_us())
        }
        Limit::Concurrency(it) => format!("concurrency {} {}", it.limit(), it.hold_for().as_us()),
    }
}

fn show_decision(decision: LimitDecision) -> String {
    let LimitDecision { verdict, limit, remaining, reset_after_us: reset, first_back_us: first } =
        decision;
    let (answer, retry, delay) = match verdict {
        Verdict::Allowed { delay_us } => ("allowed", "nil".to_owned(), delay_us),
        Verdict::Denied { retry: Retry::AfterUs(us) } => ("denied", us.to_string(), 0),
        Verdict::Denied { retry: Retry::Never } => ("denied", "inf".to_owned(), 0),
    };
    format!(
        "{answer} of {limit}, {remaining} left, \
         retry {retry}, reset {reset}, delay {delay}, first {first}"
    )
}

fn show_extension(extension: Extension) -> String {
    match extension {
        Extension::Granted { expires_us, held_units } => {
            format!("granted {expires_us} {held_units}")
        }
        Extension::Refused => "refused".to_owned(),
        Extension::Ended(ended) => show_ended(ended),
    }
}

/// Returns the number of a hold, after an `L` if it is a lease.
fn show_id(id: HoldId) -> String {
    let number = HoldId::of_hold(id.0).0;
    if id.is_lease() { format!("L{number}") } else { number.to_string() }
}

fn show_ended(ended: EndedHold) -> String {
    match ended {
        EndedHold::Expired => "expired".to_owned(),
        EndedHold::Unknown => "unknown".to_owned(),
    }
}
