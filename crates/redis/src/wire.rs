//! Requests as the script's arguments, and its reply as answers. `check.lua` describes both.

mod limit;
mod log;

use redis::{Cmd, Value};
use tollgate_core::{
    self as core, Checked, Cost, Fill, Intent, Level, Limit, MAX_TIME_US, Part, Place, Receipt,
    Retry, Role, State, Together, Verdict, Window, WindowPair,
};

use super::batcher::MAX_BATCH;
use super::denials::Asked;
use super::script::Abilities;
use limit::put_number;
use tollgate_limiter::Decision;
use tollgate_limiter::JointDecision;
use tollgate_limiter::StoreError;
use tollgate_limiter::store;
use tollgate_limiter::store::Demand;

/// The script's word for the server's time, and for any wait: a number that no time or wait is.
const NONE: u64 = 1 << 53;

/// A log of more units may have holes, which make it slower to read. `NEAR` in `ring.lua`.
const LONG_LOG_UNITS: u64 = 64;

/// The server may have to move the string of a log of more units when it grows. `4096` in `ring.lua`.
const MOVED_LOG_UNITS: u64 = 4_096;

/// The weight of a check of a long log.
const LONG_LOG_WEIGHT: usize = 4;

/// One charge to one key.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    /// The key on the server.
    pub(super) key: Box<[u8]>,
    /// What the limiter asks.
    pub(super) of: store::Charge,
}

impl Charge {
    pub(super) fn limit(&self) -> &Limit {
        self.of.limit()
    }

    pub(super) fn demand(&self) -> &Demand {
        self.of.demand()
    }

    pub(super) fn asked(&self) -> Asked<'_> {
        Asked { key: &self.key, limit: self.limit(), cost: self.demand().ask.cost.units() }
    }

    /// Whether it is, if nothing refuses: it is no look.
    pub(super) fn is_charged(&self) -> bool {
        self.demand().intent == Intent::Charge
    }

    /// Whether its limit is a log that may have holes.
    fn is_on_long_log(&self) -> bool {
        matches!(self.limit(), Limit::SlidingWindowLog(log) if log.limit() > LONG_LOG_UNITS)
    }

    /// The work of a check in the worst case, in checks of a window or a bucket.
    fn weight(&self) -> usize {
        if self.is_on_long_log() { LONG_LOG_WEIGHT } else { 1 }
    }

    /// How many of [`MAX_CHARGES`] it counts as: the work in a check of several limits.
    pub(super) fn counts_as(&self) -> usize {
        match self.limit() {
            Limit::SlidingWindowLog(log) if log.limit() > MOVED_LOG_UNITS => 64,
            Limit::SlidingWindowLog(log) if log.limit() > LONG_LOG_UNITS => 16,
            Limit::SlidingWindowLog(_) => 2,
            _ => 1,
        }
    }

    /// Its part in the answer of several, as far as what remains tells: a longest wait may leave room
    /// for fewer.
    pub(super) fn part(&self, decision: &core::Decision) -> Part {
        let requests_remaining = decision.remaining / self.demand().ask.cost.units();
        Part { role: self.demand().role, decision: *decision, requests_remaining }
    }
}

/// What is asked of the server.
#[derive(Debug)]
pub(crate) enum Request {
    Check {
        charge: Charge,
        at_us: Option<u64>,
    },
    Peek {
        charge: Charge,
        at_us: Option<u64>,
    },
    /// Several charges, all or none.
    Together {
        charges: Vec<Charge>,
        at_us: Option<u64>,
    },
    Refund {
        charge: Charge,
        place: Place,
        at_us: Option<u64>,
    },
    Reset {
        charge: Charge,
    },
    State {
        charge: Charge,
        at_us: Option<u64>,
    },
}

/// The answer to a [`Request`] of the same name; a peek's is a check's without a receipt.
#[derive(Debug)]
pub(crate) enum Reply {
    Checked(Decision),
    Together(JointDecision),
    Refunded(u64),
    Reset,
    /// And the time at which to look at it.
    State {
        /// What decides on it: the one that was asked for, or another at its size.
        limit: Limit,
        /// Boxed, because every request in flight has room for a reply.
        state: Box<State>,
        now_us: u64,
    },
}

impl Request {
    /// The work of the server in the worst case, in checks of a window or a bucket.
    pub(super) fn weight(&self) -> usize {
        match self {
            Request::State { .. } if self.is_slow() => MAX_BATCH,
            Request::Refund { .. } if self.is_slow() => MAX_BATCH / 2,
            Request::Reset { charge } if charge.is_on_long_log() => MAX_BATCH / 4,
            _ => self.charges().iter().map(Charge::weight).sum(),
        }
    }

    /// The weight if the states are long logs, whatever the limits say: a limit may have been lowered.
    pub(super) fn weight_on_long_logs(&self) -> usize {
        match self {
            Request::State { .. } => MAX_BATCH,
            Request::Refund { .. } => MAX_BATCH / 2,
            Request::Reset { .. } => MAX_BATCH / 4,
            _ => self.charges().len() * LONG_LOG_WEIGHT,
        }
    }

    /// Whether it lists or compacts logs: on long logs that takes the server much longer than a check.
    pub(super) fn is_slow_on_long_logs(&self) -> bool {
        matches!(self, Request::State { .. } | Request::Refund { .. })
    }

    /// Whether the server may take much longer than for a check: the request lists or compacts a long log.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow_on_long_logs() && self.charges().iter().any(Charge::is_on_long_log)
    }

    pub(super) fn charges(&self) -> &[Charge] {
        match self {
            Request::Together { charges, .. } => charges,
            Request::Check { charge, .. }
            | Request::Peek { charge, .. }
            | Request::Refund { charge, .. }
            | Request::Reset { charge }
            | Request::State { charge, .. } => std::slice::from_ref(charge),
        }
    }

    pub(super) fn at_us(&self) -> Option<u64> {
        match self {
            Request::Check { at_us, .. }
            | Request::Peek { at_us, .. }
            | Request::Together { at_us, .. }
            | Request::Refund { at_us, .. }
            | Request::State { at_us, .. } => at_us.map(|us| us.min(MAX_TIME_US)),
            Request::Reset { .. } => None,
        }
    }

    /// Whether it decides something, so that a failure policy can decide it instead.
    pub(super) fn is_decision(&self) -> bool {
        matches!(self, Request::Check { .. } | Request::Peek { .. } | Request::Together { .. })
    }

    /// Whether the limit and the cost say it all.
    fn is_plain(&self) -> bool {
        match self {
            Request::Check { charge, at_us } => {
                at_us.is_none() && charge.demand().ask.max_wait_us.is_none()
            }
            _ => false,
        }
    }

    fn what(&self) -> u8 {
        match self {
            plain if plain.is_plain() => 0,
            Request::Check { .. } => 1,
            Request::Together { .. } => 2,
            Request::Peek { .. } => 3,
            Request::Refund { .. } => 4,
            Request::Reset { .. } => 5,
            Request::State { .. } => 6,
        }
    }

    /// What kind of place it is that a refund names; of anything else, whether it only watches, and
    /// whether it only looks.
    fn role(&self, charge: &Charge) -> u8 {
        match self {
            Request::Refund { place: Place::Window { .. }, .. } => 0,
            Request::Refund { place: Place::Entry { .. }, .. } => 1,
            Request::Refund { place: Place::Bucket { .. }, .. } => 2,
            // A peek looks whatever its charge says.
            Request::Peek { .. } => u8::from(charge.demand().role == Role::Shadow),
            _ => {
                let Demand { role, intent, .. } = *charge.demand();
                u8::from(role == Role::Shadow) | u8::from(intent == Intent::Look) << 1
            }
        }
    }

    /// The two numbers whose meaning depends on what is asked.
    fn numbers(&self, charge: &Charge) -> (u64, u64) {
        match self {
            Request::Refund { place, .. } => match *place {
                Place::Window { start_us, window_us } => (start_us, window_us),
                Place::Entry { at_us } => (at_us, 0),
                Place::Bucket { charged, over_us } => (charged, over_us),
            },
            _ => (charge.demand().ask.max_wait_us.map_or(NONE, |us| us.min(NONE - 1)), 0),
        }
    }
}

/// A batch as the script's keys and arguments.
#[derive(Debug, Default)]
pub(super) struct Arguments<'a> {
    pub(super) abilities: Abilities,
    keys: Vec<&'a [u8]>,
    interned: Vec<Limit>,
    limits: Vec<u8>,
    requests: Vec<u8>,
}

impl<'a> Arguments<'a> {
    pub(super) fn of(batch: impl IntoIterator<Item = &'a Request>) -> Arguments<'a> {
        let mut arguments = Arguments::default();
        batch.into_iter().for_each(|request| arguments.add(request));
        arguments
    }

    /// For the script that carries over what was spent under another limit.
    pub(super) fn carrying_over(self) -> Arguments<'a> {
        Arguments { abilities: Abilities::ALL, ..self }
    }

    fn add(&mut self, request: &'a Request) {
        let charges = request.charges();
        self.requests.push(request.what());
        if !request.is_plain() {
            self.abilities.add_beyond_checks();
            // OK because a request has at most MAX_CHARGES.
            self.requests.extend_from_slice(&(charges.len() as u16).to_le_bytes());
        }
        for charge in charges {
            self.add_charge(request, charge);
        }
    }

    fn add_charge(&mut self, request: &Request, charge: &'a Charge) {
        let limit = self.intern(charge.limit());
        self.requests.extend_from_slice(&limit.to_le_bytes());
        put_number(&mut self.requests, charge.demand().ask.cost.units());
        if !request.is_plain() {
            self.requests.push(request.role(charge));
            let (a, b) = request.numbers(charge);
            for number in [request.at_us().unwrap_or(NONE), a, b] {
                put_number(&mut self.requests, number);
            }
        }
        self.keys.push(&charge.key);
    }

    /// The number of a limit, from 1.
    fn intern(&mut self, limit: &Limit) -> u16 {
        let known = self.interned.iter().position(|other| other == limit);
        let at = known.unwrap_or_else(|| {
            self.interned.push(*limit);
            self.abilities.add(limit);
            limit::put(&mut self.limits, limit);
            self.interned.len() - 1
        });
        // OK because there are no more limits than charges.
        at as u16 + 1
    }

    /// The command that runs the script, which `script` names.
    pub(super) fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(*key);
        }
        command.arg(&self.limits[..]).arg(&self.requests[..]);
        command
    }
}

/// The most limits of one check. The server serves nothing else meanwhile: 2 ms at most, as the tests in `costs.rs`
/// assert.
pub(crate) const MAX_CHARGES: usize = 256;

/// The script's reply: answers one after the other, and the texts they refer to.
pub(super) struct Answers {
    packed: Vec<u8>,
    read: usize,
    texts: Vec<Vec<u8>>,
    server_us: u64,
}

/// The result of a call for one request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are replies")]
pub(super) enum RequestEnd {
    Reply(Result<Reply, StoreError>),
    /// Not decided: a state was reached under another limit, and the script does not carry over.
    PutOff,
    /// Not decided: the requests before it took all the work that one call does on long logs.
    Later,
}

/// One charge's answer, as it came.
struct Raw {
    status: u8,
    numbers: [u64; 3],
    delay_us: u64,
    first_back_us: u64,
    fits: u64,
}

const DENIED: u8 = 0;
const DENIED_FOR_EVER: u8 = 1;
const ALLOWED: u8 = 2;
const ALLOWED_LATER: u8 = 3;
const DONE: u8 = 4;
const FAILED: u8 = 5;
const PUT_OFF: u8 = 6;
const LATER: u8 = 7;
/// Is added to a status that `first_back_us` comes after.
const AND_FIRST_BACK: u8 = 8;

impl Answers {
    pub(super) fn of(value: Value) -> Result<Answers, StoreError> {
        let text = |part| match part {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(unexpected()),
        };
        let (packed, texts) = match value {
            Value::Array(parts) => {
                let mut texts = parts.into_iter().map(text);
                let packed = texts.next().ok_or_else(unexpected)??;
                (packed, texts.collect::<Result<_, _>>()?)
            }
            packed => (text(packed)?, Vec::new()),
        };
        let mut answers = Answers { packed, read: 0, texts, server_us: 0 };
        answers.server_us = answers.number()?;
        Ok(answers)
    }

    /// Returns the answer to the next request.
    pub(super) fn next(&mut self, request: &Request) -> RequestEnd {
        match self.raw_of(request) {
            Ok(raw) if raw.iter().any(|raw| raw.status == PUT_OFF) => RequestEnd::PutOff,
            Ok(raw) if raw.iter().any(|raw| raw.status == LATER) => RequestEnd::Later,
            Ok(raw) => RequestEnd::Reply(self.reply(request, &raw)),
            Err(error) => RequestEnd::Reply(Err(error)),
        }
    }

    fn raw_of(&mut self, request: &Request) -> Result<Vec<Raw>, StoreError> {
        // All of them, whatever is wrong with one: the next request's come after.
        let is_among_others = matches!(request, Request::Together { .. });
        request.charges().iter().map(|_| self.raw(is_among_others)).collect()
    }

    fn reply(&self, request: &Request, raw: &[Raw]) -> Result<Reply, StoreError> {
        if let Some(failed) = raw.iter().find(|raw| raw.status == FAILED) {
            return Err(self.failure(failed));
        }
        let now_us = request.at_us().unwrap_or(self.server_us);
        let checked = |charge, raw| checked(charge, raw, now_us).ok_or_else(unexpected);
        match (request, raw) {
            (Request::Check { charge, .. }, [raw]) => Ok(Reply::Checked(checked(charge, raw)?)),
            (Request::Peek { charge, .. }, [raw]) => {
                Ok(Reply::Checked(checked(charge, raw)?.without_receipt()))
            }
            (Request::Together { charges, .. }, raw) => {
                together(charges, raw, now_us).ok_or_else(unexpected)
            }
            (_, [raw]) if raw.status != DONE => Err(unexpected()),
            (Request::Refund { .. }, [raw]) => Ok(Reply::Refunded(raw.numbers[0])),
            (Request::Reset { .. }, _) => Ok(Reply::Reset),
            (Request::State { charge, .. }, [raw]) => {
                let texts = self.state_texts(raw).ok_or_else(unexpected)?;
                let (limit, state) =
                    state(charge.limit(), texts, now_us).ok_or_else(|| corrupt(&charge.key))?;
                Ok(Reply::State { limit, state: Box::new(state), now_us })
            }
            _ => Err(unexpected()),
        }
    }

    fn raw(&mut self, is_among_others: bool) -> Result<Raw, StoreError> {
        let status = *self.packed.get(self.read).ok_or_else(unexpected)?;
        self.read += 1;
        let has_first_back = (AND_FIRST_BACK..=AND_FIRST_BACK + ALLOWED_LATER).contains(&status);
        let status = if has_first_back { status - AND_FIRST_BACK } else { status };
        let numbers = [self.number()?, self.number()?, self.number()?];
        let delay_us = if status == ALLOWED_LATER { self.number()? } else { 0 };
        let first_back_us = if has_first_back { self.number()? } else { 0 };
        let fits = if is_among_others { self.number()? } else { 0 };
        Ok(Raw { status, numbers, delay_us, first_back_us, fits })
    }

    fn number(&mut self) -> Result<u64, StoreError> {
        let bytes = self.packed.get(self.read..).ok_or_else(unexpected)?;
        let (number, _) = take_number(bytes).ok_or_else(unexpected)?;
        self.read += 7;
        Ok(number)
    }

    fn text(&self, raw: &Raw) -> Option<&[u8]> {
        let at = usize::try_from(raw.numbers[0]).ok()?.checked_sub(1)?;
        self.texts.get(at).map(Vec::as_slice)
    }

    /// Returns the text of a state, and the texts after it, which have the slots of a log.
    fn state_texts(&self, raw: &Raw) -> Option<(&[u8], &[Vec<u8>])> {
        let text = self.text(raw)?;
        // OK because there is a text of that number, counted from 1.
        let first = raw.numbers[0] as usize;
        let slots = first.checked_add(usize::try_from(raw.numbers[1]).ok()?)?;
        Some((text, self.texts.get(first..slots)?))
    }

    fn failure(&self, raw: &Raw) -> StoreError {
        let text = String::from_utf8_lossy(self.text(raw).unwrap_or_default());
        let (problem, key) = text.rsplit_once('\n').unwrap_or((&text, ""));
        if problem == "CORRUPT" || problem.contains("WRONGTYPE") {
            return corrupt(key.as_bytes());
        }
        StoreError::refused(problem)
    }
}

fn unexpected() -> StoreError {
    StoreError::refused("a reply that is none of ours: is something else answering?")
}

fn corrupt(key: &[u8]) -> StoreError {
    StoreError::Corrupt { key: String::from_utf8_lossy(key).into_owned() }
}

fn checked(charge: &Charge, raw: &Raw, now_us: u64) -> Option<Decision> {
    let [remaining, reset_after_us, last] = raw.numbers;
    let verdict = match raw.status {
        ALLOWED | ALLOWED_LATER => Verdict::Allowed { delay_us: raw.delay_us },
        DENIED => Verdict::Denied { retry: Retry::AfterUs(last) },
        DENIED_FOR_EVER => Verdict::Denied { retry: Retry::Never },
        _ => return None,
    };
    let first_back_us = raw.first_back_us;
    let limit = charge.limit().size();
    let decision = core::Decision { verdict, limit, remaining, reset_after_us, first_back_us };
    let place = match charge.limit() {
        Limit::FixedWindow(limit) => Place::Window { start_us: last, window_us: limit.window_us() },
        Limit::SlidingWindowCounter(limit) => {
            Place::Window { start_us: last, window_us: limit.window_us() }
        }
        Limit::SlidingWindowLog(_) => Place::Entry { at_us: last },
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            Place::Bucket { charged: last, over_us: now_us.saturating_add(reset_after_us) }
        }
    };
    let is_charged = decision.is_allowed() && charge.is_charged();
    let receipt = is_charged.then(|| Receipt::of(charge.demand().ask.cost, place));
    Some(Decision::of_key(Checked { decision, receipt }, charge.of.fingerprint()))
}

/// Returns the answer of all charges together, and each one's own.
fn together(charges: &[Charge], raw: &[Raw], now_us: u64) -> Option<Reply> {
    let mut answers: Vec<Decision> = charges
        .iter()
        .zip(raw)
        .map(|(charge, raw)| checked(charge, raw, now_us))
        .collect::<Option<_>>()?;
    let part = |(charge, (raw, answer)): (&Charge, (&Raw, &Decision))| {
        let part = charge.part(answer.decided());
        match charge.demand().ask.max_wait_us {
            Some(_) => Part { requests_remaining: raw.fits, ..part },
            None => part,
        }
    };
    let together = Together::of(charges.iter().zip(raw.iter().zip(&answers)).map(part));
    if !together.verdict.is_allowed() {
        answers.iter_mut().for_each(|answer| *answer = answer.without_receipt());
    }
    Some(Reply::Together(JointDecision::new(together, answers)))
}

/// A number and what comes after it.
fn take_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<7>()?;
    let mut wide = [0; 8];
    wide[..7].copy_from_slice(number);
    Some((u64::from_le_bytes(wide), rest))
}

fn take_numbers<const COUNT: usize>(mut bytes: &[u8]) -> Option<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        (*number, bytes) = take_number(bytes)?;
    }
    Some(numbers)
}

/// The state of a key, and the limit that decides on it where this one was asked for. The server sent
/// the bytes, its tag first; none if it has none.
fn state(
    asked: &Limit,
    (bytes, slots): (&[u8], &[Vec<u8>]),
    now_us: u64,
) -> Option<(Limit, State)> {
    if bytes.is_empty() {
        return Some((*asked, asked.fresh()));
    }
    let (under, bytes) = limit::of_tag(bytes)?;
    let state = numbers_of_state(&under, bytes, slots)?;
    match under == *asked {
        true => Some((under, state)),
        false => Some(asked.carry_over(&under, state, now_us, Cost::ONE).decides(asked)),
    }
}

fn numbers_of_state(limit: &Limit, bytes: &[u8], slots: &[Vec<u8>]) -> Option<State> {
    Some(match limit {
        Limit::FixedWindow(_) => {
            let [start_us, spent] = take_numbers(bytes)?;
            State::Window(Window { start_us, spent })
        }
        Limit::SlidingWindowCounter(_) => {
            let [start_us, current, previous] = take_numbers(bytes)?;
            State::WindowPair(WindowPair { start_us, current, previous })
        }
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            let [units, fraction, as_of_us, charged] = take_numbers(bytes)?;
            State::Fill(Fill { level: Level { units, fraction }, as_of_us, charged })
        }
        Limit::SlidingWindowLog(_) => State::Log(log::read(bytes, slots)?),
    })
}
