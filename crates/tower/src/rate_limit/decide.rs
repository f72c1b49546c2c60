//! Decides a request: at once, or by a call to the store.

use std::future::IntoFuture;
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use tollgate_core::MAX_UNITS;
use tollgate_limiter::{Check, Error, Scope};

use super::admission::Admission;
use super::charge::DelayedCharge;
use super::pending::{CheckReply, PendingCheck, StoreQuery};
use super::settings::{CurrentSource, LayerDecision, LayerSettings, LimitSource};
use super::store_answer::StoreAnswer;
use super::waiting::WaitingSlot;
use tollgate_http::{Outcome, QuotaHeaders, Refusal, RefusalReason};
use tollgate_identity::RequestHead;
use tollgate_rules::Snapshot;

/// The first step of a decision: made at once, or pending at the store.
pub(super) enum DecisionProgress {
    Decided(Disposition),
    /// The store decides.
    Pending(Box<PendingCheck>),
}

/// How a request proceeds after the decision.
// Data that few requests need is boxed, so that the type fits into one or two registers.
pub(super) enum Disposition {
    /// The request goes to the service.
    Passes,
    /// The request goes to the service. It has a hold, or its charge may be refunded.
    Admitted(Admission),
    Delayed(Box<DelayedCharge>),
    Refused(Box<Response<Bytes>>),
}

impl DecisionProgress {
    /// The request is not limited.
    const SKIPPED: DecisionProgress = DecisionProgress::Decided(Disposition::Passes);

    fn pending(query: StoreQuery, slot: Option<WaitingSlot>) -> DecisionProgress {
        DecisionProgress::Pending(Box::new(PendingCheck::new(query, slot)))
    }
}

impl LayerSettings {
    /// Decides a request, or sends the check to the store. Writes the headers for the response to `quota_headers`.
    // Here and below, large values are written to their final place: copying a value that was just written stalls.
    #[inline]
    pub(super) fn decide<B>(
        &self,
        request: &Request<B>,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let now = self.now();
        let mut head = RequestHead::unidentified(request, self.identity(&now));
        head.find_sender();
        let mut progress = self.begin(&head, &now, quota_headers);
        if let DecisionProgress::Pending(pending) = &mut progress {
            pending.findings = head.into_findings();
        }
        progress
    }

    /// Decides a request after the store has answered.
    pub(super) fn decide_answered<B>(
        &self,
        request: &Request<B>,
        CheckReply { answer, slot, findings }: CheckReply,
        quota_headers: &mut QuotaHeaders,
    ) -> Disposition {
        let now = self.now();
        let head = RequestHead::with_findings(request, self.identity(&now), findings);
        self.disposition_of(&head, answer, slot, quota_headers)
    }

    fn disposition_of(
        &self,
        head: &RequestHead<'_>,
        answer: StoreAnswer,
        slot: Option<WaitingSlot>,
        quota_headers: &mut QuotaHeaders,
    ) -> Disposition {
        match self.report(head, &self.decided(&answer), quota_headers) {
            Disposition::Passes if self.is_tracked || answer.is_held() || answer.is_delayed() => {
                self.admit(answer, slot)
            }
            disposition => disposition,
        }
    }

    /// Admits a request, at once or after its delay, with the means to refund its charge.
    fn admit(&self, answer: StoreAnswer, slot: Option<WaitingSlot>) -> Disposition {
        let is_delayed = answer.is_delayed();
        match Admission::new(answer, &self.by, &self.holds) {
            Some(admission) if is_delayed => {
                Disposition::Delayed(Box::new(DelayedCharge::new(admission, slot)))
            }
            Some(admission) => Disposition::Admitted(admission),
            None => Disposition::Passes,
        }
    }

    /// Calls the hook with the decision. Then notes the headers of an allowed request, or makes the response to a
    /// refused one.
    #[inline(always)]
    fn report(
        &self,
        head: &RequestHead<'_>,
        decided: &LayerDecision<'_>,
        quota_headers: &mut QuotaHeaders,
    ) -> Disposition {
        if let Some(hook) = &self.on_decision {
            hook(head, decided);
        }
        match decided {
            LayerDecision::Allowed(outcome) => {
                self.note_headers(outcome, quota_headers);
                Disposition::Passes
            }
            LayerDecision::Refused(refusal) => {
                Disposition::Refused(Box::new(self.refuse(head, refusal)))
            }
        }
    }

    fn begin(
        &self,
        head: &RequestHead<'_>,
        now: &CurrentSource<'_>,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        if self.skip.as_ref().is_some_and(|skip| skip(head)) {
            return DecisionProgress::SKIPPED;
        }
        if let Some(refusal) = head.token_refusal() {
            return DecisionProgress::Decided(self.disposition_of(
                head,
                StoreAnswer::TokenRefusal(refusal),
                None,
                quota_headers,
            ));
        }
        let cost = self.cost.as_ref().map(|cost| cost(head).min(MAX_UNITS));
        if cost == Some(0) {
            return DecisionProgress::SKIPPED;
        }
        match now {
            CurrentSource::Limit(scope) => {
                self.check_limit(scope, head, cost.unwrap_or(1), quota_headers)
            }
            CurrentSource::Rules { current, domain } => {
                self.check_rules(current, domain, head, cost, quota_headers)
            }
        }
    }

    #[inline]
    fn check_limit(
        &self,
        scope: &Scope,
        head: &RequestHead<'_>,
        cost: u64,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let key = self.key_of(head);
        let check = scope.check(&key).cost(cost);
        if self.is_tracked || scope.is_shaping() || !scope.is_local() {
            return self.check_slowly(check, head, cost, quota_headers);
        }
        let decision = check.now();
        let decided = match &decision {
            Ok(decision) => layer_decision(Outcome::of_limit(scope, decision, cost)),
            Err(error) => self.undecided(error),
        };
        DecisionProgress::Decided(self.report(head, &decided, quota_headers))
    }

    /// Decides a request that reserves its cost, may be delayed or refunded, or whose store is across the network.
    fn check_slowly(
        &self,
        mut check: Check<'_>,
        head: &RequestHead<'_>,
        cost: u64,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let scope = check.scope();
        if self.reserves {
            return self.reserve_limit(scope, check.key(), head, cost, quota_headers);
        }
        let mut slot = None;
        let is_kept = self.is_tracked || scope.is_shaping();
        let kept = is_kept.then(|| check.key().into());
        if scope.is_shaping() {
            let (max_wait, own) = self.max_delay();
            // The charge of a request that is dropped before the store answers is refunded.
            check = check.max_wait(max_wait).refunded_if_dropped();
            slot = own;
        }
        if scope.is_local() {
            let limit = |decision| StoreAnswer::Limit { decision, hold: None, cost, key: kept };
            let answer = check.now().map_or_else(StoreAnswer::Undecided, limit);
            return DecisionProgress::Decided(self.disposition_of(
                head,
                answer,
                slot,
                quota_headers,
            ));
        }
        let query = StoreQuery::Limit { answer: check.into_future(), cost, key: kept };
        DecisionProgress::pending(query, slot)
    }

    /// Reserves the cost of a request.
    fn reserve_limit(
        &self,
        scope: &Scope,
        key: &[u8],
        head: &RequestHead<'_>,
        cost: u64,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let reservation = scope.reserve(key).cost(cost).hold_for(self.holds.hold_for(scope));
        let key = key.into();
        if !scope.is_local() {
            let query = StoreQuery::Reservation { answer: reservation.into_future(), cost, key };
            return DecisionProgress::pending(query, None);
        }
        let answer = match reservation.now() {
            Ok(reserved) => StoreAnswer::reserved(reserved, cost, key),
            Err(error) => StoreAnswer::Undecided(error),
        };
        DecisionProgress::Decided(self.disposition_of(head, answer, None, quota_headers))
    }

    fn check_rules(
        &self,
        current: &Snapshot<'_>,
        domain: &str,
        head: &RequestHead<'_>,
        cost: Option<u64>,
        quota_headers: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let mut request = current.attributes(head);
        if let Some(key) = self.key.as_ref().and_then(|key| key(head)) {
            request = request.with("key", key);
        }
        if let Some(with) = &self.attributes {
            request = with(head, request);
        }
        let mut check = current.check(domain, &request);
        let mut slot = None;
        if current.is_shaping() {
            let (max_wait, own) = self.max_delay();
            (check, slot) = (check.max_wait(max_wait), own);
        }
        if let Some(cost) = cost {
            check = check.cost(cost);
        }
        if head.is_preflight() {
            check = check.of_preflight();
        }
        let is_local = self.by.limiter().is_local();
        let decided = if current.is_reserving() {
            let mut reservation = check.reserving();
            if let Some(estimate) = &self.estimate {
                reservation = reservation.estimate(estimate(head).clamp(1, MAX_UNITS));
            }
            if let Some(time) = self.holds.hold_for {
                reservation = reservation.hold_for(time);
            }
            if !is_local {
                let query = StoreQuery::RulesReservation(reservation.into_future());
                return DecisionProgress::pending(query, slot);
            }
            reservation.now()
        } else {
            if !is_local {
                return DecisionProgress::pending(StoreQuery::Rules(check.into_future()), slot);
            }
            check.now()
        };
        let answer = decided.map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules);
        DecisionProgress::Decided(self.disposition_of(head, answer, slot, quota_headers))
    }

    /// Returns the longest delay that a request may have, and its waiting slot. Without a free slot the delay is 0.
    fn max_delay(&self) -> (Duration, Option<WaitingSlot>) {
        let slot = self.waiting_slots.join();
        let max_wait = if slot.is_some() { self.max_wait } else { Duration::ZERO };
        (max_wait, slot)
    }

    fn decided<'a>(&'a self, answer: &'a StoreAnswer) -> LayerDecision<'a> {
        let outcome = match (answer, &self.by) {
            (StoreAnswer::Limit { decision, cost, .. }, LimitSource::Limit { scope, .. }) => {
                Outcome::of_limit(scope, decision, *cost)
            }
            (StoreAnswer::Rules(ruling), _) => Outcome::of_rules(ruling),
            (StoreAnswer::Undecided(error), _) => return self.undecided(error),
            (StoreAnswer::TokenRefusal(refusal), _) => {
                return refused(RefusalReason::from(refusal));
            }
            // Not reached: only a check of a limit gets a limit's answer.
            (StoreAnswer::Limit { .. }, LimitSource::Rules { .. }) => {
                return refused(RefusalReason::Undecided(&Error::DifferentLimiters));
            }
        };
        layer_decision(outcome)
    }

    fn undecided<'e>(&self, error: &'e Error) -> LayerDecision<'e> {
        self.log_failure(error);
        refused(RefusalReason::Undecided(error))
    }
}

#[inline]
fn layer_decision(outcome: Outcome<'_>) -> LayerDecision<'_> {
    match outcome.is_allowed() {
        true => LayerDecision::Allowed(outcome),
        false => refused(RefusalReason::Quota(outcome)),
    }
}

fn refused(reason: RefusalReason<'_>) -> LayerDecision<'_> {
    LayerDecision::Refused(Refusal::new(reason))
}
