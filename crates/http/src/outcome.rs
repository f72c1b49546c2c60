//! The decision about a request, by one limit or by rules.

use std::collections::HashSet;
use std::ptr;
use std::time::Duration;

use tollgate_core::{Limit, Verdict};

use tollgate_limiter::Decision;
use tollgate_limiter::Scope;
use tollgate_rules::{RulePart, Ruling};

/// The decision about a request, by one limit or by rules.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'o> {
    by: OutcomeSource<'o>,
    /// Whether the outcome was read from the limits after a refund, and is not the decision about a request.
    is_refreshed: bool,
}

#[derive(Clone, Copy, Debug)]
enum OutcomeSource<'o> {
    Limit { scope: &'o Scope, decision: &'o Decision, cost: u64 },
    Rules(&'o Ruling),
}

/// A limit that took part in a decision, and its answer. Shadow rules are excluded.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'o> {
    name: &'o str,
    limit: &'o Limit,
    decision: &'o Decision,
    cost: u64,
}

impl<'o> Outcome<'o> {
    /// The decision of one limit about a request of this cost.
    pub fn of_limit(scope: &'o Scope, decision: &'o Decision, cost: u64) -> Outcome<'o> {
        Outcome { by: OutcomeSource::Limit { scope, decision, cost }, is_refreshed: false }
    }

    /// The decision of rules.
    pub fn of_rules(ruling: &'o Ruling) -> Outcome<'o> {
        Outcome { by: OutcomeSource::Rules(ruling), is_refreshed: false }
    }

    /// Marks the outcome as read from the limits after a refund. It is then not the decision about a request, and has
    /// no delay that has passed.
    pub fn refreshed(self) -> Outcome<'o> {
        Outcome { is_refreshed: true, ..self }
    }

    /// Returns how long the request was delayed before its response; 0 for a [refreshed](Self::refreshed) outcome.
    pub fn delayed_us(&self) -> u64 {
        if self.is_refreshed { 0 } else { self.verdict().delay_us() }
    }

    /// Returns whether the request is allowed, and when.
    pub fn verdict(&self) -> Verdict {
        match self.by {
            OutcomeSource::Limit { decision, .. } => decision.verdict(),
            OutcomeSource::Rules(ruling) => ruling.verdict(),
        }
    }

    /// Returns whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.verdict().is_allowed()
    }

    /// Whether this process decided with a [lease](tollgate_limiter::Decision::is_leased): the remaining units and the time to
    /// reset are estimates then.
    pub fn is_leased(&self) -> bool {
        match self.by {
            OutcomeSource::Limit { decision, .. } => decision.is_leased(),
            OutcomeSource::Rules(ruling) => ruling.is_leased(),
        }
    }

    /// Whether the store failed, and the request was decided without it.
    pub fn is_degraded(&self) -> bool {
        match self.by {
            OutcomeSource::Limit { decision, .. } => decision.is_degraded(),
            OutcomeSource::Rules(ruling) => ruling.is_degraded(),
        }
    }

    /// Returns how long a refused request must wait, exactly; `None` for an allowed request, and for
    /// a refused request that can never be allowed.
    ///
    /// `None` does not mean allowed. Branch on [`is_allowed`](Self::is_allowed) or
    /// [`verdict`](Self::verdict), and call this only for a refused request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict().retry_after_us().map(Duration::from_micros)
    }

    /// Returns how long an allowed request waits before it proceeds: the delay of a shaping limit.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.verdict().delay_us())
    }

    /// Whether a rule blocks the request: no limit was charged, and waiting does not help.
    pub fn is_blocked(&self) -> bool {
        self.ruling().is_some_and(Ruling::is_blocked)
    }

    /// Returns the name of the rule, or of the limit, that refuses with the longest wait.
    pub fn refused_by(&self) -> Option<&'o str> {
        match self.by {
            OutcomeSource::Limit { scope, decision, .. } => {
                (!decision.is_allowed()).then(|| scope.name())
            }
            OutcomeSource::Rules(ruling) => ruling.refused_by().map(|part| part.name().name()),
        }
    }

    /// Returns the name of the limit that refuses the request for longest: of a rule with tiers, the limit of the
    /// client's tier. `None` for an allowed request and for a [blocked](Self::is_blocked) one.
    pub fn refusing_limit(&self) -> Option<&'o str> {
        match self.by {
            OutcomeSource::Limit { .. } => self.refused_by(),
            OutcomeSource::Rules(ruling) => ruling.refused_by().and_then(|part| part.limit_name()),
        }
    }

    /// Returns the ruling, if rules decided.
    pub fn ruling(&self) -> Option<&'o Ruling> {
        match self.by {
            OutcomeSource::Limit { .. } => None,
            OutcomeSource::Rules(ruling) => Some(ruling),
        }
    }

    /// Returns the names of all rules, or of the limit, that refuse the request, in the order of the rules.
    pub fn refusers(&self) -> impl Iterator<Item = &'o str> {
        let one = self.single().and_then(|_| self.refused_by());
        let refuses = |part: &RulePart<'_>| !part.is_allowed() && !part.is_shadow();
        let parts = self.ruling().into_iter().flat_map(Ruling::rules);
        one.into_iter().chain(parts.filter(refuses).map(|part| part.name().name()))
    }

    /// Returns every limit that took part, in the order of the rules.
    pub fn policies(&self) -> impl Iterator<Item = Policy<'o>> {
        let parts = self.ruling().into_iter().flat_map(Ruling::rules);
        self.single().into_iter().chain(parts.filter(|part| !part.is_shadow()).filter_map(|part| {
            let (limit, decision) = (part.limit()?, part.decision()?);
            Some(Policy { name: part.name().name(), limit, decision, cost: part.cost() })
        }))
    }

    /// Returns the single limit that decided; `None` if rules did.
    pub(crate) fn single(&self) -> Option<Policy<'o>> {
        match self.by {
            OutcomeSource::Limit { scope, decision, cost } => {
                Some(Policy { name: scope.name(), limit: scope.limit(), decision, cost })
            }
            OutcomeSource::Rules(_) => None,
        }
    }

    /// Whether this limit alone decided.
    pub fn is_of(&self, own: &Scope) -> bool {
        matches!(self.by, OutcomeSource::Limit { scope, .. } if ptr::eq(scope, own))
    }

    /// Returns the limit that a client should watch. For a refused request it is the refusing limit with the longest
    /// wait; for an allowed request it is the limit that has room for the fewest further requests of the same cost, and
    /// among equals the one that resets last.
    pub fn tightest(&self) -> Option<Policy<'o>> {
        self.policies().min_by_key(|policy| self.tightness(policy))
    }

    /// Returns the tightest limits that took part, in the order of the rules.
    pub(crate) fn tightest_of(&self, most: usize) -> Vec<Policy<'o>> {
        let mut policies: Vec<_> = self.policies().enumerate().collect();
        let is_twice =
            self.ruling().is_some_and(|ruling| ruling.rules().any(|part| part.request() > 0));
        if policies.len() > most || is_twice {
            policies.sort_by_cached_key(|(_, policy)| self.tightness(policy));
            // A rule that several sets of attributes match is listed once, with its tightest limit: a client could not
            // distinguish several entries of one name.
            let mut listed = HashSet::new();
            policies.retain(|(_, policy)| listed.insert(policy.name));
            policies.truncate(most);
            policies.sort_by_key(|(place, _)| *place);
        }
        policies.into_iter().map(|(_, policy)| policy).collect()
    }

    /// Returns a sort key: tighter limits come first.
    fn tightness(&self, policy: &Policy<'_>) -> (bool, u64, u64) {
        let decided = policy.decision.decided();
        let is_refuser = !decided.is_allowed() && self.refused_by() == Some(policy.name);
        (!is_refuser, policy.requests_remaining(), u64::MAX - decided.reset_after_us)
    }
}

impl<'o> Policy<'o> {
    /// The rule's name, or the limit's.
    pub fn name(&self) -> &'o str {
        self.name
    }

    /// The limit.
    pub fn limit(&self) -> &'o Limit {
        self.limit
    }

    /// The limit's own decision.
    pub fn decision(&self) -> &'o Decision {
        self.decision
    }

    /// Returns how many further requests of the same cost this limit has room for.
    pub fn requests_remaining(&self) -> u64 {
        self.decision.remaining() / self.cost.max(1)
    }

    /// Returns how long until more units remain; `None` if all units remain.
    pub fn more_after_us(&self) -> Option<u64> {
        self.decision.decided().more_after_us(self.limit)
    }
}
