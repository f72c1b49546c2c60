//! Reservations, and the operations on their holds.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::{
    Answer, Decision, EndedHold, Error, Hold, HoldDecision, HoldExtension, HoldReference,
    HoldSettlement, Scope,
};
use tollgate_core::{Cost, LimitDecision, UnitRequest, Verdict};

use super::{DecisionTarget, Pipeline, UnknownTarget};
use crate::receipt::{HoldPart, max_key_bytes};
use crate::ruleset::{HoldOperation, HoldTally, NamedLimit};

/// How long the store has for a settlement or an extension. Longer than the deadline of checks, because a hold whose
/// settlement is lost is charged in full.
const DEADLINE: Duration = Duration::from_secs(1);

/// How long units are held if the request does not say it.
const DEFAULT_HOLD_FOR: Duration = Duration::from_secs(60);

/// A request to set units aside, decoded by a front end.
#[derive(Debug)]
pub(crate) struct ReserveRequest<'a> {
    pub(crate) target: DecisionTarget<'a>,
    /// The units; `None` for 1.
    pub(crate) cost: Option<u64>,
    /// How long they are held; `None` for 60 s.
    pub(crate) hold_for: Option<Duration>,
}

/// A request to charge what was used of a hold.
#[derive(Debug)]
pub(crate) struct SettleRequest<'a> {
    pub(crate) token: Cow<'a, str>,
    /// The units used since the reservation.
    pub(crate) used: u64,
    /// Whether the units that are not used yet stay held.
    pub(crate) keeps_rest: bool,
}

/// A request to add units to a hold, and to move its expiry.
#[derive(Debug)]
pub(crate) struct ExtendRequest<'a> {
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
    /// The limit of the hold no longer exists.
    NoLimit,
    /// Reservations by rules are not built yet.
    NoRules,
    /// The store failed, or the request is not valid.
    Failed(Error),
}

/// The answer to a reservation.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) decision: Decision,
    /// `None` if the reservation was refused.
    pub(crate) granted: Option<GrantedHold>,
}

/// A hold that was reserved or extended.
#[derive(Debug)]
pub(crate) struct GrantedHold {
    pub(crate) token: String,
    /// The time until the hold expires.
    pub(crate) expires_after: Duration,
}

/// The answer to a settlement of one limit's hold.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) decision: LimitDecision,
    /// Whether the hold was admitted without the store, so that there was nothing to settle.
    pub(crate) is_degraded: bool,
    pub(crate) charged_units: u64,
    pub(crate) excess_units: u64,
    pub(crate) cut_units: u64,
    pub(crate) receipt: Option<String>,
    /// Why nothing was charged; `None` if the hold was open.
    pub(crate) ended: Option<EndedHold>,
}

/// The answer to an extension of one limit's hold.
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) decision: LimitDecision,
    pub(crate) is_degraded: bool,
    /// `None` if the extension was refused, or the hold had ended.
    pub(crate) granted: Option<GrantedHold>,
    /// Why the hold was not extended; `None` if it was open.
    pub(crate) ended: Option<EndedHold>,
}

/// A reservation that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentReservation<'a> {
    limit: Arc<NamedLimit>,
    key: Cow<'a, str>,
    cost: u64,
    hold_for: Duration,
    answer: Answer<HoldDecision>,
    sent_at: Option<Instant>,
}

/// A settlement that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentSettlement {
    target: HoldTarget,
    keeps_rest: bool,
    /// `None` for a hold that was admitted without the store.
    answer: Option<Answer<HoldSettlement>>,
    sent_at: Option<Instant>,
}

/// An extension that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentExtension {
    target: HoldTarget,
    /// The hold, whose expiry moves when the extension is granted.
    hold: Hold,
    more: u64,
    hold_for: Duration,
    /// `None` for a hold that was admitted without the store.
    answer: Option<Answer<HoldExtension>>,
    sent_at: Option<Instant>,
}

/// The limit and the key of a hold.
#[derive(Debug)]
struct HoldTarget {
    scope: Scope,
    key: Box<[u8]>,
    reference: HoldReference,
    is_degraded: bool,
    tally: Option<Arc<HoldTally>>,
}

impl Pipeline {
    /// Sends a reservation to the store. [`reserved`](Self::reserved) waits for the answer.
    pub(crate) fn send_reservation<'a>(
        &self,
        request: ReserveRequest<'a>,
    ) -> Result<SentReservation<'a>, HoldProblem<'a>> {
        let ReserveRequest { target, cost, hold_for } = request;
        let DecisionTarget::Limit { name, key } = target else {
            return Err(HoldProblem::NoRules);
        };
        let Some(limit) = self.rules.limit(&name) else {
            return Err(HoldProblem::UnknownTarget(UnknownTarget::Limit(name)));
        };
        let most = max_key_bytes(limit.scope.name());
        if key.len() > most {
            return Err(HoldProblem::KeyTooLong { bytes: key.len(), most });
        }
        let (cost, hold_for) = (cost.unwrap_or(1), hold_for.unwrap_or(DEFAULT_HOLD_FOR));
        let sent_at = self.recorder.metrics.store_call();
        let request = limit.scope.reserve(key.as_bytes()).cost(cost).hold_for(hold_for);
        let answer = request.into_future();
        Ok(SentReservation { limit, key, cost, hold_for, answer, sent_at })
    }

    /// Waits for the answer to a reservation, records it, and makes the token of the hold.
    pub(crate) async fn reserved(&self, sent: SentReservation<'_>) -> Result<Reserved, Error> {
        let SentReservation { limit, key, cost, hold_for, answer, sent_at } = sent;
        let (key, tally) = (key.as_bytes(), &limit.holds);
        let reserved = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let reserved = reserved.inspect_err(|error| {
            if let Error::Store(_) = error {
                limit.tally.count_failure();
            }
            tally.count_error(HoldOperation::Reserve, error);
        })?;
        let decision = reserved.decision().without_receipt();
        self.recorder.record_decision(&limit, key, &decision);
        tally.count_reservation(&decision, cost);
        let granted = reserved.hold().and_then(|hold| {
            let (scope, reference) = (limit.scope.name(), hold.reference());
            let part = HoldPart { scope, key, reference, is_degraded: decision.is_degraded() };
            self.granted(part, hold_for)
        });
        Ok(Reserved { decision, granted })
    }

    /// Sends a settlement to the store. [`settled`](Self::settled) waits for the answer.
    pub(crate) fn send_settlement(
        &self,
        SettleRequest { token, used, keeps_rest }: &SettleRequest<'_>,
    ) -> Result<SentSettlement, HoldProblem<'static>> {
        let target = self.target(token)?;
        let sent_at = self.recorder.metrics.store_call();
        let answer = match target.hold()? {
            None => None,
            Some(hold) if *keeps_rest => Some(hold.settle_part(*used)),
            Some(hold) => Some(hold.settle(*used)),
        };
        Ok(SentSettlement { target, keeps_rest: *keeps_rest, answer, sent_at })
    }

    /// Waits for the answer to a settlement, records it, and makes the receipt of what it charged.
    pub(crate) async fn settled(&self, sent: SentSettlement) -> Result<Settled, Error> {
        let SentSettlement { target, keeps_rest, answer, sent_at } = sent;
        let Some(answer) = answer else {
            return Ok(Settled {
                decision: target.unspent(),
                is_degraded: true,
                charged_units: 0,
                excess_units: 0,
                cut_units: 0,
                receipt: None,
                ended: None,
            });
        };
        let settled = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let settled =
            settled.inspect_err(|error| target.count_error(HoldOperation::Settle, error))?;
        if let Some(tally) = &target.tally {
            tally.count_settlement(&settled, keeps_rest);
        }
        let receipt = self.receipts.of_settlement([(&target.scope, &*target.key, &settled)]);
        Ok(Settled {
            decision: *settled.decided(),
            is_degraded: false,
            charged_units: settled.charged_units(),
            excess_units: settled.excess_units(),
            cut_units: settled.cut_units(),
            receipt,
            ended: settled.ended(),
        })
    }

    /// Sends an extension to the store. [`extended`](Self::extended) waits for the answer.
    pub(crate) fn send_extension(
        &self,
        ExtendRequest { token, more, hold_for }: &ExtendRequest<'_>,
    ) -> Result<SentExtension, HoldProblem<'static>> {
        let target = self.target(token)?;
        let sent_at = self.recorder.metrics.store_call();
        let hold = target.hold_anyway()?;
        let answer = (!target.is_degraded).then(|| hold.extend(*more, *hold_for));
        let (more, hold_for) = (*more, *hold_for);
        Ok(SentExtension { target, hold, more, hold_for, answer, sent_at })
    }

    /// Waits for the answer to an extension, records it, and makes the new token of the hold.
    pub(crate) async fn extended(&self, sent: SentExtension) -> Result<Extended, Error> {
        let SentExtension { target, hold, more, hold_for, answer, sent_at } = sent;
        let granted = |reference| {
            let (scope, key) = (target.scope.name(), &*target.key);
            let is_degraded = target.is_degraded;
            self.granted(HoldPart { scope, key, reference, is_degraded }, hold_for)
        };
        let Some(answer) = answer else {
            let decision = target.unspent();
            let granted = granted(target.reference);
            return Ok(Extended { decision, is_degraded: true, granted, ended: None });
        };
        let extended = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let extended =
            extended.inspect_err(|error| target.count_error(HoldOperation::Extend, error))?;
        if let Some(tally) = &target.tally {
            tally.count_extension(&extended, more);
        }
        Ok(Extended {
            decision: *extended.decided(),
            is_degraded: false,
            granted: if extended.is_granted() { granted(hold.reference()) } else { None },
            ended: extended.ended(),
        })
    }

    fn granted(&self, part: HoldPart<'_>, expires_after: Duration) -> Option<GrantedHold> {
        let token = self.receipts.hold_token([part])?;
        Some(GrantedHold { token, expires_after })
    }

    /// Returns the limit and the key that a token names.
    fn target(&self, token: &str) -> Result<HoldTarget, HoldProblem<'static>> {
        let signed = self.receipts.read_hold(token).ok_or(HoldProblem::NotAToken)?;
        let parts = signed.parts().ok_or(HoldProblem::NotAToken)?;
        let part = parts.first().ok_or(HoldProblem::NotAToken)?;
        let scope = self.rules.rules().scope(part.scope).ok_or(HoldProblem::NoLimit)?;
        Ok(HoldTarget {
            scope: scope.deadline(DEADLINE),
            key: part.key.into(),
            reference: part.reference,
            is_degraded: part.is_degraded,
            tally: self.rules.limit(part.scope).map(|limit| Arc::clone(&limit.holds)),
        })
    }
}

impl HoldTarget {
    /// Returns the hold; `None` if it was admitted without the store.
    fn hold(&self) -> Result<Option<Hold>, HoldProblem<'static>> {
        if self.is_degraded { Ok(None) } else { self.hold_anyway().map(Some) }
    }

    fn hold_anyway(&self) -> Result<Hold, HoldProblem<'static>> {
        self.scope.hold(&*self.key, self.reference).map_err(HoldProblem::Failed)
    }

    /// Returns the decision on a hold that was admitted without the store, as if nothing was spent.
    fn unspent(&self) -> LimitDecision {
        let limit = self.scope.limit();
        let decision = limit.peek(&limit.fresh(), 0, UnitRequest::new(Cost::ONE));
        LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision }
    }

    fn count_error(&self, operation: HoldOperation, error: &Error) {
        if let Some(tally) = &self.tally {
            tally.count_error(operation, error);
        }
    }
}
