//! The decision pipeline: every front end decides its requests here, and nowhere else.
//!
//! A request is decided on one snapshot of the rules. Then the decision is recorded: the time that the store took, the
//! counts of each limit, the most refused keys, and traces. At last the pipeline makes the receipt. A front end decodes
//! a request into a [`DecisionRequest`], or into a check on a [`snapshot`](Pipeline::snapshot), and encodes the answer.
//!
//! - `request`: the requests that front ends make
//! - `pending`: answers that the store has not given yet, and complete answers
//! - `holds`: reservations, settlements and extensions

mod holds;
mod pending;
mod request;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use tollgate::rules::{RulesCheck, Ruling, Snapshot};
use tollgate::{Decision, Error};

pub(crate) use holds::{
    Extended, ExtendedPart, ExtensionRequest, GrantedHold, HoldProblem, ReservationRequest,
    Reserved, SentExtension, SentReservation, SentSettlement, Settled, SettledPart,
    SettlementRequest, UsedUnits,
};
use holds::{SentRulesReservation, leave_to_expire};
use pending::PendingLimitAnswer;
pub(crate) use pending::{PendingRuling, PipelineAnswer, ProxiedRuling, SentDecision};
pub(crate) use request::{DecisionRequest, DecisionTarget, Terms, UnknownTarget, domain};

use crate::metrics::Metrics;
use crate::receipt::Receipts;
use crate::refusals::Refusals;
use crate::ruleset::{NamedLimit, RuleSet};
use crate::store::StoreKind;
use crate::traces::{self, Traces};
use crate::trust::Description;

/// Decides requests, and records the decisions.
#[derive(Debug)]
pub(crate) struct Pipeline {
    rules: Arc<RuleSet>,
    store: StoreKind,
    recorder: DecisionRecorder,
    receipts: Arc<Receipts>,
}

/// Records decisions: in the metrics, among the most refused keys, and in traces.
#[derive(Debug)]
pub(crate) struct DecisionRecorder {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) refused: Arc<Refusals>,
    /// `None` unless traces are collected.
    pub(crate) traces: Option<Traces>,
}

/// Why a request could not be decided.
#[derive(Debug)]
pub(crate) enum DecideError<'a> {
    UnknownTarget(UnknownTarget<'a>),
    /// The store failed, or the request is not valid.
    Failed(Error),
}

impl Pipeline {
    pub(crate) fn new(
        rules: Arc<RuleSet>,
        recorder: DecisionRecorder,
        receipts: Arc<Receipts>,
    ) -> Pipeline {
        let store = StoreKind::of(rules.limiter());
        Pipeline { rules, store, recorder, receipts }
    }

    /// Returns the current version of the rules.
    ///
    /// A front end takes one snapshot for each request. A reload during the request then does not change whether the
    /// domain has rules, which attributes the rules read, or which rules decide.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        self.rules.rules().snapshot()
    }

    /// Decides one request.
    pub(crate) async fn decide<'a>(
        &self,
        request: DecisionRequest<'a>,
    ) -> Result<PipelineAnswer, DecideError<'a>> {
        let mut pending = self.send(request).map_err(DecideError::UnknownTarget)?;
        let answer = match self.store {
            StoreKind::Memory => self.answer(&mut pending).await,
            StoreKind::Redis => match self.answer(&mut pending).now_or_never() {
                // Decided in this process: by a lease, or by the deny cache.
                Some(answer) => answer,
                // Boxed, so that the future of a check in memory is not larger by the size of a span.
                None => Box::pin(self.in_store_span(self.answer(&mut pending))).await,
            },
        };
        answer.map_err(DecideError::Failed)
    }

    /// Sends a request to the store. [`answer`](Self::answer) waits for the answer.
    ///
    /// A front end can send several requests before it waits for the first answer, within one
    /// [`in_store_span`](Self::in_store_span).
    pub(crate) fn send<'a>(
        &self,
        request: DecisionRequest<'a>,
    ) -> Result<SentDecision<'a>, UnknownTarget<'a>> {
        let DecisionRequest { target, terms } = request;
        match target {
            DecisionTarget::Limit { name, key } => {
                let Some(limit) = self.rules.limit(&name) else {
                    return Err(UnknownTarget::Limit(name));
                };
                let sent_at = self.recorder.metrics.store_call();
                let mut check = limit.scope.check(key.as_bytes());
                if let Some(cost) = terms.cost {
                    check = check.cost(cost);
                }
                if let Some(max_wait) = terms.max_wait {
                    check = check.max_wait(max_wait);
                }
                let answer = check.into_future();
                Ok(SentDecision::Limit(PendingLimitAnswer { limit, key, answer, sent_at }))
            }
            DecisionTarget::Rules { domain, description } => {
                let rules = self.snapshot();
                let pending = self.send_description(&rules, domain, description, terms);
                pending.map(SentDecision::Rules)
            }
        }
    }

    /// Sends a described request, to be decided on one snapshot of the rules.
    fn send_description<'a>(
        &self,
        rules: &Snapshot<'_>,
        domain: Option<Cow<'a, str>>,
        description: Description<'a>,
        terms: Terms,
    ) -> Result<PendingRuling, UnknownTarget<'a>> {
        let domain = request::domain(domain, rules)?;
        let attributes = description.into_attributes(rules);
        let mut check = rules.check(&domain, &attributes);
        if let Some(cost) = terms.cost {
            check = check.cost(cost);
        }
        if let Some(max_wait) = terms.max_wait {
            check = check.max_wait(max_wait);
        }
        Ok(self.send_check(check))
    }

    /// Waits for the answer to a request, records it, and makes the receipt. Call this once for each request.
    pub(crate) async fn answer(
        &self,
        pending: &mut SentDecision<'_>,
    ) -> Result<PipelineAnswer, Error> {
        match pending {
            SentDecision::Limit(pending) => {
                let decided = (&mut pending.answer).await;
                let is_local = |decision: &Decision| decision.is_cached() || decision.is_leased();
                if !decided.as_ref().is_ok_and(is_local) {
                    self.recorder.metrics.store_answered(pending.sent_at);
                }
                let (limit, key) = (&pending.limit, pending.key.as_bytes());
                let decision = decided.inspect_err(|error| limit.count_failure(error))?;
                self.recorder.record_decision(limit, key, &decision);
                let receipt = self.receipts.of_limit(&limit.scope, key, &decision);
                Ok(PipelineAnswer::Limit { decision, receipt })
            }
            SentDecision::Rules(pending) => {
                let ruling = self.recorder.ruling(pending).await?;
                let receipt = self.receipts.of_ruling(&ruling);
                Ok(PipelineAnswer::Rules { ruling, receipt })
            }
        }
    }

    /// Sends a check on a [`snapshot`](Self::snapshot) to the store. [`ruling`](Self::ruling) waits for the answer.
    pub(crate) fn send_check(&self, check: RulesCheck<'_>) -> PendingRuling {
        let sent_at = self.recorder.metrics.store_call();
        PendingRuling { answer: check.into_future(), sent_at }
    }

    /// Sends the check of a proxy. If a rule that applies has a concurrency limit, which a check cannot spend, sends a
    /// reservation instead: a proxy does not say when its request has ended, so a place is held for the time of the rule.
    pub(crate) fn send_proxied(&self, check: RulesCheck<'_>) -> ProxiedRuling {
        let mut pending = self.send_check(check.clone());
        // The error is known at once, on every store.
        match (&mut pending.answer).now_or_never() {
            None => ProxiedRuling::Check(pending),
            Some(Err(Error::MustReserve { .. })) => {
                ProxiedRuling::Reservation(self.send_rules(check.reserving()))
            }
            Some(ruled) => ProxiedRuling::Ready { ruled, sent_at: pending.sent_at },
        }
    }

    /// Waits for the ruling on a proxy's request, and records it. Makes no receipt, because a proxy cannot keep one.
    pub(crate) async fn ruling(&self, proxied: ProxiedRuling) -> Result<Ruling, Error> {
        match (self.store, &proxied) {
            (StoreKind::Memory, _) | (_, ProxiedRuling::Ready { .. }) => {
                self.recorder.proxied(proxied).await
            }
            // Boxed, so that the future of a check in memory is not larger by the size of a span.
            (StoreKind::Redis, _) => {
                Box::pin(self.in_store_span(self.recorder.proxied(proxied))).await
            }
        }
    }

    /// Waits for the store in a separate span, if the store is across the network and traces are collected.
    pub(crate) async fn in_store_span<T, E>(
        &self,
        answers: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let traces = self.recorder.traces.as_ref().filter(|_| self.store.is_remote());
        traces::in_store_span(traces, answers).await
    }
}

impl DecisionRecorder {
    /// Records the decision of a named limit.
    fn record_decision(&self, limit: &NamedLimit, key: &[u8], decision: &Decision) {
        limit.tally.count(decision);
        self.refused.count(limit.scope.name(), key, decision);
        if self.traces.is_some() {
            traces::record_decision(limit.scope.name(), decision);
        }
    }

    /// Waits for a ruling, and records it.
    async fn ruling(&self, pending: &mut PendingRuling) -> Result<Ruling, Error> {
        let ruled = (&mut pending.answer).await;
        self.record_ruled(ruled, pending.sent_at)
    }

    /// Waits for the ruling on a proxy's request, and records it.
    async fn proxied(&self, proxied: ProxiedRuling) -> Result<Ruling, Error> {
        match proxied {
            ProxiedRuling::Ready { ruled, sent_at } => self.record_ruled(ruled, sent_at),
            ProxiedRuling::Check(mut pending) => self.ruling(&mut pending).await,
            ProxiedRuling::Reservation(SentRulesReservation { answer, sent_at }) => {
                let mut ruling = self.record_ruled(answer.await, sent_at)?;
                if let Some(hold) = ruling.take_hold() {
                    leave_to_expire(hold);
                }
                Ok(ruling)
            }
        }
    }

    fn record_ruled(
        &self,
        ruled: Result<Ruling, Error>,
        sent_at: Option<Instant>,
    ) -> Result<Ruling, Error> {
        let is_leased = |ruling: &Ruling| ruling.is_leased_only();
        if !ruled.as_ref().is_ok_and(is_leased) {
            self.metrics.store_answered(sent_at);
        }
        let ruling = ruled?;
        self.record_ruling(&ruling);
        Ok(ruling)
    }

    /// Records a ruling. The rules count their decisions themselves.
    fn record_ruling(&self, ruling: &Ruling) {
        self.refused.count_ruling(ruling);
        if self.traces.is_some() {
            traces::record_ruling(ruling);
        }
    }
}
