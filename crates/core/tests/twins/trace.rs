//! Random traces, played in Rust and written as text for the servers.

use std::fmt::Write;

use proptest::prelude::*;
use tollgate_core::{
    Ask, Cost, Decision, Limit, MAX_TIME_US, MAX_UNITS, Mode, Receipt, Retry, State, Verdict,
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
pub(crate) struct Played {
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
    last: Option<Decision>,
    receipts: Vec<Option<Receipt>>,
}

/// Plays the steps in Rust. On the server a log's running sums are raised by `age` units, which must not
/// change any answer.
pub(crate) fn play(limits: [Limit; 2], age: u64, start_us: u64, steps: &[Step]) -> Played {
    let [limit, other] = limits;
    let mut walk = Walk {
        limit,
        other,
        age,
        state: limit.fresh(),
        now_us: start_us,
        last: None,
        receipts: Vec::new(),
    };
    let mut played = Played { text: limit_text(limit, age), lines: Vec::new() };
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
        let ask = Ask { cost, max_wait_us };
        let wait = max_wait_us.map_or("any".to_owned(), |us| us.to_string());
        let request = format!("{now_us} {} {wait}", cost.units());
        Some(match &step.act {
            Act::Check => {
                let checked = self.limit.check(&mut self.state, now_us, ask);
                self.last = Some(checked.decision);
                self.receipts.extend(checked.receipt.map(Some));
                (format!("check {request}"), show_decision(checked.decision))
            }
            Act::Peek => {
                let decision = self.limit.peek(&self.state, now_us, ask);
                (format!("peek {request}"), show_decision(decision))
            }
            Act::Fits => {
                let ask = Ask { cost, max_wait_us };
                let fits = self.limit.fits(&self.state, now_us, ask);
                (format!("fits {request}"), format!("fits {fits}"))
            }
            Act::Refund(which) => {
                let held = |&index: &usize| self.receipts[index].is_some();
                let held: Vec<_> = (0..self.receipts.len()).filter(held).collect();
                let index = *held.get(which.checked_rem(held.len())?)?;
                let receipt = self.receipts[index].take()?;
                let back = self.limit.refund(&mut self.state, now_us, receipt);
                (format!("refund {now_us} {}", index + 1), format!("refunded {back}"))
            }
            Act::Reset => {
                self.state = self.limit.fresh();
                (format!("reset {now_us}"), "reset".to_owned())
            }
            Act::CarryOver => {
                std::mem::swap(&mut self.limit, &mut self.other);
                let limit = limit_text(self.limit, self.age);
                let carried =
                    self.limit.carry_over(&self.other, self.state.clone(), now_us, Cost::ONE);
                (self.limit, self.state) = carried.decides(&self.limit);
                (format!("carry-over {now_us} {limit}"), "carried over".to_owned())
            }
        })
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
                let peek = self.limit.peek(&self.state, self.now_us, Cost::ONE.into());
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
    }
}

fn show_decision(decision: Decision) -> String {
    let Decision { verdict, limit, remaining, reset_after_us: reset, first_back_us: first } =
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
