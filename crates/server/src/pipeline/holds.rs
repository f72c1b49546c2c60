//! Reservations, and the operations on their holds.
//!
//! A hold has one part for each limit whose units it holds. Its token names them.
//!
//! - `reserve`: reservations, by the name of a limit or by rules
//! - `target`: the limits and keys that a token names; `used`: what was used of each

mod reserve;
mod target;
mod used;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use tollgate::{
    Answer, EndedHold, Error, Hold, HoldExtension, HoldSettlement, JointExtension, JointHold,
};
use tollgate_core::LimitDecision;

use super::{Pipeline, UnknownTarget};
use crate::receipt::HeldBy;
use crate::ruleset::{CountedExpiry, CountedOperation};
pub(super) use reserve::leave_to_expire;
pub(crate) use reserve::{ReservationRequest, Reserved, SentReservation, SentRulesReservation};
use target::{HoldTarget, TargetPart};
pub(crate) use used::UsedUnits;

/// A request to charge what was used of a hold.
#[derive(Debug)]
pub(crate) struct SettlementRequest<'a> {
    pub(crate) token: Cow<'a, str>,
    pub(crate) used: UsedUnits<'a>,
    /// Whether the units that are not used yet stay held.
    pub(crate) keeps_rest: bool,
}

/// A request to add units to a hold, and to move its expiry.
#[derive(Debug)]
pub(crate) struct ExtensionRequest<'a> {
    pub(crate) token: Cow<'a, str>,
    pub(crate) more: u64,
    pub(crate) hold_for: Duration,
}

/// Why a request about a hold could not be decided.
#[derive(Debug)]
pub(crate) enum HoldProblem<'a> {
    UnknownTarget(UnknownTarget<'a>),
    /// The token of the hold would be too long.
    KeyTooLong {
        bytes: usize,
        most: usize,
    },
    /// The text is not a token that the secret of this server has signed.
    NotAToken,
    /// The hold, or a part of it, is on another server's share of the limit.
    OnOtherServer,
    /// The limit of the hold no longer exists.
    NoLimit,
    /// Several rules make the token of the hold too long. The units are not held.
    TokenTooLong,
    /// A settlement does not say what was used of a limit's hold.
    CostNotGiven,
    /// A settlement does not say what was used of a rule's hold.
    UseNotGiven {
        name: String,
    },
    /// A settlement names a rule whose units are not held.
    NotHeld {
        name: String,
    },
    /// A settlement says what was used of a rule that holds a place, which costs nothing.
    CostOfPlace {
        name: String,
    },
    /// The store failed, or the request is not valid.
    Failed(Error),
}

/// A hold that was reserved or extended.
#[derive(Debug)]
pub(crate) struct GrantedHold {
    pub(crate) token: String,
    /// The time until the first part of the hold expires; `None` if it has no parts.
    pub(crate) expires_after: Option<Duration>,
}

/// The answer to a settlement.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) by: HeldBy,
    /// One for each part of the hold, at least one if it was reserved by a limit.
    pub(crate) parts: Vec<SettledPart>,
    /// The receipt of everything that was charged.
    pub(crate) receipt: Option<String>,
}

/// The settlement of one limit's part of a hold.
#[derive(Debug)]
pub(crate) struct SettledPart {
    /// The name of the limit, or of the rule.
    pub(crate) name: String,
    pub(crate) decision: LimitDecision,
    /// Whether it was admitted without the store, which has no such hold.
    pub(crate) is_degraded: bool,
    pub(crate) charged_units: u64,
    pub(crate) excess_units: u64,
    pub(crate) cut_units: u64,
    /// Why nothing was charged; `None` if the hold was open.
    pub(crate) ended: Option<EndedHold>,
}

/// The answer to an extension.
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) by: HeldBy,
    /// One for each part of the hold, at least one if it was reserved by a limit.
    pub(crate) parts: Vec<ExtendedPart>,
    /// `None` if the extension was refused, or the hold had ended.
    pub(crate) granted: Option<GrantedHold>,
    /// How long a refused extension must wait; `None` if it was granted, or if waiting cannot help.
    pub(crate) retry_after: Option<Duration>,
}

/// The extension of one limit's part of a hold.
#[derive(Debug)]
pub(crate) struct ExtendedPart {
    /// The name of the limit, or of the rule.
    pub(crate) name: String,
    pub(crate) decision: LimitDecision,
    /// Whether it was admitted without the store, which has no such hold.
    pub(crate) is_degraded: bool,
    /// Why the hold was not extended; `None` if it was open.
    pub(crate) ended: Option<EndedHold>,
}

/// A settlement that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentSettlement {
    target: HoldTarget,
    keeps_rest: bool,
    answer: Answer<Vec<HoldSettlement>>,
    sent_at: Option<Instant>,
}

/// An extension that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentExtension {
    target: HoldTarget,
    /// The holds, whose expiries move when the extension is granted.
    holds: JointHold,
    more: u64,
    hold_for: Duration,
    answer: Answer<JointExtension>,
    sent_at: Option<Instant>,
}

impl Pipeline {
    /// Sends a settlement to the store. [`settled`](Self::settled) waits for the answer.
    pub(crate) fn send_settlement(
        &self,
        &SettlementRequest { ref token, ref used, keeps_rest }: &SettlementRequest<'_>,
    ) -> Result<SentSettlement, HoldProblem<'static>> {
        let target = HoldTarget::of(token, &self.receipts, &self.rules)?;
        let mut used = used.of_parts(&target)?.into_iter();
        let mut next = |_: &_| used.next().unwrap_or(0);
        let holds = target.holds()?;
        let sent_at = self.recorder.metrics.store_call();
        let answer =
            if keeps_rest { holds.settle_part(&mut next) } else { holds.settle(&mut next) };
        Ok(SentSettlement { target, keeps_rest, answer, sent_at })
    }

    /// Waits for the answer to a settlement, records it, and makes the receipt of what it charged.
    pub(crate) async fn settled(&self, sent: SentSettlement) -> Result<Settled, Error> {
        let SentSettlement { target, keeps_rest, answer, sent_at } = sent;
        let settled = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let settled =
            settled.inspect_err(|error| target.count_error(CountedOperation::Settle, error))?;
        for (part, settled) in target.held().zip(&settled) {
            part.tally.count_settlement(settled, keeps_rest, part.expiry);
        }
        let charged = target.held().zip(&settled);
        let receipt = self
            .receipts
            .of_settlement(charged.map(|(part, settled)| (&part.scope, &*part.key, settled)));
        let mut settled = settled.into_iter();
        let answers = target.parts.iter().map(|part| match part.is_held() {
            true => Some(SettledPart::of(part, &settled.next()?)),
            false => Some(SettledPart::without_hold(part)),
        });
        // OK because each hold has one answer.
        let parts = answers.collect::<Option<_>>().ok_or(Error::AnswerTaken)?;
        Ok(Settled { by: target.by, parts, receipt })
    }

    /// Sends an extension to the store. [`extended`](Self::extended) waits for the answer.
    pub(crate) fn send_extension(
        &self,
        &ExtensionRequest { ref token, more, hold_for }: &ExtensionRequest<'_>,
    ) -> Result<SentExtension, HoldProblem<'static>> {
        let target = HoldTarget::of(token, &self.receipts, &self.rules)?;
        let holds = target.holds()?;
        let sent_at = self.recorder.metrics.store_call();
        // The places of a concurrency limit are not units of the cost.
        let is_place = |hold: &Hold| target.by == HeldBy::Rules && hold.scope().only_holds();
        let answer = holds.extend(|hold| (if is_place(hold) { 0 } else { more }, hold_for));
        Ok(SentExtension { target, holds, more, hold_for, answer, sent_at })
    }

    /// Waits for the answer to an extension, records it, and makes the new token of the hold.
    pub(crate) async fn extended(&self, sent: SentExtension) -> Result<Extended, Error> {
        let SentExtension { target, holds, more, hold_for, answer, sent_at } = sent;
        let extended = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let extended =
            extended.inspect_err(|error| target.count_error(CountedOperation::Extend, error))?;
        for ((part, extended), hold) in target.held().zip(extended.each()).zip(holds.holds()) {
            let is_place = target.by == HeldBy::Rules && part.scope.only_holds();
            let after = CountedExpiry::new(hold.expires_at_us(), hold_for);
            let more = if is_place { 0 } else { more };
            part.tally.count_extension(extended, more, [part.expiry, after]);
        }
        let mut each = extended.each().iter();
        let answers = target.parts.iter().map(|part| match part.is_held() {
            true => Some(ExtendedPart::of(part, each.next()?)),
            false => Some(ExtendedPart::without_hold(part)),
        });
        // OK because each hold has one answer.
        let parts: Vec<ExtendedPart> = answers.collect::<Option<_>>().ok_or(Error::AnswerTaken)?;
        let mut holds = holds.holds().iter();
        let tokens = target.parts.iter().map(|part| part.extended(&mut holds, hold_for));
        let granted = match extended.is_granted() {
            true => self.receipts.hold_token(target.by, tokens),
            false => None,
        };
        let expires_after = (!target.parts.is_empty()).then_some(hold_for);
        let granted = granted.map(|token| GrantedHold { token, expires_after });
        Ok(Extended { by: target.by, parts, granted, retry_after: extended.retry_after() })
    }
}

impl SettledPart {
    fn of(part: &TargetPart, settled: &HoldSettlement) -> SettledPart {
        SettledPart {
            name: part.rule_name().to_owned(),
            decision: *settled.decided(),
            is_degraded: settled.is_degraded(),
            charged_units: settled.charged_units(),
            excess_units: settled.excess_units(),
            cut_units: settled.cut_units(),
            ended: settled.ended(),
        }
    }

    /// Returns the settlement of a part whose units are not held.
    fn without_hold(part: &TargetPart) -> SettledPart {
        SettledPart {
            name: part.rule_name().to_owned(),
            decision: part.unspent(),
            is_degraded: true,
            charged_units: 0,
            excess_units: 0,
            cut_units: 0,
            ended: None,
        }
    }
}

impl ExtendedPart {
    fn of(part: &TargetPart, extended: &HoldExtension) -> ExtendedPart {
        let (name, decision) = (part.rule_name().to_owned(), *extended.decided());
        ExtendedPart { name, decision, is_degraded: part.is_degraded(), ended: extended.ended() }
    }

    /// Returns the extension of a part whose units are not held.
    fn without_hold(part: &TargetPart) -> ExtendedPart {
        let (name, decision) = (part.rule_name().to_owned(), part.unspent());
        ExtendedPart { name, decision, is_degraded: true, ended: None }
    }
}
