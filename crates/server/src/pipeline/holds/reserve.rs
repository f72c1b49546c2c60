//! Reservations, by the name of a limit or by rules.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::rules::{HeldRule, ReservationAnswer, RulesHold, RulesReservation, Ruling};
use tollgate::{Answer, Decision, Error, Hold, HoldDecision};

use super::{GrantedHold, HoldProblem};
use crate::pipeline::{DecisionTarget, Pipeline, UnknownTarget, request};
use crate::receipt::{HeldBy, HoldPlace, TokenPart, max_key_bytes};
use crate::ruleset::{CountedExpiry, CountedOperation, NamedLimit};
use crate::trust::Description;

/// How long units are held if neither the request nor the limit says it.
const DEFAULT_HOLD_FOR: Duration = Duration::from_secs(60);

/// A request to set units aside, decoded by a front end.
#[derive(Debug)]
pub(crate) struct ReservationRequest<'a> {
    pub(crate) target: DecisionTarget<'a>,
    /// The units; `None` for 1, or for the units that the rules give.
    pub(crate) cost: Option<u64>,
    /// How long they are held; `None` for the time that the rules or a concurrency limit give, and otherwise for 60 s.
    pub(crate) hold_for: Option<Duration>,
}

/// The answer to a reservation.
#[derive(Debug)]
pub(crate) enum Reserved {
    Limit {
        decision: Decision,
        /// `None` if the reservation was refused.
        granted: Option<GrantedHold>,
    },
    Rules {
        ruling: Ruling,
        /// The receipt of the rules that were charged at once.
        receipt: Option<String>,
        /// `None` if the reservation was refused.
        granted: Option<GrantedHold>,
    },
}

/// A reservation that was sent to the store.
#[derive(Debug)]
pub(crate) enum SentReservation<'a> {
    Limit(SentLimitReservation<'a>),
    Rules(SentRulesReservation),
}

/// A reservation of a named limit that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentLimitReservation<'a> {
    limit: Arc<NamedLimit>,
    key: Cow<'a, str>,
    cost: u64,
    hold_for: Duration,
    answer: Answer<HoldDecision>,
    sent_at: Option<Instant>,
}

/// A reservation by rules that was sent to the store.
#[derive(Debug)]
pub(crate) struct SentRulesReservation {
    pub(in crate::pipeline) answer: ReservationAnswer,
    pub(in crate::pipeline) sent_at: Option<Instant>,
}

/// Leaves the holds open, also of concurrency limits, which would otherwise be released when they are dropped.
pub(in crate::pipeline) fn leave_to_expire(hold: RulesHold) {
    hold.into_joint().into_holds().into_iter().map(Hold::into_reference).for_each(drop);
}

impl Pipeline {
    /// Sends a reservation to the store. [`reserved`](Self::reserved) waits for the answer.
    pub(crate) fn send_reservation<'a>(
        &self,
        request: ReservationRequest<'a>,
    ) -> Result<SentReservation<'a>, HoldProblem<'a>> {
        let ReservationRequest { target, cost, hold_for } = request;
        match target {
            DecisionTarget::Limit { name, key } => {
                let sent = self.send_limit_reservation(name, key, cost.unwrap_or(1), hold_for);
                sent.map(SentReservation::Limit)
            }
            DecisionTarget::Rules { domain, description } => {
                let sent = self.send_rules_reservation(domain, description, cost, hold_for);
                sent.map(SentReservation::Rules).map_err(HoldProblem::UnknownTarget)
            }
        }
    }

    fn send_limit_reservation<'a>(
        &self,
        name: Cow<'a, str>,
        key: Cow<'a, str>,
        cost: u64,
        hold_for: Option<Duration>,
    ) -> Result<SentLimitReservation<'a>, HoldProblem<'a>> {
        let Some(limit) = self.rules.limit(&name) else {
            return Err(HoldProblem::UnknownTarget(UnknownTarget::Limit(name)));
        };
        let most = max_key_bytes(limit.scope.name());
        if key.len() > most {
            return Err(HoldProblem::KeyTooLong { bytes: key.len(), most });
        }
        let of_limit =
            || limit.scope.limit().hold_for().map(|time| Duration::from_micros(time.as_us()));
        let hold_for = hold_for.or_else(of_limit).unwrap_or(DEFAULT_HOLD_FOR);
        let sent_at = self.recorder.metrics.store_call();
        let request = limit.scope.reserve(key.as_bytes()).cost(cost).hold_for(hold_for);
        let answer = request.into_future();
        Ok(SentLimitReservation { limit, key, cost, hold_for, answer, sent_at })
    }

    fn send_rules_reservation<'a>(
        &self,
        domain: Option<Cow<'a, str>>,
        description: Description<'a>,
        cost: Option<u64>,
        hold_for: Option<Duration>,
    ) -> Result<SentRulesReservation, UnknownTarget<'a>> {
        let rules = self.snapshot();
        let domain = request::domain(domain, &rules)?;
        let attributes = description.into_attributes(&rules);
        let mut reservation = rules.reserve(&domain, &attributes);
        if let Some(cost) = cost {
            reservation = reservation.estimate(cost);
        }
        if let Some(hold_for) = hold_for {
            reservation = reservation.hold_for(hold_for);
        }
        Ok(self.send_rules(reservation))
    }

    /// Sends a reservation on a [`snapshot`](Self::snapshot) to the store.
    pub(in crate::pipeline) fn send_rules(
        &self,
        reservation: RulesReservation<'_>,
    ) -> SentRulesReservation {
        let sent_at = self.recorder.metrics.store_call();
        SentRulesReservation { answer: reservation.into_future(), sent_at }
    }

    /// Waits for the answer to a reservation, records it, and makes the token of the hold.
    pub(crate) async fn reserved(
        &self,
        sent: SentReservation<'_>,
    ) -> Result<Reserved, HoldProblem<'static>> {
        match sent {
            SentReservation::Limit(sent) => {
                self.limit_reserved(sent).await.map_err(HoldProblem::Failed)
            }
            SentReservation::Rules(sent) => self.rules_reserved(sent).await,
        }
    }

    async fn limit_reserved(&self, sent: SentLimitReservation<'_>) -> Result<Reserved, Error> {
        let SentLimitReservation { limit, key, cost, hold_for, answer, sent_at } = sent;
        let (key, tally) = (key.as_bytes(), &limit.holds);
        let reserved = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let reserved = reserved.inspect_err(|error| {
            limit.count_failure(error);
            tally.count_error(CountedOperation::Reserve, error);
        })?;
        let decision = reserved.decision().without_receipt();
        self.recorder.record_decision(&limit, key, &decision);
        match decision.is_allowed() {
            true => tally.count_admitted(decision.is_degraded()),
            false => tally.count_denied(),
        }
        let granted = reserved.into_hold().and_then(|hold| {
            let (scope, place) = (limit.scope.name(), self.receipts.place_of(&hold));
            let expiry = CountedExpiry::new(hold.expires_at_us(), hold_for);
            if place != HoldPlace::Nowhere {
                tally.count_held(cost, expiry);
            }
            let (reference, slot_width) = (hold.into_reference(), expiry.width);
            let part = TokenPart { scope, limit: "", key, reference, slot_width, place };
            let token = self.receipts.hold_token(HeldBy::Limit, [part])?;
            Some(GrantedHold { token, expires_after: Some(hold_for) })
        });
        Ok(Reserved::Limit { decision, granted })
    }

    async fn rules_reserved(
        &self,
        SentRulesReservation { answer, sent_at }: SentRulesReservation,
    ) -> Result<Reserved, HoldProblem<'static>> {
        let ruled = answer.await;
        self.recorder.metrics.store_answered(sent_at);
        let mut ruling = ruled.map_err(HoldProblem::Failed)?;
        let token = self.rules_token(&ruling);
        if token.is_none()
            && let Some(hold) = ruling.take_hold()
        {
            // If the release fails, the units are held until they expire. Rules without holds were charged at once.
            let _ = hold.release().await;
            ruling.give_back();
            return Err(HoldProblem::TokenTooLong);
        }
        self.recorder.record_ruling(&ruling);
        self.count_reservation(&ruling);
        let receipt = self.receipts.of_ruling(&ruling);
        let (Some(hold), Some(token)) = (ruling.take_hold(), token) else {
            return Ok(Reserved::Rules { ruling, receipt, granted: None });
        };
        let expires_after = hold.hold_for();
        // From now on, only the token can settle the holds.
        leave_to_expire(hold);
        let granted = Some(GrantedHold { token, expires_after });
        Ok(Reserved::Rules { ruling, receipt, granted })
    }

    /// Returns the token of a reservation that rules have admitted; `None` if it would be too long.
    fn rules_token(&self, ruling: &Ruling) -> Option<String> {
        let hold = ruling.hold()?;
        let parts = hold.rules().map(|held| {
            let mut rules = ruling.rules();
            let own = rules.find(|part| part.name() == held.name());
            TokenPart {
                scope: held.hold().scope().name(),
                limit: own.and_then(|part| part.limit_name()).unwrap_or_default(),
                key: held.hold().key(),
                reference: held.hold().reference(),
                slot_width: counted_expiry(&held).width,
                place: self.receipts.place_of(held.hold()),
            }
        });
        self.receipts.hold_token(HeldBy::Rules, parts)
    }

    /// Counts a reservation for each rule whose units are held, or for the rule that refused it.
    fn count_reservation(&self, ruling: &Ruling) {
        for held in ruling.hold().iter().flat_map(|hold| hold.rules()) {
            if let Some(tally) = self.rules.hold_tally(held.hold().scope().name()) {
                tally.count_admitted(held.hold().is_degraded());
                if self.receipts.place_of(held.hold()) != HoldPlace::Nowhere {
                    tally.count_held(held.units(), counted_expiry(&held));
                }
            }
        }
        let refused_by = ruling.refused_by().and_then(|part| part.scope());
        if let Some(tally) = refused_by.and_then(|scope| self.rules.hold_tally(scope.name())) {
            tally.count_denied();
        }
    }
}

/// Returns the expiry of a rule's hold, as it is counted.
fn counted_expiry(held: &HeldRule<'_>) -> CountedExpiry {
    CountedExpiry::new(held.hold().expires_at_us(), held.hold_for())
}
