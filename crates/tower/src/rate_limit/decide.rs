//! Decides a request: at once, or by a call to the store.

use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use tokio::runtime::Handle;
use tollgate_core::MAX_UNITS;
use tollgate_limiter::{Answer, Check, Decision, Error, Scope};

use super::admission::Admission;
use super::charge::DelayedCharge;
use super::settings::{CurrentSource, LayerDecision, LimitSource, Settings};
use super::store_answer::StoreAnswer;
use super::waiting::WaitingSlot;
use tollgate_http::{Outcome, QuotaHeaders, Reason, Refusal};
use tollgate_identity::{Findings, RequestHead};
use tollgate_rules::{RulesAnswer, Ruling, Snapshot};

/// The first step of a decision: made at once, or pending at the store.
pub(super) enum DecisionProgress {
    Decided(Disposition),
    /// The store decides.
    Pending(Box<PendingCheck>),
}

/// How a request proceeds that was decided, or is not limited.
// Data that few requests need is boxed, so that this fits one or two registers for all of them.
pub(super) enum Disposition {
    Goes,
    /// The request goes to the service, and its charge may be refunded.
    Admitted(Admission),
    Delayed(Box<DelayedCharge>),
    Refused(Box<Response<Bytes>>),
}

/// A check in flight to the store. It holds a waiting slot if the store may delay the request.
pub(super) struct PendingCheck {
    /// `None` after the answer.
    question: Option<StoreQuery>,
    place: Option<WaitingSlot>,
    found: Findings,
}

/// The store's answer, with what was known before it.
pub(super) struct CheckReply {
    answered: StoreAnswer,
    place: Option<WaitingSlot>,
    found: Findings,
}

enum StoreQuery {
    Limit { answer: Answer<Decision>, cost: u64, key: Option<Box<[u8]>> },
    Rules(RulesAnswer),
}

impl DecisionProgress {
    /// The request is not limited.
    const SKIPPED: DecisionProgress = DecisionProgress::Decided(Disposition::Goes);

    fn pending(question: StoreQuery, place: Option<WaitingSlot>) -> DecisionProgress {
        let found = Findings::default();
        DecisionProgress::Pending(Box::new(PendingCheck { question: Some(question), place, found }))
    }
}

impl Settings {
    /// Decides a request, or sends the check to the store. Writes the headers for the response to `told`.
    // Here and below, large values are written in place: copying a value just after it was written stalls.
    #[inline]
    pub(super) fn take<B>(
        &self,
        request: &Request<B>,
        told: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let now = self.now();
        let mut head = RequestHead::of_nobody(request, self.identity(&now));
        head.look_for_sender();
        let mut taken = self.begin(&head, &now, told);
        if let DecisionProgress::Pending(asked) = &mut taken {
            asked.found = head.into_findings();
        }
        taken
    }

    /// Decides a request after the store has answered.
    pub(super) fn answered<B>(
        &self,
        request: &Request<B>,
        CheckReply { answered, place, found }: CheckReply,
        told: &mut QuotaHeaders,
    ) -> Disposition {
        let now = self.now();
        let head = RequestHead::again(request, self.identity(&now), found);
        self.settle(&head, answered, place, told)
    }

    fn settle(
        &self,
        head: &RequestHead<'_>,
        answered: StoreAnswer,
        place: Option<WaitingSlot>,
        told: &mut QuotaHeaders,
    ) -> Disposition {
        match self.tell(head, &self.decided(&answered), told) {
            Disposition::Goes if self.is_tracked || answered.is_delayed() => {
                self.admit(answered, place)
            }
            settled => settled,
        }
    }

    /// Keeps the charge of a request that may be refunded.
    fn admit(&self, answered: StoreAnswer, place: Option<WaitingSlot>) -> Disposition {
        let is_delayed = answered.is_delayed();
        match Admission::new(answered, &self.by) {
            Some(admission) if is_delayed => {
                Disposition::Delayed(Box::new(DelayedCharge::new(admission, place)))
            }
            Some(admission) => Disposition::Admitted(admission),
            None => Disposition::Goes,
        }
    }

    /// Calls the hook, notes the headers, and lets an allowed request go at once.
    #[inline(always)]
    fn tell(
        &self,
        head: &RequestHead<'_>,
        decided: &LayerDecision<'_>,
        told: &mut QuotaHeaders,
    ) -> Disposition {
        if let Some(hook) = &self.on_decision {
            hook(head, decided);
        }
        match decided {
            LayerDecision::Allowed(outcome) => {
                self.note(outcome, told);
                Disposition::Goes
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
        told: &mut QuotaHeaders,
    ) -> DecisionProgress {
        if self.skip.as_ref().is_some_and(|skip| skip(head)) {
            return DecisionProgress::SKIPPED;
        }
        if let Some(unwelcome) = head.unwelcome() {
            return DecisionProgress::Decided(self.settle(
                head,
                StoreAnswer::Unwelcome(unwelcome),
                None,
                told,
            ));
        }
        let cost = self.cost.as_ref().map(|cost| cost(head).min(MAX_UNITS));
        if cost == Some(0) {
            return DecisionProgress::SKIPPED;
        }
        match now {
            CurrentSource::Limit(scope) => self.ask_limit(scope, head, cost.unwrap_or(1), told),
            CurrentSource::Rules { current, domain } => {
                self.ask_rules(current, domain, head, cost, told)
            }
        }
    }

    #[inline]
    fn ask_limit(
        &self,
        scope: &Scope,
        head: &RequestHead<'_>,
        cost: u64,
        told: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let key = self.key_of(head);
        let check = scope.check(&key).cost(cost);
        if self.is_tracked || scope.is_shaping() || !scope.is_local() {
            return self.ask_at_length(check, head, cost, told);
        }
        let decision = check.now();
        let decided = match &decision {
            Ok(decision) => layer_decision(Outcome::of_limit(scope, decision, cost)),
            Err(error) => self.undecided(error),
        };
        DecisionProgress::Decided(self.tell(head, &decided, told))
    }

    /// Decides a check that may be delayed, that a store across the network decides, or that may be refunded.
    fn ask_at_length(
        &self,
        mut check: Check<'_>,
        head: &RequestHead<'_>,
        cost: u64,
        told: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let scope = check.scope();
        let mut place = None;
        let is_kept = self.is_tracked || scope.is_shaping();
        let kept = is_kept.then(|| check.key().into());
        if scope.is_shaping() {
            let (max_wait, own) = self.patience();
            // The charge of a request that is dropped before the store answers is refunded.
            check = check.max_wait(max_wait).refunded_if_dropped();
            place = own;
        }
        if scope.is_local() {
            let limit = |decision| StoreAnswer::Limit { decision, cost, key: kept };
            let answered = check.now().map_or_else(StoreAnswer::Undecided, limit);
            return DecisionProgress::Decided(self.settle(head, answered, place, told));
        }
        let question = StoreQuery::Limit { answer: check.into_future(), cost, key: kept };
        DecisionProgress::pending(question, place)
    }

    fn ask_rules(
        &self,
        current: &Snapshot<'_>,
        domain: &str,
        head: &RequestHead<'_>,
        cost: Option<u64>,
        told: &mut QuotaHeaders,
    ) -> DecisionProgress {
        let mut request = current.attributes(head);
        if let Some(key) = self.key.as_ref().and_then(|key| key(head)) {
            request = request.with("key", key);
        }
        if let Some(with) = &self.attributes {
            request = with(head, request);
        }
        let mut check = current.check(domain, &request);
        let mut place = None;
        if current.is_shaping() {
            let (max_wait, own) = self.patience();
            (check, place) = (check.max_wait(max_wait), own);
        }
        if let Some(cost) = cost {
            check = check.cost(cost);
        }
        if head.is_preflight() {
            check = check.of_preflight();
        }
        if self.by.limiter().is_local() {
            let answered = check.now().map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules);
            return DecisionProgress::Decided(self.settle(head, answered, place, told));
        }
        DecisionProgress::pending(StoreQuery::Rules(check.into_future()), place)
    }

    /// Returns the longest delay that a request may have, and its waiting slot. Without a free slot the delay is 0.
    fn patience(&self) -> (Duration, Option<WaitingSlot>) {
        let place = self.waiting_slots.join();
        let max_wait = if place.is_some() { self.max_wait } else { Duration::ZERO };
        (max_wait, place)
    }

    fn decided<'a>(&'a self, answered: &'a StoreAnswer) -> LayerDecision<'a> {
        let outcome = match (answered, &self.by) {
            (StoreAnswer::Limit { decision, cost, .. }, LimitSource::Limit { scope, .. }) => {
                Outcome::of_limit(scope, decision, *cost)
            }
            (StoreAnswer::Rules(ruling), _) => Outcome::of_rules(ruling),
            (StoreAnswer::Undecided(error), _) => return self.undecided(error),
            (StoreAnswer::Unwelcome(unwelcome), _) => return refused(Reason::from(unwelcome)),
            // Not reached: only a check of a limit gets a limit's answer.
            (StoreAnswer::Limit { .. }, LimitSource::Rules { .. }) => {
                return refused(Reason::Undecided(&Error::DifferentLimiters));
            }
        };
        layer_decision(outcome)
    }

    fn undecided<'e>(&self, error: &'e Error) -> LayerDecision<'e> {
        self.complain(error);
        refused(Reason::Undecided(error))
    }
}

#[inline]
fn layer_decision(outcome: Outcome<'_>) -> LayerDecision<'_> {
    match outcome.is_allowed() {
        true => LayerDecision::Allowed(outcome),
        false => refused(Reason::Quota(outcome)),
    }
}

fn refused(reason: Reason<'_>) -> LayerDecision<'_> {
    LayerDecision::Refused(Refusal::new(reason))
}

impl Future for PendingCheck {
    type Output = CheckReply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CheckReply> {
        let this = self.get_mut();
        let answered = match &mut this.question {
            Some(StoreQuery::Limit { answer, cost, key }) => {
                match ready!(Pin::new(answer).poll(context)) {
                    Ok(decision) => StoreAnswer::Limit { decision, cost: *cost, key: key.take() },
                    Err(error) => StoreAnswer::Undecided(error),
                }
            }
            Some(StoreQuery::Rules(answer)) => {
                let ruling = ready!(Pin::new(answer).poll(context));
                ruling.map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules)
            }
            None => return Poll::Pending,
        };
        this.question = None;
        let (place, found) = (this.place.take(), mem::take(&mut this.found));
        Poll::Ready(CheckReply { answered, place, found })
    }
}

/// Refunds a delayed request of rules that is dropped before the store has answered. For a single limit, the store
/// refunds by itself.
impl Drop for PendingCheck {
    fn drop(&mut self) {
        let (Some(StoreQuery::Rules(answer)), Some(_)) = (self.question.take(), &self.place) else {
            return;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { answer.await.map(Ruling::give_back) });
        }
    }
}
