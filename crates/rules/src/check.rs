//! A request that rules have not decided yet.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tollgate_core::{Cost, CostError};
use tollgate_limiter::{
    Answer, Check, Decision, Error, HoldRequest, JointDecision, Limiter, Scope,
};

use super::attributes::Attributes;
use super::descriptor::{Descriptor, RequestCost};
use super::key::push_part;
use super::matched_rules::{MatchedRule, MatchedRules};
use super::plan::{Plan, SpendTarget};
use super::request::NumberedRequest;
use super::ruling::Ruling;

/// A request that rules have not decided yet: await it, or decide it [`now`](Self::now).
#[derive(Clone, Debug)]
#[must_use = "nothing is decided until this is awaited, or `now` is called"]
pub struct RulesCheck<'a> {
    limiter: &'a Limiter,
    plan: Arc<Plan>,
    domain: &'a str,
    requests: RequestSets<'a>,
    /// A part of every key, which separates the spending of preflight requests from that of other requests.
    preflight_part: Option<&'static str>,
    cost: Option<Result<Cost, CostError>>,
    /// The units that a reservation sets aside, in place of the units that the rules give.
    estimate: Option<Result<Cost, CostError>>,
    max_wait: Option<Duration>,
    within: Option<Duration>,
    at_us: Option<u64>,
}

/// The sets of attributes of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestSets<'a> {
    Plain(&'a [Attributes<'a>]),
    Each(&'a [Descriptor<'a>]),
}

impl<'a> RulesCheck<'a> {
    pub(super) fn new(
        limiter: &'a Limiter,
        plan: Arc<Plan>,
        domain: &'a str,
        requests: RequestSets<'a>,
    ) -> RulesCheck<'a> {
        RulesCheck {
            limiter,
            plan,
            domain,
            requests,
            preflight_part: None,
            cost: None,
            estimate: None,
            max_wait: None,
            within: None,
            at_us: None,
        }
    }

    /// Charges this request as a preflight request, under keys of its own, so that the preflight requests that a browser
    /// sends do not use up the limits of its client. The middleware does this for every request for which
    /// [`RequestHead::is_preflight`](tollgate_identity::RequestHead::is_preflight) returns true.
    pub fn of_preflight(self) -> RulesCheck<'a> {
        RulesCheck { preflight_part: Some(tollgate_identity::PREFLIGHT), ..self }
    }

    /// Sets the cost of the request for every limit except concurrency limits, in place of the cost that the rules give. At
    /// least 1.
    pub fn cost(self, units: u64) -> RulesCheck<'a> {
        RulesCheck { cost: Some(Cost::new(units)), ..self }
    }

    /// Sets the longest delay that the caller accepts, as with [`Check::max_wait`].
    pub fn max_wait(self, max_wait: Duration) -> RulesCheck<'a> {
        RulesCheck { max_wait: Some(max_wait), ..self }
    }

    /// Sets the caller's own deadline, as with [`Check::within`].
    pub fn within(self, time: Duration) -> RulesCheck<'a> {
        RulesCheck { within: Some(time), ..self }
    }

    /// Decides at this time, as with [`Check::at_us`].
    pub fn at_us(self, now_us: u64) -> RulesCheck<'a> {
        RulesCheck { at_us: Some(now_us), ..self }
    }

    /// Decides without waiting, in memory.
    pub fn now(&self) -> Result<Ruling, Error> {
        let found = self.found()?;
        let together = match &self.checks(&found)[..] {
            [only] if self.is_plain(only) => {
                only.now().map(|decision| JointDecision::of_one(decision, found.units()))
            }
            checks => self.limiter.check_all_now(checks),
        };
        Ruling::of(found, together)
    }

    pub(super) fn limiter(&self) -> &'a Limiter {
        self.limiter
    }

    pub(super) fn with_estimate(self, units: Result<Cost, CostError>) -> RulesCheck<'a> {
        RulesCheck { estimate: Some(units), ..self }
    }

    /// Sets the role of a rule, the time and the caller's deadline on its reservation.
    pub(super) fn with_terms<'f>(
        &self,
        mut request: HoldRequest<'f>,
        matched: &MatchedRule,
    ) -> HoldRequest<'f> {
        if matched.rule.is_shadow {
            request = request.shadow();
        }
        if let Some(within) = self.within {
            request = request.within(within);
        }
        if let Some(at_us) = self.at_us { request.at_us(at_us) } else { request }
    }

    /// Returns the charges, in the order of the rules; none if a rule blocks the request.
    fn checks<'f>(&self, found: &'f MatchedRules) -> Vec<Check<'f>> {
        if found.blocked_by.is_some() {
            return Vec::new();
        }
        let check = |matched: &'f MatchedRule| self.check_of(matched, found);
        found.matched.iter().filter_map(check).collect()
    }

    /// Returns the charge of one rule; `None` if the rule has no limit.
    pub(super) fn check_of<'f>(
        &self,
        matched: &'f MatchedRule,
        found: &'f MatchedRules,
    ) -> Option<Check<'f>> {
        let (scope, key) = (matched.scope()?, &found.keys[matched.key.clone()]);
        // A check of a concurrency limit is an error, which a shadow must not cause.
        let is_peek = matched.is_peek || matched.rule.is_shadow && scope.only_holds();
        let check = if is_peek { scope.peek(key) } else { scope.check(key) };
        let mut check = check.cost(matched.units);
        if matched.rule.is_shadow {
            check = check.shadow();
        }
        if let Some(max_wait) = self.max_wait {
            check = check.max_wait(max_wait);
        }
        if let Some(within) = self.within {
            check = check.within(within);
        }
        Some(if let Some(at_us) = self.at_us { check.at_us(at_us) } else { check })
    }

    /// Returns whether a check can be decided as a check of one limit, which is faster than a check of several.
    fn is_plain(&self, check: &Check<'_>) -> bool {
        !check.is_shadow() && self.max_wait.is_none()
    }

    /// Returns the rules that apply; an error if they exceed the bounds of one request.
    pub(super) fn found(&self) -> Result<MatchedRules, Error> {
        let (cost, estimate) = (self.cost.transpose()?, self.estimate.transpose()?);
        let plan = &self.plan;
        let mut found = MatchedRules::new(plan.generation);
        let (Some(domain), mut candidates) = (plan.domains.get(self.domain), Vec::new()) else {
            plan.note_unknown_domain(self.domain);
            return Ok(found);
        };
        domain.usage.set();
        let (plain, each) = match self.requests {
            RequestSets::Plain(plain) => (plain, &[][..]),
            RequestSets::Each(each) => (&[][..], each),
        };
        let plain = plain.iter().map(|attributes| (attributes, RequestCost::OfRules, None));
        let each = each.iter().map(|own| (&own.attributes, own.hits, own.quota));
        for (number, (attributes, hits, quota)) in plain.chain(each).enumerate() {
            let request = NumberedRequest::new(attributes, &plan.names);
            domain.index.candidates(&request, &mut candidates);
            plan.fetch(&candidates);
            for &at in &candidates {
                let (rule, from) = (&plan.rules[at], found.keys.len());
                if rule.apply(&request, &mut found.keys).is_err() {
                    continue;
                }
                let (spent, _) = rule.spent(&request, &found.keys[from..]);
                let is_peek = matches!(hits, RequestCost::Peek);
                let is_held = !is_peek && rule.reserves(&plan.spends[spent]);
                // The units of a concurrency limit are places: a cost or an estimate for the request does not replace
                // them.
                let is_place = || plan.spends[spent].scope().is_some_and(Scope::only_holds);
                let estimate = estimate.filter(|_| is_held);
                let units = match (hits, estimate.or(cost)) {
                    (RequestCost::Of(own), _) => own?.units(),
                    (RequestCost::OfRules, Some(cost)) if !is_place() => cost.units(),
                    (RequestCost::OfRules, _) | (RequestCost::Peek, _) => rule.units(&request),
                };
                if let Some(kind) = self.preflight_part {
                    push_part(&mut found.keys, from, kind, "");
                }
                let spent = match quota {
                    None => Arc::clone(&plan.spends[spent]),
                    Some(quota) => plan.limited_to(quota, rule, spent)?,
                };
                let rule = Arc::clone(rule);
                let key = from..found.keys.len();
                found.matched.push(MatchedRule {
                    request: number,
                    rule,
                    spent,
                    key,
                    units,
                    is_peek,
                    is_held,
                });
                found.check_bounds()?;
            }
        }
        found.remove_replaced();
        let blocks = |matched: &MatchedRule| {
            !matched.rule.is_shadow && matches!(*matched.spent, SpendTarget::Block)
        };
        found.blocked_by = found.matched.iter().position(blocks);
        Ok(found)
    }
}

impl<'a> IntoFuture for RulesCheck<'a> {
    type Output = Result<Ruling, Error>;
    type IntoFuture = RulesAnswer;

    fn into_future(self) -> RulesAnswer {
        let found = match self.found() {
            Ok(found) => found,
            Err(error) => {
                let pending = PendingDecision::Several(Answer::ready(Err(error)));
                return RulesAnswer { pending, found: Some(MatchedRules::new(0)) };
            }
        };
        let pending = match &self.checks(&found)[..] {
            [only] if self.is_plain(only) => {
                PendingDecision::One(only.clone().into_future(), found.units())
            }
            checks => PendingDecision::Several(self.limiter.check_all(checks)),
        };
        RulesAnswer { pending, found: Some(found) }
    }
}

/// The pending ruling of a [`RulesCheck`]; in memory it is ready at once.
#[derive(Debug)]
#[must_use = "the ruling comes when this is awaited"]
pub struct RulesAnswer {
    pending: PendingDecision,
    /// `None` once the ruling was returned.
    found: Option<MatchedRules>,
}

#[derive(Debug)]
enum PendingDecision {
    /// The decision, and the cost of its request.
    One(Answer<Decision>, u64),
    Several(Answer<JointDecision>),
}

impl Future for RulesAnswer {
    type Output = Result<Ruling, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let together = match &mut this.pending {
            PendingDecision::One(answer, units) => {
                let decision = ready!(Pin::new(answer).poll(context));
                decision.map(|decision| JointDecision::of_one(decision, *units))
            }
            PendingDecision::Several(answer) => ready!(Pin::new(answer).poll(context)),
        };
        match this.found.take() {
            Some(found) => Poll::Ready(Ruling::of(found, together)),
            None => Poll::Ready(Err(Error::AnswerTaken)),
        }
    }
}
