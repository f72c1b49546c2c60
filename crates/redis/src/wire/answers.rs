//! The script's reply as the replies to its requests.

use redis::Value;
use tollgate_core::{
    ChargePlace, ChargeReceipt, CheckResult, CombinedDecision, Cost, DecisionPart, EndedHold,
    ExtendAnswer, Extension, HoldReference, LeaseAnswer, LeaseRequest, LeaseState, Limit,
    LimitDecision, Retry, SettleAnswer, Settlement, Verdict,
};
use tollgate_limiter::{Decision, JointDecision};

use super::number::take_number;
use super::state::{StateTexts, read_state};
use super::{Reply, ServerCharge, StoreRequest};
use crate::fault::Fault;

/// The script's reply: the answers to all charges one after the other, and the texts that they refer to.
pub(crate) struct ScriptReply {
    packed: Vec<u8>,
    read: usize,
    texts: Vec<Vec<u8>>,
    server_us: u64,
}

/// The result of a call for one request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are replies")]
pub(crate) enum RequestOutcome {
    Reply(Result<Reply, Fault>),
    /// Not decided: a state was reached under another limit, and the script does not carry over.
    PutOff,
    /// Not decided: the tag of a key's state is marked, as with holds, and the script does not read keys with holds.
    PutOffForHolds,
    /// Not decided: the requests before it took all the work that one call does on long logs and holds.
    Later,
}

/// The answer to one charge, as the script sends it.
struct RawAnswer {
    status: u8,
    numbers: [u64; 3],
    delay_us: u64,
    first_back_us: u64,
    /// Set if the key has holds.
    beside_holds: Option<HeldKeyNumbers>,
    /// The further numbers of an answer to a part that settles or extends, or for a lease.
    more: [u64; 7],
    /// For a check of several limits, how many such requests fit; for a settlement or an extension, the size of the limit.
    last: u64,
}

/// The fields that follow the answer to a charge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerForm {
    Plain,
    /// One more number.
    Joint,
    /// The lease, and one more number.
    Lease,
}

/// The numbers that follow the answer of a key with holds, because they cannot be computed from the other numbers.
struct HeldKeyNumbers {
    /// The kind of the charge's place, and its second number.
    place_kind: u64,
    place_too: u64,
    /// The size of the limit that decided.
    size: u64,
}

const DENIED: u8 = 0;
const DENIED_FOR_EVER: u8 = 1;
const ALLOWED: u8 = 2;
const ALLOWED_LATER: u8 = 3;
const DONE: u8 = 4;
const FAILED: u8 = 5;
const PUT_OFF: u8 = 6;
const LATER: u8 = 7;
const SETTLED: u8 = 12;
const EXTENDED: u8 = 13;
const NOT_EXTENDED: u8 = 14;
const HOLD_EXPIRED: u8 = 15;
const HOLD_UNKNOWN: u8 = 16;
/// Added to a status if `first_back_us` follows.
const AND_FIRST_BACK: u8 = 8;
/// Added to the status of a decision on a key with holds.
const AND_HOLDS: u8 = 32;

/// The waits that mean "never", and "only other parts were refused, or their holds have ended".
const WAIT_NEVER: u64 = 1 << 53;
const WAIT_OF_OTHERS: u64 = 1 << 54;

impl RawAnswer {
    fn is_put_off_for_holds(&self) -> bool {
        self.status == PUT_OFF && self.numbers[0] == 1
    }
}

impl ScriptReply {
    pub(crate) fn of(value: Value) -> Result<ScriptReply, Fault> {
        let text = |part| match part {
            Value::BulkString(bytes) => Ok(bytes),
            _ => Err(Fault::unexpected_reply()),
        };
        let (packed, texts) = match value {
            Value::Array(parts) => {
                let mut texts = parts.into_iter().map(text);
                let packed = texts.next().ok_or_else(Fault::unexpected_reply)??;
                (packed, texts.collect::<Result<_, _>>()?)
            }
            packed => (text(packed)?, Vec::new()),
        };
        let mut answers = ScriptReply { packed, read: 0, texts, server_us: 0 };
        answers.server_us = answers.number()?;
        Ok(answers)
    }

    /// Returns the answer to the next request.
    pub(crate) fn next(&mut self, request: &StoreRequest) -> RequestOutcome {
        match self.raw_of(request) {
            Ok(raw) if raw.iter().any(RawAnswer::is_put_off_for_holds) => {
                RequestOutcome::PutOffForHolds
            }
            Ok(raw) if raw.iter().any(|raw| raw.status == PUT_OFF) => RequestOutcome::PutOff,
            Ok(raw) if raw.iter().any(|raw| raw.status == LATER) => RequestOutcome::Later,
            Ok(raw) => RequestOutcome::Reply(self.reply(request, &raw)),
            Err(error) => RequestOutcome::Reply(Err(error)),
        }
    }

    fn raw_of(&mut self, request: &StoreRequest) -> Result<Vec<RawAnswer>, Fault> {
        // Reads the answers to all charges, even if one failed, because the answers to the next request follow them.
        let form = match request {
            StoreRequest::Lease { .. } => AnswerForm::Lease,
            StoreRequest::CheckAll { .. } => AnswerForm::Joint,
            _ if request.is_on_open_holds() => AnswerForm::Joint,
            _ => AnswerForm::Plain,
        };
        request.charges().iter().map(|_| self.raw(form)).collect()
    }

    fn reply(&self, request: &StoreRequest, raw: &[RawAnswer]) -> Result<Reply, Fault> {
        if let Some(failed) = raw.iter().find(|raw| raw.status == FAILED) {
            return Err(self.failure(failed));
        }
        let now_us = request.at_us().unwrap_or(self.server_us);
        let checked =
            |charge, raw| checked(charge, raw, now_us).ok_or_else(Fault::unexpected_reply);
        match (request, raw) {
            (StoreRequest::Check { charge, .. }, [raw]) => {
                Ok(Reply::Decision(checked(charge, raw)?))
            }
            (StoreRequest::Peek { charge, .. }, [raw]) => {
                Ok(Reply::Decision(checked(charge, raw)?.without_receipt()))
            }
            (StoreRequest::Settle { .. }, raw) => {
                let answers = raw.iter().map(settle_answer).collect::<Option<_>>();
                answers.map(Reply::Settled).ok_or_else(Fault::unexpected_reply)
            }
            (StoreRequest::Extend { .. } | StoreRequest::TakeBack { .. }, raw) => {
                let answers = raw.iter().map(extend_answer).collect::<Option<_>>();
                answers.map(Reply::Extended).ok_or_else(Fault::unexpected_reply)
            }
            (StoreRequest::CheckAll { charges, .. }, raw) => {
                joint_reply(charges, raw, now_us).ok_or_else(Fault::unexpected_reply)
            }
            (StoreRequest::Lease { charge, lease, .. }, [raw]) => {
                let answer = lease_answer(charge, lease, raw, now_us);
                let answer = answer.ok_or_else(Fault::unexpected_reply)?;
                Ok(Reply::Leased(Box::new(answer)))
            }
            (_, [raw]) if raw.status != DONE => Err(Fault::unexpected_reply()),
            (StoreRequest::Refund { .. }, [raw]) => Ok(Reply::Refunded(raw.numbers[0])),
            (StoreRequest::Reset { .. }, _) => Ok(Reply::Reset),
            (StoreRequest::State { charge, .. }, [raw]) => {
                let texts = self.state_texts(raw).ok_or_else(Fault::unexpected_reply)?;
                let (limit, state, holds) = read_state(charge.limit(), texts, now_us)
                    .ok_or_else(|| Fault::corrupt(&charge.key))?;
                Ok(Reply::State { limit, state: Box::new(state), holds, now_us })
            }
            _ => Err(Fault::unexpected_reply()),
        }
    }

    fn raw(&mut self, form: AnswerForm) -> Result<RawAnswer, Fault> {
        let status = self.byte()?;
        let has_holds = (AND_HOLDS..=AND_HOLDS + AND_FIRST_BACK + ALLOWED_LATER).contains(&status);
        let status = if has_holds { status - AND_HOLDS } else { status };
        let has_first_back = (AND_FIRST_BACK..=AND_FIRST_BACK + ALLOWED_LATER).contains(&status);
        let status = if has_first_back { status - AND_FIRST_BACK } else { status };
        let numbers = [self.number()?, self.number()?, self.number()?];
        let delay_us = if status == ALLOWED_LATER { self.number()? } else { 0 };
        let first_back_us = if has_first_back { self.number()? } else { 0 };
        let beside_holds = if has_holds {
            let place_kind = self.byte()?.into();
            Some(HeldKeyNumbers { place_kind, place_too: self.number()?, size: self.number()? })
        } else {
            None
        };
        let mut more = [0; 7];
        match status {
            SETTLED => {
                for (at, number) in more.iter_mut().enumerate() {
                    *number = if at == 4 { self.byte()?.into() } else { self.number()? };
                }
            }
            EXTENDED => more[..2].copy_from_slice(&[self.number()?, self.number()?]),
            NOT_EXTENDED => more[0] = self.number()?,
            DENIED..=ALLOWED_LATER if form == AnswerForm::Lease => {
                more[0] = self.byte()?.into();
                for number in &mut more[1..5] {
                    *number = self.number()?;
                }
            }
            _ => {}
        }
        let last = if form == AnswerForm::Plain { 0 } else { self.number()? };
        Ok(RawAnswer { status, numbers, delay_us, first_back_us, beside_holds, more, last })
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        let byte = *self.packed.get(self.read).ok_or_else(Fault::unexpected_reply)?;
        self.read += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, Fault> {
        let bytes = self.packed.get(self.read..).ok_or_else(Fault::unexpected_reply)?;
        let (number, _) = take_number(bytes).ok_or_else(Fault::unexpected_reply)?;
        self.read += 7;
        Ok(number)
    }

    fn text(&self, raw: &RawAnswer) -> Option<&[u8]> {
        let at = usize::try_from(raw.numbers[0]).ok()?.checked_sub(1)?;
        self.texts.get(at).map(Vec::as_slice)
    }

    /// Returns the texts of a state: the state, the slots of a log after it, and the holds.
    fn state_texts(&self, raw: &RawAnswer) -> Option<StateTexts<'_>> {
        let state = self.text(raw)?;
        // OK because there is a text of that number, counted from 1.
        let first = raw.numbers[0] as usize;
        let after = first.checked_add(usize::try_from(raw.numbers[1]).ok()?)?;
        let slots = self.texts.get(first..after)?;
        let holds = match raw.numbers[2] {
            0 => &[],
            _ => self.texts.get(after)?.as_slice(),
        };
        Some(StateTexts { state, slots, holds })
    }

    fn failure(&self, raw: &RawAnswer) -> Fault {
        Fault::from_script(self.text(raw).unwrap_or_default())
    }
}

fn checked(charge: &ServerCharge, raw: &RawAnswer, now_us: u64) -> Option<Decision> {
    let cost = charge.demand().request.cost;
    let is_charged = charge.is_charged() && charge.hold_terms().is_none();
    let checked = check_result(charge.limit(), is_charged.then_some(cost), raw, now_us)?;
    let decision = Decision::of_key(checked, charge.original.fingerprint());
    Some(if raw.beside_holds.is_some() { decision.beside_holds() } else { decision })
}

/// Returns the result of a check. `charged` is the cost of a check that is charged if it is allowed.
fn check_result(
    of: &Limit,
    charged: Option<Cost>,
    raw: &RawAnswer,
    now_us: u64,
) -> Option<CheckResult> {
    let [remaining, reset_after_us, last] = raw.numbers;
    let verdict = match raw.status {
        ALLOWED | ALLOWED_LATER => Verdict::Allowed { delay_us: raw.delay_us },
        DENIED => Verdict::Denied { retry: Retry::AfterUs(last) },
        DENIED_FOR_EVER => Verdict::Denied { retry: Retry::Never },
        _ => return None,
    };
    let first_back_us = raw.first_back_us;
    let limit = raw.beside_holds.as_ref().map_or(of.size(), |beside| beside.size);
    let decision = LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us };
    let receipt = match (charged.filter(|_| decision.is_allowed()), &raw.beside_holds) {
        (None, _) => None,
        (Some(cost), Some(HeldKeyNumbers { place_kind, place_too, .. })) => {
            Some(ChargeReceipt::of(cost, place(*place_kind, last, *place_too)?))
        }
        (Some(cost), None) => {
            Some(ChargeReceipt::of(cost, place_alone(of, last, now_us, reset_after_us)))
        }
    };
    Some(CheckResult { decision, receipt })
}

fn lease_answer(
    charge: &ServerCharge,
    request: &LeaseRequest,
    raw: &RawAnswer,
    now_us: u64,
) -> Option<LeaseAnswer> {
    let CheckResult { decision, receipt } =
        check_result(charge.limit(), request.need, raw, now_us)?;
    let [state, unused, expires_us, lasts_us, holders, ..] = raw.more;
    let lease = match state {
        0 => {
            let holders = u32::try_from(holders).ok()?;
            LeaseState::Open { unused, expires_us, lasts_us, holders }
        }
        1 => LeaseState::None,
        2 => LeaseState::Ended(EndedHold::Expired),
        3 => LeaseState::Ended(EndedHold::Unknown),
        _ => return None,
    };
    Some(LeaseAnswer { decision, receipt, lease })
}

/// Returns the place of a charge to a key without holds.
fn place_alone(limit: &Limit, number: u64, now_us: u64, reset_after_us: u64) -> ChargePlace {
    match limit {
        Limit::FixedWindow(limit) => {
            ChargePlace::Window { start_us: number, window_us: limit.window_us() }
        }
        Limit::SlidingWindowCounter(limit) => {
            ChargePlace::Window { start_us: number, window_us: limit.window_us() }
        }
        Limit::SlidingWindowLog(_) => ChargePlace::Entry { at_us: number },
        // A check of a concurrency limit is denied, so it has no receipt.
        Limit::Concurrency(_) => ChargePlace::Entry { at_us: 0 },
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            ChargePlace::Bucket { charged: number, over_us: now_us.saturating_add(reset_after_us) }
        }
    }
}

/// Returns a place from its kind and its numbers.
fn place(kind: u64, number: u64, number_too: u64) -> Option<ChargePlace> {
    match kind {
        0 => Some(ChargePlace::Window { start_us: number, window_us: number_too }),
        1 => Some(ChargePlace::Entry { at_us: number }),
        2 => Some(ChargePlace::Bucket { charged: number, over_us: number_too }),
        _ => None,
    }
}

/// Returns the hold of an admitted reservation. Its answer has the expiry instead of a place.
fn hold(charge: &ServerCharge, raw: &RawAnswer) -> Option<HoldReference> {
    let terms = charge.hold_terms()?;
    let expires_us = raw.numbers[2];
    let is_held = raw.status == ALLOWED && expires_us > 0;
    is_held.then_some(HoldReference { id: terms.id, expires_us })
}

fn settle_answer(raw: &RawAnswer) -> Option<SettleAnswer> {
    let [charged_units, excess_units, cut_units, freed_units, kind, number, number_too] = raw.more;
    let (verdict, settlement) = match raw.status {
        SETTLED => {
            let receipt = match Cost::new(charged_units) {
                Ok(cost) => Some(ChargeReceipt::of(cost, place(kind, number, number_too)?)),
                Err(_) => None,
            };
            let settlement =
                Settlement::Done { charged_units, excess_units, cut_units, freed_units, receipt };
            (Verdict::Allowed { delay_us: 0 }, settlement)
        }
        _ => (Verdict::Denied { retry: Retry::Never }, Settlement::Ended(ended(raw)?)),
    };
    Some(SettleAnswer { decision: part_decision(raw, verdict), settlement })
}

fn extend_answer(raw: &RawAnswer) -> Option<ExtendAnswer> {
    let allowed = Verdict::Allowed { delay_us: 0 };
    let (verdict, extension) = match (raw.status, raw.more[0]) {
        (EXTENDED, expires_us) => {
            (allowed, Extension::Granted { expires_us, held_units: raw.more[1] })
        }
        (NOT_EXTENDED, WAIT_OF_OTHERS) => {
            return Some(ExtendAnswer::refused_for_another(part_decision(raw, allowed)));
        }
        (NOT_EXTENDED, wait_us) => {
            let retry = if wait_us == WAIT_NEVER { Retry::Never } else { Retry::AfterUs(wait_us) };
            (Verdict::Denied { retry }, Extension::Refused)
        }
        _ => (Verdict::Denied { retry: Retry::Never }, Extension::Ended(ended(raw)?)),
    };
    Some(ExtendAnswer { decision: part_decision(raw, verdict), extension })
}

fn ended(raw: &RawAnswer) -> Option<EndedHold> {
    match raw.status {
        HOLD_EXPIRED => Some(EndedHold::Expired),
        HOLD_UNKNOWN => Some(EndedHold::Unknown),
        _ => None,
    }
}

/// Returns the decision of a part that settles or extends.
fn part_decision(raw: &RawAnswer, verdict: Verdict) -> LimitDecision {
    let [remaining, reset_after_us, first_back_us] = raw.numbers;
    LimitDecision { verdict, limit: raw.last, remaining, reset_after_us, first_back_us }
}

/// Returns the answer to all charges together, and the answer to each charge.
fn joint_reply(charges: &[ServerCharge], raw: &[RawAnswer], now_us: u64) -> Option<Reply> {
    let mut answers: Vec<Decision> = charges
        .iter()
        .zip(raw)
        .map(|(charge, raw)| checked(charge, raw, now_us))
        .collect::<Option<_>>()?;
    let part = |(charge, (raw, answer)): (&ServerCharge, (&RawAnswer, &Decision))| {
        let part = charge.part(answer.decided());
        match charge.demand().request.max_wait_us {
            Some(_) => DecisionPart { requests_remaining: raw.last, ..part },
            None => part,
        }
    };
    let combined = CombinedDecision::of(charges.iter().zip(raw.iter().zip(&answers)).map(part));
    if !combined.verdict.is_allowed() {
        answers.iter_mut().for_each(|answer| *answer = answer.without_receipt());
    }
    let joint = JointDecision::new(combined, answers);
    if charges.iter().all(|charge| charge.hold_terms().is_none()) {
        return Some(Reply::JointDecision(joint));
    }
    let holds = charges.iter().zip(raw).map(|(charge, raw)| hold(charge, raw)).collect();
    Some(Reply::JointDecision(joint.with_holds(holds)))
}
