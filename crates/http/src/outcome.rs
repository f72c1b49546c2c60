//! What was decided about a request, by one limit or by rules.

use std::collections::HashSet;
use std::ptr;
use std::time::Duration;

use tollgate_core::{Limit, Verdict};

use tollgate_limiter::Decision;
use tollgate_limiter::Scope;
use tollgate_rules::{RulePart, Ruling};

/// What was decided about a request, by one limit or by rules.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'o> {
    by: By<'o>,
    /// Whether this is how a client stands, and not what became of a request.
    is_look: bool,
}

#[derive(Clone, Copy, Debug)]
enum By<'o> {
    Limit { scope: &'o Scope, decision: &'o Decision, cost: u64 },
    Rules(&'o Ruling),
}

/// A limit that had a say, and how it stands. What only watches is none.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'o> {
    name: &'o str,
    limit: &'o Limit,
    decision: &'o Decision,
    cost: u64,
}

impl<'o> Outcome<'o> {
    /// What a limit says of a request that costs so much.
    pub fn of_limit(scope: &'o Scope, decision: &'o Decision, cost: u64) -> Outcome<'o> {
        Outcome { by: By::Limit { scope, decision, cost }, is_look: false }
    }

    /// What rules say.
    pub fn of_rules(ruling: &'o Ruling) -> Outcome<'o> {
        Outcome { by: By::Rules(ruling), is_look: false }
    }

    /// The same of a look at the limits, when the response is ready.
    pub fn looked_at(self) -> Outcome<'o> {
        Outcome { is_look: true, ..self }
    }

    /// How long the request was delayed before its response.
    pub fn delayed_us(&self) -> u64 {
        if self.is_look { 0 } else { self.verdict().delay_us() }
    }

    /// Yes or no, and when.
    pub fn verdict(&self) -> Verdict {
        match self.by {
            By::Limit { decision, .. } => decision.verdict(),
            By::Rules(ruling) => ruling.verdict(),
        }
    }

    /// Whether the request may go.
    pub fn is_allowed(&self) -> bool {
        self.verdict().is_allowed()
    }

    /// Whether the store failed, and this was decided without it.
    pub fn is_degraded(&self) -> bool {
        match self.by {
            By::Limit { decision, .. } => decision.is_degraded(),
            By::Rules(ruling) => ruling.is_degraded(),
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

    /// How long an allowed request waits before it goes: the delay of a shaping limit.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.verdict().delay_us())
    }

    /// Whether a rule blocks the request: no limit was charged, and waiting does not help.
    pub fn is_blocked(&self) -> bool {
        self.ruling().is_some_and(Ruling::is_blocked)
    }

    /// Whose refusal one must wait for longest: a rule's name, or the limit's.
    pub fn refused_by(&self) -> Option<&'o str> {
        match self.by {
            By::Limit { scope, decision, .. } => (!decision.is_allowed()).then(|| scope.name()),
            By::Rules(ruling) => ruling.refused_by().map(|part| part.name().name()),
        }
    }

    /// Returns the name of the limit that refuses the request for longest: of a rule with tiers, the limit of the
    /// client's tier. `None` for an allowed request and for a [blocked](Self::is_blocked) one.
    pub fn refusing_limit(&self) -> Option<&'o str> {
        match self.by {
            By::Limit { .. } => self.refused_by(),
            By::Rules(ruling) => ruling.refused_by().and_then(|part| part.limit_name()),
        }
    }

    /// What rules said, if it was rules.
    pub fn ruling(&self) -> Option<&'o Ruling> {
        match self.by {
            By::Limit { .. } => None,
            By::Rules(ruling) => Some(ruling),
        }
    }

    /// The names of all who refuse it, in the order of the rules.
    pub fn refusers(&self) -> impl Iterator<Item = &'o str> {
        let one = self.single().and_then(|_| self.refused_by());
        let refuses = |part: &RulePart<'_>| !part.is_allowed() && !part.is_shadow();
        let parts = self.ruling().into_iter().flat_map(Ruling::rules);
        one.into_iter().chain(parts.filter(refuses).map(|part| part.name().name()))
    }

    /// Every limit that had a say, in the order of the rules.
    pub fn policies(&self) -> impl Iterator<Item = Policy<'o>> {
        let parts = self.ruling().into_iter().flat_map(Ruling::rules);
        self.single().into_iter().chain(parts.filter(|part| !part.is_shadow()).filter_map(|part| {
            let (limit, decision) = (part.limit()?, part.decision()?);
            Some(Policy { name: part.name().name(), limit, decision, cost: part.cost() })
        }))
    }

    /// The only limit that had a say, if it was not rules.
    pub(crate) fn single(&self) -> Option<Policy<'o>> {
        match self.by {
            By::Limit { scope, decision, cost } => {
                Some(Policy { name: scope.name(), limit: scope.limit(), decision, cost })
            }
            By::Rules(_) => None,
        }
    }

    /// Whether it is this limit, and no other, that decided.
    pub fn is_of(&self, own: &Scope) -> bool {
        matches!(self.by, By::Limit { scope, .. } if ptr::eq(scope, own))
    }

    /// The limit that a client should watch: who refuses it, one must wait for longest; of an allowed request,
    /// the one that fits the fewest more like it, and of several such the one that takes longest to be whole.
    pub fn tightest(&self) -> Option<Policy<'o>> {
        self.policies().min_by_key(|policy| self.tightness(policy))
    }

    /// The tightest limits that had a say, in the order of the rules.
    pub(crate) fn tightest_of(&self, most: usize) -> Vec<Policy<'o>> {
        let mut policies: Vec<_> = self.policies().enumerate().collect();
        let is_twice =
            self.ruling().is_some_and(|ruling| ruling.rules().any(|part| part.request() > 0));
        if policies.len() > most || is_twice {
            policies.sort_by_cached_key(|(_, policy)| self.tightness(policy));
            // Of several sets of attributes, a rule tells what is tightest: a client cannot tell one from another.
            let mut told = HashSet::new();
            policies.retain(|(_, policy)| told.insert(policy.name));
            policies.truncate(most);
            policies.sort_by_key(|(place, _)| *place);
        }
        policies.into_iter().map(|(_, policy)| policy).collect()
    }

    /// The less, the tighter.
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

    /// Its own answer.
    pub fn decision(&self) -> &'o Decision {
        self.decision
    }

    /// Returns how many more such requests fit this limit.
    pub fn requests_remaining(&self) -> u64 {
        self.decision.remaining() / self.cost.max(1)
    }

    /// How long until more of it remains; `None` if all of it does.
    pub fn more_after_us(&self) -> Option<u64> {
        self.decision.decided().more_after_us(self.limit)
    }
}
