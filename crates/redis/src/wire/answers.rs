//! The script's reply as the replies to its requests.

use redis::Value;
use tollgate_core::{
    self as core, ChargePlace, ChargeReceipt, CheckResult, CombinedDecision, DecisionPart, Limit,
    Retry, Verdict,
};
use tollgate_limiter::{Decision, JointDecision};

use super::number::take_number;
use super::state::read_state;
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
    /// Not decided: the requests before it took all the work that one call does on long logs.
    Later,
}

/// The answer to one charge, as the script sends it.
struct RawAnswer {
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
/// Added to a status if `first_back_us` follows.
const AND_FIRST_BACK: u8 = 8;

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
            Ok(raw) if raw.iter().any(|raw| raw.status == PUT_OFF) => RequestOutcome::PutOff,
            Ok(raw) if raw.iter().any(|raw| raw.status == LATER) => RequestOutcome::Later,
            Ok(raw) => RequestOutcome::Reply(self.reply(request, &raw)),
            Err(error) => RequestOutcome::Reply(Err(error)),
        }
    }

    fn raw_of(&mut self, request: &StoreRequest) -> Result<Vec<RawAnswer>, Fault> {
        // Reads the answers to all charges, even if one failed, because the answers to the next request follow them.
        let is_joint = matches!(request, StoreRequest::CheckAll { .. });
        request.charges().iter().map(|_| self.raw(is_joint)).collect()
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
            (StoreRequest::CheckAll { charges, .. }, raw) => {
                joint_reply(charges, raw, now_us).ok_or_else(Fault::unexpected_reply)
            }
            (_, [raw]) if raw.status != DONE => Err(Fault::unexpected_reply()),
            (StoreRequest::Refund { .. }, [raw]) => Ok(Reply::Refunded(raw.numbers[0])),
            (StoreRequest::Reset { .. }, _) => Ok(Reply::Reset),
            (StoreRequest::State { charge, .. }, [raw]) => {
                let texts = self.state_texts(raw).ok_or_else(Fault::unexpected_reply)?;
                let (limit, state) = read_state(charge.limit(), texts, now_us)
                    .ok_or_else(|| Fault::corrupt(&charge.key))?;
                Ok(Reply::State { limit, state: Box::new(state), now_us })
            }
            _ => Err(Fault::unexpected_reply()),
        }
    }

    fn raw(&mut self, is_joint: bool) -> Result<RawAnswer, Fault> {
        let status = *self.packed.get(self.read).ok_or_else(Fault::unexpected_reply)?;
        self.read += 1;
        let has_first_back = (AND_FIRST_BACK..=AND_FIRST_BACK + ALLOWED_LATER).contains(&status);
        let status = if has_first_back { status - AND_FIRST_BACK } else { status };
        let numbers = [self.number()?, self.number()?, self.number()?];
        let delay_us = if status == ALLOWED_LATER { self.number()? } else { 0 };
        let first_back_us = if has_first_back { self.number()? } else { 0 };
        let fits = if is_joint { self.number()? } else { 0 };
        Ok(RawAnswer { status, numbers, delay_us, first_back_us, fits })
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

    /// Returns the text of a state, and the texts after it, which have the slots of a log.
    fn state_texts(&self, raw: &RawAnswer) -> Option<(&[u8], &[Vec<u8>])> {
        let text = self.text(raw)?;
        // OK because there is a text of that number, counted from 1.
        let first = raw.numbers[0] as usize;
        let slots = first.checked_add(usize::try_from(raw.numbers[1]).ok()?)?;
        Some((text, self.texts.get(first..slots)?))
    }

    fn failure(&self, raw: &RawAnswer) -> Fault {
        Fault::from_script(self.text(raw).unwrap_or_default())
    }
}

fn checked(charge: &ServerCharge, raw: &RawAnswer, now_us: u64) -> Option<Decision> {
    let [remaining, reset_after_us, last] = raw.numbers;
    let verdict = match raw.status {
        ALLOWED | ALLOWED_LATER => Verdict::Allowed { delay_us: raw.delay_us },
        DENIED => Verdict::Denied { retry: Retry::AfterUs(last) },
        DENIED_FOR_EVER => Verdict::Denied { retry: Retry::Never },
        _ => return None,
    };
    let first_back_us = raw.first_back_us;
    let limit = charge.limit().size();
    let decision = core::LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us };
    let place = match charge.limit() {
        Limit::FixedWindow(limit) => {
            ChargePlace::Window { start_us: last, window_us: limit.window_us() }
        }
        Limit::SlidingWindowCounter(limit) => {
            ChargePlace::Window { start_us: last, window_us: limit.window_us() }
        }
        Limit::SlidingWindowLog(_) => ChargePlace::Entry { at_us: last },
        // A check of a concurrency limit is denied, so it has no receipt.
        Limit::Concurrency(_) => ChargePlace::Entry { at_us: 0 },
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            ChargePlace::Bucket { charged: last, over_us: now_us.saturating_add(reset_after_us) }
        }
    };
    let is_charged = decision.is_allowed() && charge.is_charged();
    let receipt = is_charged.then(|| ChargeReceipt::of(charge.demand().request.cost, place));
    Some(Decision::of_key(CheckResult { decision, receipt }, charge.original.fingerprint()))
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
            Some(_) => DecisionPart { requests_remaining: raw.fits, ..part },
            None => part,
        }
    };
    let combined = CombinedDecision::of(charges.iter().zip(raw.iter().zip(&answers)).map(part));
    if !combined.verdict.is_allowed() {
        answers.iter_mut().for_each(|answer| *answer = answer.without_receipt());
    }
    Some(Reply::JointDecision(JointDecision::new(combined, answers)))
}
