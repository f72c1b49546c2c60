//! What rules decide.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Limit, Retry, Verdict};
use tollgate_limiter::{Answer, Check, Decision, Error, JointDecision, Scope};

use super::found::{Found, Matched};
use super::plan::{Rule, RuleName, Spent};
use super::tally::{DecidedBy, Outcome};

/// What rules decide about a request: all that apply were charged, or none.
#[derive(Debug)]
#[must_use = "the request may have been refused: branch on `is_allowed()` or `verdict()`"]
pub struct Ruling {
    found: Found,
    together: JointDecision,
}

/// One rule's part in a [`Ruling`].
#[derive(Clone, Copy)]
pub struct RulePart<'r> {
    ruling: &'r Ruling,
    matched: &'r Matched,
    decision: Option<&'r Decision>,
}

impl Ruling {
    /// One more in the count of every rule that applied; for a look, only if it refuses.
    fn counted(found: Found, together: JointDecision) -> Ruling {
        let ruling = Ruling { found, together };
        for part in ruling.rules() {
            if let Some(outcome) = part.outcome() {
                part.rule().tally.count(outcome, part.decided_by());
            }
        }
        ruling
    }

    /// Whether the request may go: no rule refuses it, or none applies.
    pub fn is_allowed(&self) -> bool {
        self.verdict().is_allowed()
    }

    /// Yes or no, and when.
    pub fn verdict(&self) -> Verdict {
        match self.found.blocked_by {
            Some(_) => Verdict::Denied { retry: Retry::Never },
            None => self.together.verdict(),
        }
    }

    /// When refused, the rule one must wait for longest; of several, the first.
    pub fn refused_by(&self) -> Option<RulePart<'_>> {
        match self.found.blocked_by {
            Some(blocked) => self.rules().nth(blocked),
            None => {
                let refuser = self.together.refused_by()?;
                self.rules().filter(|part| part.decision.is_some()).nth(refuser)
            }
        }
    }

    /// Every rule that applies, in the order of the file; of several sets of attributes, first those of
    /// the first.
    pub fn rules(&self) -> impl Iterator<Item = RulePart<'_>> {
        let mut decisions = self.together.each().iter();
        self.found.matched.iter().map(move |matched| {
            let decision = if matched.scope().is_some() { decisions.next() } else { None };
            RulePart { ruling: self, matched, decision }
        })
    }

    /// Returns how long a refused request must wait, exactly; `None` for an allowed request, and for
    /// a refused request that can never be allowed.
    ///
    /// `None` does not mean allowed. Branch on [`is_allowed`](Self::is_allowed) or
    /// [`verdict`](Self::verdict), and call this only for a refused request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict().retry_after_us().map(Duration::from_micros)
    }

    /// Whether a rule blocks the request: no wait and no smaller cost would let it through.
    pub fn is_blocked(&self) -> bool {
        self.found.blocked_by.is_some()
    }

    /// Returns the size of the tightest limit, as [`JointDecision::limit`] does; `None` if no limit applies, and for a
    /// blocked request, which is counted by no limit.
    pub fn limit(&self) -> Option<u64> {
        self.together.limit()
    }

    /// Returns the units left of the tightest limit; `None` if no limit applies, and for a blocked request.
    pub fn remaining(&self) -> Option<u64> {
        self.together.remaining()
    }

    /// Returns how many more such requests fit all limits at this instant, as if looks were charged too; `None` if
    /// no limit applies, and 0 for a blocked request.
    pub fn requests_remaining(&self) -> Option<u64> {
        match self.is_blocked() {
            true => Some(0),
            false => self.together.requests_remaining(),
        }
    }

    /// How long until nothing is spent of any limit that can refuse.
    pub fn reset_after(&self) -> Duration {
        self.together.reset_after()
    }

    /// How long an allowed request should wait before it goes.
    pub fn delay(&self) -> Duration {
        self.together.delay()
    }

    /// Whether the store failed, and one or more of the rules were decided without it.
    pub fn is_degraded(&self) -> bool {
        self.together.is_degraded()
    }

    /// The generation of the rules that decided: 1 for the first, one more whenever they are replaced.
    pub fn generation(&self) -> u64 {
        self.found.generation
    }

    /// Gives everything back that was charged: the request came to nothing, or need not count. How much
    /// more remains then, over all rules.
    pub async fn refund(self) -> Result<u64, Error> {
        let mut back = Ok(0);
        // One that fails keeps none from going.
        for refund in self.send_refunds() {
            let own = refund.await;
            back = back.and_then(|back| Ok(back + own?));
        }
        back
    }

    /// [`refund`](Self::refund), and nobody waits for it.
    pub fn give_back(self) {
        drop(self.send_refunds());
    }

    /// Whether anything was charged, shadow rules included.
    pub fn is_charged(&self) -> bool {
        self.together.each().iter().any(|decision| decision.receipt().is_some())
    }

    /// Sends the refunds of all that was charged. The receipts stay: a caller does this once.
    pub fn send_refunds(&self) -> Vec<Answer<u64>> {
        let refund = |part: RulePart<'_>| {
            let (scope, receipt) = (part.scope()?, part.decision()?.receipt()?);
            Some(scope.refund(part.key(), receipt.copy()))
        };
        self.rules().filter_map(refund).collect()
    }

    /// Looks at the limits again: the same rules, as their keys stand now. `None` if no rule has a limit.
    pub fn look_again(&self) -> Option<impl Future<Output = Result<Ruling, Error>> + use<>> {
        let limiter = self.rules().find_map(|part| Some(part.scope()?.limiter().clone()))?;
        let looks: Vec<_> = self.rules().filter_map(|part| part.look()).collect();
        let looked = limiter.check_all(&looks);
        let found = self.found.clone();
        Some(async move { Ok(Ruling { found, together: looked.await? }) })
    }
}

/// The rule alone: keys may be secrets.
impl fmt::Debug for RulePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, decision) = (self.name(), self.decision);
        f.debug_struct("RulePart").field("rule", rule).field("decision", &decision).finish()
    }
}

impl Ruling {
    /// What rules come to, and one more in every rule's count. A failure of the store is counted as such; other errors
    /// are the caller's.
    pub(super) fn of(
        found: Found,
        together: Result<JointDecision, Error>,
    ) -> Result<Ruling, Error> {
        if let Err(Error::Store(_)) = together {
            let charged = found.matched.iter().filter(|matched| matched.scope().is_some());
            let enforced = charged.filter(|matched| !matched.rule.is_shadow);
            enforced.for_each(|matched| matched.rule.tally.count_failure());
        }
        Ok(Ruling::counted(found, together?))
    }
}

impl<'r> RulePart<'r> {
    /// A look at what was decided on.
    fn look(&self) -> Option<Check<'r>> {
        self.decision?;
        let peek = self.scope()?.peek(self.key()).cost(self.cost());
        Some(if self.is_shadow() { peek.shadow() } else { peek })
    }

    fn rule(&self) -> &'r Rule {
        &self.matched.rule
    }

    fn spent(&self) -> &'r Spent {
        &self.matched.spent
    }

    /// Which of several sets of attributes it applies to, from 0.
    pub fn request(&self) -> usize {
        self.matched.request
    }

    /// The rule's name.
    pub fn name(&self) -> &'r RuleName {
        &self.rule().name
    }

    /// Whom it limits: `ip=203.0.113.9`. Empty if it limits all together.
    pub fn key(&self) -> &'r [u8] {
        &self.ruling.found.keys[self.matched.key.clone()]
    }

    /// What the request costs.
    pub fn cost(&self) -> u64 {
        self.matched.units
    }

    /// Whether it only watches, and refuses nothing.
    pub fn is_shadow(&self) -> bool {
        self.rule().is_shadow
    }

    /// Whether it has nothing against the request. What it has nothing against, another may refuse: then
    /// it was not charged.
    pub fn is_allowed(&self) -> bool {
        match (self.spent(), self.decision) {
            (Spent::Blocked, _) => false,
            (_, Some(decision)) => decision.is_allowed(),
            (_, None) => true,
        }
    }

    /// The name of the limit that it spends; `None` if it lets such requests go, or none of them.
    pub fn limit_name(&self) -> Option<&'r str> {
        match self.spent() {
            Spent::Limit { name, .. } => Some(name),
            Spent::Nothing | Spent::Blocked => None,
        }
    }

    /// The limit that it spends.
    pub fn limit(&self) -> Option<&'r Limit> {
        self.scope().map(Scope::limit)
    }

    /// Where that is kept: to look at the key, or to reset it.
    pub fn scope(&self) -> Option<&'r Scope> {
        self.matched.scope()
    }

    /// Its limit's own answer; `None` if it has no limit, or if the request is one that another rule
    /// lets nobody make: a blocked request asks the store nothing, and is counted by no limit.
    pub fn decision(&self) -> Option<&'r Decision> {
        self.decision
    }

    fn decided_by(&self) -> DecidedBy {
        match self.decision.is_some_and(Decision::is_degraded) {
            true => DecidedBy::Policy,
            false => DecidedBy::Store,
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        if let (Spent::Limit { .. }, None) = (self.spent(), self.decision) {
            return None;
        }
        Some(match self.is_allowed() {
            // Counted are charges, and what is refused.
            true if self.matched.is_look => return None,
            true => Outcome::Allowed,
            false if self.is_shadow() => Outcome::ShadowDenied,
            false => Outcome::Denied,
        })
    }
}
