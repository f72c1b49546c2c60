//! What becomes of a request.

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
use super::charge::Charge;
use super::line::Place;
use super::settings::{By, LayerDecision, Now, Settings};
use super::store_answer::StoreAnswer;
use tollgate_http::{Outcome, QuotaHeaders, Reason, Refusal};
use tollgate_identity::{Findings, RequestHead};
use tollgate_rules::{RulesAnswer, Ruling, Snapshot};

/// What becomes of a request, as far as that is known at once.
pub(super) enum Taken {
    Settled(Settled),
    /// The store was asked.
    Asked(Box<Asked>),
}

/// What becomes of a request that was decided, or is not limited.
// What few requests need is on the heap, so that this is moved in a register or two for all of them.
pub(super) enum Settled {
    Goes,
    /// It goes, and its charge may be given back.
    Admitted(Admission),
    Delayed(Box<Charge>),
    Refused(Box<Response<Bytes>>),
}

/// A question on its way to the store, with a place among those that wait if that may be the answer.
pub(super) struct Asked {
    /// `None` once it was answered.
    question: Option<Question>,
    place: Option<Place>,
    found: Findings,
}

/// What the store has answered, and what was known before.
pub(super) struct Reply {
    answered: StoreAnswer,
    place: Option<Place>,
    found: Findings,
}

enum Question {
    Limit { answer: Answer<Decision>, cost: u64, key: Option<Box<[u8]>> },
    Rules(RulesAnswer),
}

impl Taken {
    /// It is not limited.
    const SKIPPED: Taken = Taken::Settled(Settled::Goes);

    fn asked(question: Question, place: Option<Place>) -> Taken {
        let found = Findings::default();
        Taken::Asked(Box::new(Asked { question: Some(question), place, found }))
    }
}

impl Settings {
    /// Decides a request, or asks the store to. What is to be told with its response is `told`.
    // Here and below, what is large is written where it stays: a copy of what was just written has to wait for it.
    #[inline]
    pub(super) fn take<B>(&self, request: &Request<B>, told: &mut QuotaHeaders) -> Taken {
        let now = self.now();
        let mut head = RequestHead::of_nobody(request, self.identity(&now));
        head.look_for_sender();
        let mut taken = self.begin(&head, &now, told);
        if let Taken::Asked(asked) = &mut taken {
            asked.found = head.into_findings();
        }
        taken
    }

    /// What becomes of a request that was asked about.
    pub(super) fn answered<B>(
        &self,
        request: &Request<B>,
        Reply { answered, place, found }: Reply,
        told: &mut QuotaHeaders,
    ) -> Settled {
        let now = self.now();
        let head = RequestHead::again(request, self.identity(&now), found);
        self.settle(&head, answered, place, told)
    }

    fn settle(
        &self,
        head: &RequestHead<'_>,
        answered: StoreAnswer,
        place: Option<Place>,
        told: &mut QuotaHeaders,
    ) -> Settled {
        match self.tell(head, &self.decided(&answered), told) {
            Settled::Goes if self.is_tracked || answered.is_delayed() => {
                self.admit(answered, place)
            }
            settled => settled,
        }
    }

    /// Keeps what was charged for a request that may get it back.
    fn admit(&self, answered: StoreAnswer, place: Option<Place>) -> Settled {
        let is_delayed = answered.is_delayed();
        match Admission::new(answered, &self.by) {
            Some(admission) if is_delayed => {
                Settled::Delayed(Box::new(Charge::new(admission, place)))
            }
            Some(admission) => Settled::Admitted(admission),
            None => Settled::Goes,
        }
    }

    /// Tells what was decided, and lets the request go at once if it may.
    #[inline(always)]
    fn tell(
        &self,
        head: &RequestHead<'_>,
        decided: &LayerDecision<'_>,
        told: &mut QuotaHeaders,
    ) -> Settled {
        if let Some(hook) = &self.on_decision {
            hook(head, decided);
        }
        match decided {
            LayerDecision::Allowed(outcome) => {
                self.note(outcome, told);
                Settled::Goes
            }
            LayerDecision::Refused(refusal) => {
                Settled::Refused(Box::new(self.refuse(head, refusal)))
            }
        }
    }

    fn begin(&self, head: &RequestHead<'_>, now: &Now<'_>, told: &mut QuotaHeaders) -> Taken {
        if self.skip.as_ref().is_some_and(|skip| skip(head)) {
            return Taken::SKIPPED;
        }
        if let Some(unwelcome) = head.unwelcome() {
            return Taken::Settled(self.settle(
                head,
                StoreAnswer::Unwelcome(unwelcome),
                None,
                told,
            ));
        }
        let cost = self.cost.as_ref().map(|cost| cost(head).min(MAX_UNITS));
        if cost == Some(0) {
            return Taken::SKIPPED;
        }
        match now {
            Now::Limit(scope) => self.ask_limit(scope, head, cost.unwrap_or(1), told),
            Now::Rules { current, domain } => self.ask_rules(current, domain, head, cost, told),
        }
    }

    #[inline]
    fn ask_limit(
        &self,
        scope: &Scope,
        head: &RequestHead<'_>,
        cost: u64,
        told: &mut QuotaHeaders,
    ) -> Taken {
        let key = self.key_of(head);
        let check = scope.check(&key).cost(cost);
        if self.is_tracked || scope.is_shaping() || !scope.is_local() {
            return self.ask_at_length(check, head, cost, told);
        }
        let decision = check.now();
        let decided = match &decision {
            Ok(decision) => of_outcome(Outcome::of_limit(scope, decision, cost)),
            Err(error) => self.undecided(error),
        };
        Taken::Settled(self.tell(head, &decided, told))
    }

    /// Decides a check that may be delayed, that a store across the network decides, or that may be refunded.
    fn ask_at_length(
        &self,
        mut check: Check<'_>,
        head: &RequestHead<'_>,
        cost: u64,
        told: &mut QuotaHeaders,
    ) -> Taken {
        let scope = check.scope();
        let mut place = None;
        let is_kept = self.is_tracked || scope.is_shaping();
        let kept = is_kept.then(|| check.key().into());
        if scope.is_shaping() {
            let (max_wait, own) = self.patience();
            // A request that is dropped before the store answers gives its place back.
            check = check.max_wait(max_wait).refunded_if_dropped();
            place = own;
        }
        if scope.is_local() {
            let limit = |decision| StoreAnswer::Limit { decision, cost, key: kept };
            let answered = check.now().map_or_else(StoreAnswer::Undecided, limit);
            return Taken::Settled(self.settle(head, answered, place, told));
        }
        let question = Question::Limit { answer: check.into_future(), cost, key: kept };
        Taken::asked(question, place)
    }

    fn ask_rules(
        &self,
        current: &Snapshot<'_>,
        domain: &str,
        head: &RequestHead<'_>,
        cost: Option<u64>,
        told: &mut QuotaHeaders,
    ) -> Taken {
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
            return Taken::Settled(self.settle(head, answered, place, told));
        }
        Taken::asked(Question::Rules(check.into_future()), place)
    }

    /// The longest delay that a request may have, and its place among those that wait: none, if there is no
    /// room.
    fn patience(&self) -> (Duration, Option<Place>) {
        let place = self.line.join();
        let max_wait = if place.is_some() { self.max_wait } else { Duration::ZERO };
        (max_wait, place)
    }

    fn decided<'a>(&'a self, answered: &'a StoreAnswer) -> LayerDecision<'a> {
        let outcome = match (answered, &self.by) {
            (StoreAnswer::Limit { decision, cost, .. }, By::Limit { scope, .. }) => {
                Outcome::of_limit(scope, decision, *cost)
            }
            (StoreAnswer::Rules(ruling), _) => Outcome::of_rules(ruling),
            (StoreAnswer::Undecided(error), _) => return self.undecided(error),
            (StoreAnswer::Unwelcome(unwelcome), _) => return refused(Reason::from(unwelcome)),
            // Not reached: a limit's answer is to a limit's question.
            (StoreAnswer::Limit { .. }, By::Rules { .. }) => {
                return refused(Reason::Undecided(&Error::DifferentLimiters));
            }
        };
        of_outcome(outcome)
    }

    fn undecided<'e>(&self, error: &'e Error) -> LayerDecision<'e> {
        self.complain(error);
        refused(Reason::Undecided(error))
    }
}

#[inline]
fn of_outcome(outcome: Outcome<'_>) -> LayerDecision<'_> {
    match outcome.is_allowed() {
        true => LayerDecision::Allowed(outcome),
        false => refused(Reason::Quota(outcome)),
    }
}

fn refused(reason: Reason<'_>) -> LayerDecision<'_> {
    LayerDecision::Refused(Refusal::new(reason))
}

impl Future for Asked {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let this = self.get_mut();
        let answered = match &mut this.question {
            Some(Question::Limit { answer, cost, key }) => {
                match ready!(Pin::new(answer).poll(context)) {
                    Ok(decision) => StoreAnswer::Limit { decision, cost: *cost, key: key.take() },
                    Err(error) => StoreAnswer::Undecided(error),
                }
            }
            Some(Question::Rules(answer)) => {
                let ruling = ready!(Pin::new(answer).poll(context));
                ruling.map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules)
            }
            None => return Poll::Pending,
        };
        this.question = None;
        let (place, found) = (this.place.take(), mem::take(&mut this.found));
        Poll::Ready(Reply { answered, place, found })
    }
}

/// Who gives up before the store has answered gives a place back that it gets by rules. One that it gets of a
/// single limit the store gives back by itself.
impl Drop for Asked {
    fn drop(&mut self) {
        let (Some(Question::Rules(answer)), Some(_)) = (self.question.take(), &self.place) else {
            return;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { answer.await.map(Ruling::give_back) });
        }
    }
}
