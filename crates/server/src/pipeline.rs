//! The decision pipeline: every front end decides its requests here, and in no other way.
//!
//! A request takes one snapshot of the rules, is decided, and is accounted for: the time that the store took, the counts
//! of each limit, the keys that are refused most, and traces. Then it has its receipt. A front end decodes a request
//! into a [`DecisionRequest`], or into a check of a [`snapshot`](Pipeline::snapshot), and encodes the answer.
//!
//! - `request`: what can be asked
//! - `sent`: a request on its way to the store, and its answer

mod request;
mod sent;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;

use tollgate::rules::{RulesCheck, Ruling, Snapshot};
use tollgate::{Decision, Error};

pub(crate) use request::{DecisionRequest, NoDecider, Subject, Terms, domain};
use sent::SentLimit;
pub(crate) use sent::{PipelineAnswer, SentRequest, SentRuling};

use crate::metrics::Metrics;
use crate::receipt::Receipts;
use crate::refused::Refused;
use crate::ruleset::{NamedLimit, RuleSet};
use crate::store::StoreKind;
use crate::traces::{self, Traces};
use crate::trust::Description;

/// Decides requests, and accounts for the decisions.
#[derive(Debug)]
pub(crate) struct Pipeline {
    rules: Arc<RuleSet>,
    store: StoreKind,
    accounts: Accounts,
    receipts: Arc<Receipts>,
}

/// Where decisions are accounted for.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) refused: Arc<Refused>,
    /// `None` unless traces are collected.
    pub(crate) traces: Option<Traces>,
}

/// Why a request has no decision.
#[derive(Debug)]
pub(crate) enum Undecided<'a> {
    NoDecider(NoDecider<'a>),
    /// The store failed, or the request is not valid.
    Failed(Error),
}

impl Pipeline {
    pub(crate) fn new(
        rules: Arc<RuleSet>,
        accounts: Accounts,
        receipts: Arc<Receipts>,
    ) -> Pipeline {
        let store = StoreKind::of(rules.limiter());
        Pipeline { rules, store, accounts, receipts }
    }

    /// Returns the rules as they are now. A front end takes one snapshot for a request: a reload then changes neither
    /// whether the domain has rules, nor which attributes the rules look at, nor which rules decide.
    pub(crate) fn snapshot(&self) -> Snapshot<'_> {
        self.rules.rules().snapshot()
    }

    /// Decides one request.
    pub(crate) async fn decide<'a>(
        &self,
        request: DecisionRequest<'a>,
    ) -> Result<PipelineAnswer, Undecided<'a>> {
        let mut sent = self.send(request).map_err(Undecided::NoDecider)?;
        let answer = match self.store {
            StoreKind::Memory => self.answer(&mut sent).await,
            // On the heap: a request to memory need not carry what a span takes.
            StoreKind::Redis => Box::pin(self.in_store_span(self.answer(&mut sent))).await,
        };
        answer.map_err(Undecided::Failed)
    }

    /// Sends a request to the store, which may take its time: [`answer`](Self::answer) waits for it. A front end can so
    /// have several requests under way, within one [`in_store_span`](Self::in_store_span).
    pub(crate) fn send<'a>(
        &self,
        request: DecisionRequest<'a>,
    ) -> Result<SentRequest<'a>, NoDecider<'a>> {
        let DecisionRequest { subject, terms } = request;
        match subject {
            Subject::Limit { name, key } => {
                let Some(limit) = self.rules.limit(&name) else {
                    return Err(NoDecider::UnknownLimit(name));
                };
                let at = self.accounts.metrics.store_call();
                let mut check = limit.scope.check(key.as_bytes());
                if let Some(cost) = terms.cost {
                    check = check.cost(cost);
                }
                if let Some(max_wait) = terms.max_wait {
                    check = check.max_wait(max_wait);
                }
                let answer = check.into_future();
                Ok(SentRequest::Limit(SentLimit { limit, key, answer, at }))
            }
            Subject::Rules { domain, description } => {
                let now = self.snapshot();
                let sent = self.send_description(&now, domain, description, terms);
                sent.map(SentRequest::Rules)
            }
        }
    }

    /// Sends a described request to the rules of one snapshot.
    fn send_description<'a>(
        &self,
        now: &Snapshot<'_>,
        domain: Option<Cow<'a, str>>,
        description: Description<'a>,
        terms: Terms,
    ) -> Result<SentRuling, NoDecider<'a>> {
        let domain = request::domain(domain, now)?;
        let attributes = description.into_attributes(now);
        let mut check = now.check(&domain, &attributes);
        if let Some(cost) = terms.cost {
            check = check.cost(cost);
        }
        if let Some(max_wait) = terms.max_wait {
            check = check.max_wait(max_wait);
        }
        Ok(self.send_check(check))
    }

    /// Waits for the answer of a request, accounts for it, and writes its receipt. The answer comes once.
    pub(crate) async fn answer(&self, sent: &mut SentRequest<'_>) -> Result<PipelineAnswer, Error> {
        match sent {
            SentRequest::Limit(sent) => {
                let decided = (&mut sent.answer).await;
                if !decided.as_ref().is_ok_and(Decision::is_cached) {
                    self.accounts.metrics.store_answered(sent.at);
                }
                let decision = decided.inspect_err(|_| sent.limit.tally.count_failure())?;
                self.accounts.decision(&sent.limit, sent.key.as_bytes(), &decision);
                let receipt =
                    self.receipts.of_limit(&sent.limit.scope, sent.key.as_bytes(), &decision);
                Ok(PipelineAnswer::Limit { decision, receipt })
            }
            SentRequest::Rules(sent) => {
                let ruling = self.accounts.ruling(sent).await?;
                let receipt = self.receipts.of_ruling(&ruling);
                Ok(PipelineAnswer::Rules { ruling, receipt })
            }
        }
    }

    /// Sends a check of a [`snapshot`](Self::snapshot) to the store: [`ruling`](Self::ruling) waits for it.
    pub(crate) fn send_check(&self, check: RulesCheck<'_>) -> SentRuling {
        let at = self.accounts.metrics.store_call();
        SentRuling { answer: check.into_future(), at }
    }

    /// Waits for a ruling, and accounts for it. It has no receipt: proxies have no place for one.
    pub(crate) async fn ruling(&self, mut sent: SentRuling) -> Result<Ruling, Error> {
        match self.store {
            StoreKind::Memory => self.accounts.ruling(&mut sent).await,
            // On the heap: a request to memory need not carry what a span takes.
            StoreKind::Redis => Box::pin(self.in_store_span(self.accounts.ruling(&mut sent))).await,
        }
    }

    /// Waits for the store in a span of its own, if the store is across the network and traces are collected.
    pub(crate) async fn in_store_span<T, E>(
        &self,
        answers: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let traces = self.accounts.traces.as_ref().filter(|_| self.store.is_remote());
        traces::store(traces, answers).await
    }
}

impl Accounts {
    /// Accounts for what a named limit decided.
    fn decision(&self, limit: &NamedLimit, key: &[u8], decision: &Decision) {
        limit.tally.count(decision);
        self.refused.count(limit.scope.name(), key, decision);
        if self.traces.is_some() {
            traces::decided(limit.scope.name(), decision);
        }
    }

    /// Waits for a ruling, and accounts for it. The rules count their decisions themselves.
    async fn ruling(&self, sent: &mut SentRuling) -> Result<Ruling, Error> {
        let ruled = (&mut sent.answer).await;
        self.metrics.store_answered(sent.at);
        let ruling = ruled?;
        self.refused.count_of(&ruling);
        if self.traces.is_some() {
            traces::ruled(&ruling);
        }
        Ok(ruling)
    }
}
