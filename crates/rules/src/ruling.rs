//! The decision of rules about a request.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Limit, Retry, Verdict};
use tollgate_limiter::{Answer, Check, Decision, Error, JointDecision, Scope};

use super::matched_rules::{MatchedRule, MatchedRules};
use super::plan::{PlannedRule, RuleName, SpendTarget};
use super::rules_hold::RulesHold;
use super::tally::{DecidedBy, RuleOutcome};

/// The decision of rules about a request. Either all rules that apply were charged, or none.
#[derive(Debug)]
#[must_use = "the request may have been refused: branch on `is_allowed()` or `verdict()`"]
pub struct Ruling {
    found: MatchedRules,
    joint: JointDecision,
    /// Set for a reservation that was admitted. Boxed, so that the ruling of a check stays small.
    hold: Option<Box<RulesHold>>,
}

/// One rule's part in a [`Ruling`].
#[derive(Clone, Copy)]
pub struct RulePart<'r> {
    ruling: &'r Ruling,
    matched: &'r MatchedRule,
    decision: Option<&'r Decision>,
}

impl Ruling {
    /// Adds the decision to the counts of every rule that applied; a peek is counted only if it refuses.
    fn counted(found: MatchedRules, joint: JointDecision) -> Ruling {
        let ruling = Ruling { found, joint, hold: None };
        for part in ruling.rules() {
            if let Some(outcome) = part.outcome() {
                part.rule().tally.count(outcome, part.decided_by());
            }
        }
        ruling
    }

    pub(super) fn with_hold(self, hold: Option<RulesHold>) -> Ruling {
        Ruling { hold: hold.map(Box::new), ..self }
    }

    /// Returns the units that were set aside: for a [reservation](crate::Rules::reserve) that was admitted.
    pub fn hold(&self) -> Option<&RulesHold> {
        self.hold.as_deref()
    }

    /// Takes the units that were set aside. `None` for a refused reservation, for a check, and if they were taken before.
    pub fn take_hold(&mut self) -> Option<RulesHold> {
        self.hold.take().map(|hold| *hold)
    }

    /// Returns whether the request may proceed: no rule refuses it, or none applies.
    pub fn is_allowed(&self) -> bool {
        self.verdict().is_allowed()
    }

    /// Returns whether the request is allowed, and when a refused request may be tried again.
    pub fn verdict(&self) -> Verdict {
        match self.found.blocked_by {
            Some(_) => Verdict::Denied { retry: Retry::Never },
            None => self.joint.verdict(),
        }
    }

    /// Returns the rule for which a refused request must wait longest; the first of several with the same wait.
    pub fn refused_by(&self) -> Option<RulePart<'_>> {
        match self.found.blocked_by {
            Some(blocked) => self.rules().nth(blocked),
            None => {
                let refuser = self.joint.refused_by()?;
                self.rules().filter(|part| part.decision.is_some()).nth(refuser)
            }
        }
    }

    /// Returns every rule that applies, in the order of the file. With several sets of attributes, the rules of the
    /// first set come first.
    pub fn rules(&self) -> impl Iterator<Item = RulePart<'_>> {
        let mut decisions = self.joint.each().iter();
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
        self.joint.limit()
    }

    /// Returns the units left of the tightest limit; `None` if no limit applies, and for a blocked request.
    pub fn remaining(&self) -> Option<u64> {
        self.joint.remaining()
    }

    /// Returns how many more such requests fit all limits at this instant, as if peeks were charged too; `None` if
    /// no limit applies, and 0 for a blocked request.
    pub fn requests_remaining(&self) -> Option<u64> {
        match self.is_blocked() {
            true => Some(0),
            false => self.joint.requests_remaining(),
        }
    }

    /// Returns how long until nothing is spent of any limit that can refuse.
    pub fn reset_after(&self) -> Duration {
        self.joint.reset_after()
    }

    /// Returns how long an allowed request should wait before it proceeds.
    pub fn delay(&self) -> Duration {
        self.joint.delay()
    }

    /// Returns whether the store failed, and at least one of the rules was decided without it.
    pub fn is_degraded(&self) -> bool {
        self.joint.is_degraded()
    }

    /// Returns whether at least one of the rules was decided by this process with a
    /// [lease](tollgate_limiter::Decision::is_leased).
    pub fn is_leased(&self) -> bool {
        self.joint.each().iter().any(Decision::is_leased)
    }

    /// Returns whether this process decided all limits of the request with [leases](Self::is_leased), so that the store was
    /// not called.
    pub fn is_leased_only(&self) -> bool {
        !self.joint.each().is_empty() && self.joint.each().iter().all(Decision::is_leased)
    }

    /// Returns the generation of the rules that decided: 1 for the first, one more each time they are replaced.
    pub fn generation(&self) -> u64 {
        self.found.generation
    }

    /// Gives back everything that was charged, because the request failed or need not count. Returns how many more
    /// units remain then, over all rules.
    pub async fn refund(self) -> Result<u64, Error> {
        let mut back = Ok(0);
        // All refunds have been sent already, so one that fails does not stop the others.
        for refund in self.send_refunds() {
            let own = refund.await;
            back = back.and_then(|back| Ok(back + own?));
        }
        back
    }

    /// Sends the [`refund`](Self::refund) without waiting for its result.
    pub fn give_back(self) {
        drop(self.send_refunds());
    }

    /// Returns whether anything was charged, shadow rules included.
    pub fn is_charged(&self) -> bool {
        self.joint.each().iter().any(|decision| decision.receipt().is_some())
    }

    /// Sends the refunds of everything that was charged. The receipts stay, so a caller must do this only once.
    pub fn send_refunds(&self) -> Vec<Answer<u64>> {
        let refund = |part: RulePart<'_>| {
            let (scope, receipt) = (part.scope()?, part.decision()?.receipt()?);
            Some(scope.refund(part.key(), receipt.copy()))
        };
        self.rules().filter_map(refund).collect()
    }

    /// Peeks at the limits again: the same rules, with the current state of their keys. Returns `None` if no rule has a
    /// limit.
    pub fn peek_again(&self) -> Option<impl Future<Output = Result<Ruling, Error>> + use<>> {
        let limiter = self.rules().find_map(|part| Some(part.scope()?.limiter().clone()))?;
        let peeks: Vec<_> = self.rules().filter_map(|part| part.peek()).collect();
        let peeked = limiter.check_all(&peeks);
        let found = self.found.clone();
        Some(async move { Ok(Ruling { found, joint: peeked.await?, hold: None }) })
    }
}

/// Prints the rule only: keys may be secrets.
impl fmt::Debug for RulePart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, decision) = (self.name(), self.decision);
        f.debug_struct("RulePart").field("rule", rule).field("decision", &decision).finish()
    }
}

impl Ruling {
    /// Makes a ruling and adds it to the counts of every rule. A failure of the store is counted as such; other
    /// errors are the caller's, and are not counted.
    pub(super) fn of(
        found: MatchedRules,
        joint: Result<JointDecision, Error>,
    ) -> Result<Ruling, Error> {
        if let Err(Error::Store(_)) = joint {
            let charged = found.matched.iter().filter(|matched| matched.scope().is_some());
            let enforced = charged.filter(|matched| !matched.rule.is_shadow);
            enforced.for_each(|matched| matched.rule.tally.count_failure());
        }
        Ok(Ruling::counted(found, joint?))
    }
}

impl<'r> RulePart<'r> {
    /// Returns a peek at the same key and limit.
    fn peek(&self) -> Option<Check<'r>> {
        self.decision?;
        let peek = self.scope()?.peek(self.key()).cost(self.cost());
        Some(if self.is_shadow() { peek.shadow() } else { peek })
    }

    fn rule(&self) -> &'r PlannedRule {
        &self.matched.rule
    }

    fn spent(&self) -> &'r SpendTarget {
        &self.matched.spent
    }

    /// Returns the index of the set of attributes that the rule applies to, from 0.
    pub fn request(&self) -> usize {
        self.matched.request
    }

    /// Returns the rule's name.
    pub fn name(&self) -> &'r RuleName {
        &self.rule().name
    }

    /// Returns the key that the rule limits: `ip=203.0.113.9`. Empty if the rule limits all requests together.
    pub fn key(&self) -> &'r [u8] {
        &self.ruling.found.keys[self.matched.key.clone()]
    }

    /// Returns the cost of the request in units.
    pub fn cost(&self) -> u64 {
        self.matched.units
    }

    /// Returns whether the rule is in shadow mode: it counts what it would refuse, and refuses nothing.
    pub fn is_shadow(&self) -> bool {
        self.rule().is_shadow
    }

    /// Returns whether this rule allows the request. If another rule refuses it, this one was not charged.
    pub fn is_allowed(&self) -> bool {
        match (self.spent(), self.decision) {
            (SpendTarget::Block, _) => false,
            (_, Some(decision)) => decision.is_allowed(),
            (_, None) => true,
        }
    }

    /// Returns the name of the limit that the rule spends; `None` if the rule allows or blocks such requests.
    pub fn limit_name(&self) -> Option<&'r str> {
        match self.spent() {
            SpendTarget::Limit { name, .. } => Some(name),
            SpendTarget::Allow | SpendTarget::Block => None,
        }
    }

    /// Returns the limit that the rule spends.
    pub fn limit(&self) -> Option<&'r Limit> {
        self.scope().map(Scope::limit)
    }

    /// Returns the scope that holds the key, to peek at the key or to reset it.
    pub fn scope(&self) -> Option<&'r Scope> {
        self.matched.scope()
    }

    /// Returns the decision of the rule's limit. `None` if the rule has no limit, or if another rule blocks the
    /// request: a blocked request does not query the store, and no limit counts it.
    pub fn decision(&self) -> Option<&'r Decision> {
        self.decision
    }

    fn decided_by(&self) -> DecidedBy {
        match self.decision {
            Some(decision) if decision.is_degraded() => DecidedBy::Policy,
            Some(decision) if decision.is_leased() => DecidedBy::Lease,
            _ => DecidedBy::Store,
        }
    }

    fn outcome(&self) -> Option<RuleOutcome> {
        if let (SpendTarget::Limit { .. }, None) = (self.spent(), self.decision) {
            return None;
        }
        Some(match self.is_allowed() {
            // A peek that is allowed charges nothing, so it is not counted.
            true if self.matched.is_peek => return None,
            true => RuleOutcome::Allowed,
            false if self.is_shadow() => RuleOutcome::ShadowDenied,
            false => RuleOutcome::Denied,
        })
    }
}
