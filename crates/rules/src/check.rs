//! A request that rules have not decided yet.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tollgate_core::{Cost, CostError};

use super::Rules;
use super::attributes::Attributes;
use super::descriptor::{Descriptor, Hits};
use super::key::push_part;
use super::plan::{Plan, Rule, Spent};
use super::request::Request;
use super::ruling::Ruling;
use tollgate_limiter::Answer;
use tollgate_limiter::Check;
use tollgate_limiter::Decision;
use tollgate_limiter::Error;
use tollgate_limiter::JointDecision;
use tollgate_limiter::{MAX_KEY_BYTES, Scope};

/// What the keys of a request take, as a rule.
const KEY_BYTES: usize = 128;

/// The most rules that may apply to one request. Their keys together have at most [`MAX_KEY_BYTES`].
const MAX_MATCHED: usize = 256;

/// A request that rules have not decided yet: await it, or decide it [`now`](Self::now).
#[derive(Clone, Debug)]
#[must_use = "nothing is decided until this is awaited, or `now` is called"]
pub struct RulesCheck<'a> {
    rules: &'a Rules,
    plan: Arc<Plan>,
    domain: &'a str,
    requests: Requests<'a>,
    /// A part of every key, so that what such requests spend is apart from what others do.
    apart: Option<&'static str>,
    cost: Option<Result<Cost, CostError>>,
    max_wait: Option<Duration>,
    within: Option<Duration>,
    at_us: Option<u64>,
}

/// The sets of attributes of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Requests<'a> {
    Plain(&'a [Attributes<'a>]),
    Each(&'a [Descriptor<'a>]),
}

impl<'a> RulesCheck<'a> {
    pub(super) fn new(
        rules: &'a Rules,
        plan: Arc<Plan>,
        domain: &'a str,
        requests: Requests<'a>,
    ) -> RulesCheck<'a> {
        let (apart, cost, max_wait, within, at_us) = (None, None, None, None, None);
        RulesCheck { rules, plan, domain, requests, apart, cost, max_wait, within, at_us }
    }

    /// Spends of each limit what preflights have for themselves: what a browser asks takes nothing from what its
    /// client may ask. The middleware does so where [`RequestHead::is_preflight`](tollgate_identity::RequestHead::is_preflight).
    pub fn of_preflight(self) -> RulesCheck<'a> {
        RulesCheck { apart: Some(tollgate_identity::PREFLIGHT), ..self }
    }

    /// What the request spends of every limit, instead of what the rules say. At least 1.
    pub fn cost(self, units: u64) -> RulesCheck<'a> {
        RulesCheck { cost: Some(Cost::new(units)), ..self }
    }

    /// The longest delay the caller accepts, as with [`Check::max_wait`].
    pub fn max_wait(self, max_wait: Duration) -> RulesCheck<'a> {
        RulesCheck { max_wait: Some(max_wait), ..self }
    }

    /// How long the caller itself has, as with [`Check::within`].
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
            checks => self.rules.limiter().check_all_now(checks),
        };
        found.ruled(together)
    }

    /// What is charged, in the order of the rules; nothing if one of them refuses whatever it is.
    fn checks<'f>(&self, found: &'f Found) -> Vec<Check<'f>> {
        if found.blocked_by.is_some() {
            return Vec::new();
        }
        let check = |matched: &'f Matched| {
            let (scope, key) = (matched.scope()?, &found.keys[matched.key.clone()]);
            let check = if matched.is_look { scope.peek(key) } else { scope.check(key) };
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
        };
        found.matched.iter().filter_map(check).collect()
    }

    /// Whether a check can be decided by itself, which is quicker than with others.
    fn is_plain(&self, check: &Check<'_>) -> bool {
        !check.is_shadow() && self.max_wait.is_none()
    }

    /// The rules that apply; an error if they are more than any request should meet.
    fn found(&self) -> Result<Found, Error> {
        let cost = self.cost.transpose()?;
        let plan = &self.plan;
        let mut found = Found::new(plan.generation);
        let (Some(domain), mut candidates) = (plan.domains.get(self.domain), Vec::new()) else {
            plan.note_unknown_domain(self.domain);
            return Ok(found);
        };
        domain.use_mark.set();
        let (plain, each) = match self.requests {
            Requests::Plain(plain) => (plain, &[][..]),
            Requests::Each(each) => (&[][..], each),
        };
        let plain = plain.iter().map(|attributes| (attributes, Hits::OfRules, None));
        let each = each.iter().map(|own| (&own.attributes, own.hits, own.quota));
        for (number, (attributes, hits, quota)) in plain.chain(each).enumerate() {
            let request = Request::new(attributes, &plan.names);
            domain.index.candidates(&request, &mut candidates);
            plan.fetch(&candidates);
            for &at in &candidates {
                let (rule, from) = (&plan.rules[at], found.keys.len());
                if rule.apply(&request, &mut found.keys).is_err() {
                    continue;
                }
                let (spent, _) = rule.spent(&request, &found.keys[from..]);
                let units = match (hits, cost) {
                    (Hits::Of(own), _) => own?.units(),
                    (Hits::OfRules, Some(cost)) => cost.units(),
                    (Hits::OfRules, None) | (Hits::None, _) => rule.units(&request),
                };
                let is_look = matches!(hits, Hits::None);
                if let Some(kind) = self.apart {
                    push_part(&mut found.keys, from, kind, "");
                }
                let spent = match quota {
                    None => Arc::clone(&plan.spends[spent]),
                    Some(quota) => plan.limited_to(quota, rule, spent)?,
                };
                let rule = Arc::clone(rule);
                let key = from..found.keys.len();
                found.matched.push(Matched { request: number, rule, spent, key, units, is_look });
                found.check_bounds()?;
            }
        }
        found.leave_out_replaced();
        let blocks =
            |matched: &Matched| !matched.rule.is_shadow && matches!(*matched.spent, Spent::Blocked);
        found.blocked_by = found.matched.iter().position(blocks);
        Ok(found)
    }
}

/// The rules that apply to a request.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) generation: u64,
    /// Of all rules, one after the other.
    pub(super) keys: Vec<u8>,
    pub(super) matched: Vec<Matched>,
    /// Which of them refuses whatever it is.
    pub(super) blocked_by: Option<usize>,
}

/// A rule that applies.
#[derive(Clone)]
pub(super) struct Matched {
    /// Which of the sets of attributes it applies to.
    pub(super) request: usize,
    pub(super) rule: Arc<Rule>,
    pub(super) spent: Arc<Spent>,
    pub(super) key: Range<usize>,
    pub(super) units: u64,
    /// Nothing is charged.
    pub(super) is_look: bool,
}

impl Matched {
    pub(super) fn scope(&self) -> Option<&Scope> {
        self.spent.scope()
    }
}

impl Found {
    fn new(generation: u64) -> Found {
        // For the keys of a few rules, so that there is one allocation.
        let keys = Vec::with_capacity(KEY_BYTES);
        Found { generation, keys, matched: Vec::new(), blocked_by: None }
    }

    /// By what applies, those included that are left out themselves.
    fn leave_out_replaced(&mut self) {
        let rules = self.matched.iter().map(|matched| &matched.rule);
        let replacing: Vec<Arc<Rule>> = rules.filter(|rule| rule.is_replacing()).cloned().collect();
        if !replacing.is_empty() {
            self.matched.retain(|own| !replacing.iter().any(|rule| rule.replaces(&own.rule)));
        }
    }

    /// On every store the same: a script takes no more at once, and nobody should.
    fn check_bounds(&self) -> Result<(), Error> {
        let count = self.matched.len();
        if count > MAX_MATCHED {
            return Err(Error::TooManyCharges { count, most: MAX_MATCHED });
        }
        let bytes = self.keys.len();
        if bytes > MAX_KEY_BYTES {
            return Err(Error::KeysTooLong { bytes, most: MAX_KEY_BYTES });
        }
        Ok(())
    }

    /// What the only charge costs.
    fn units(&self) -> u64 {
        let charged = self.matched.iter().find(|matched| matched.scope().is_some());
        charged.map_or(1, |matched| matched.units)
    }

    /// What it comes to, and one more in every rule's count. Whoever asked may be at fault, and the store
    /// is not.
    fn ruled(self, together: Result<JointDecision, Error>) -> Result<Ruling, Error> {
        if let Err(Error::Store(_)) = together {
            let charged = self.matched.iter().filter(|matched| matched.scope().is_some());
            let enforced = charged.filter(|matched| !matched.rule.is_shadow);
            enforced.for_each(|matched| matched.rule.tally.count_failure());
        }
        Ok(Ruling::counted(self, together?))
    }
}

/// Rules alone: keys may be secrets.
impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.matched.iter().map(|matched| &matched.rule)).finish()
    }
}

impl<'a> IntoFuture for RulesCheck<'a> {
    type Output = Result<Ruling, Error>;
    type IntoFuture = RulesAnswer;

    fn into_future(self) -> RulesAnswer {
        let found = match self.found() {
            Ok(found) => found,
            Err(error) => {
                let asked = Asked::Several(Answer::ready(Err(error)));
                return RulesAnswer { asked, found: Some(Found::new(0)) };
            }
        };
        let asked = match &self.checks(&found)[..] {
            [only] if self.is_plain(only) => Asked::One(only.clone().into_future(), found.units()),
            checks => Asked::Several(self.rules.limiter().check_all(checks)),
        };
        RulesAnswer { asked, found: Some(found) }
    }
}

/// What rules say, on its way; ready at once in memory.
#[derive(Debug)]
#[must_use = "the ruling comes when this is awaited"]
pub struct RulesAnswer {
    asked: Asked,
    /// `None` once it was told.
    found: Option<Found>,
}

#[derive(Debug)]
enum Asked {
    /// And what it costs.
    One(Answer<Decision>, u64),
    Several(Answer<JointDecision>),
}

impl Future for RulesAnswer {
    type Output = Result<Ruling, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let together = match &mut this.asked {
            Asked::One(answer, units) => {
                let decision = ready!(Pin::new(answer).poll(context));
                decision.map(|decision| JointDecision::of_one(decision, *units))
            }
            Asked::Several(answer) => ready!(Pin::new(answer).poll(context)),
        };
        match this.found.take() {
            Some(found) => Poll::Ready(found.ruled(together)),
            None => Poll::Pending,
        }
    }
}
