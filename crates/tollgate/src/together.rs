//! The answer of several limits to one request.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "rules")]
use tollgate_core::Part;
use tollgate_core::{Ask, Cost, Intent, MAX_UNITS, Role, Verdict};

use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::{Inner, Limiter};
use crate::store::memory;
#[cfg(feature = "redis")]
use crate::store::{
    Store,
    redis::{Asked, Redis},
};

/// The answer of several limits to one request: all were charged, or none, but for peeks.
#[derive(Debug)]
#[must_use = "the request may have been refused: branch on `is_allowed()` or `verdict()`"]
pub struct Together {
    decided: tollgate_core::Together,
    each: Vec<Decision>,
}

impl Together {
    pub(crate) fn new(decided: tollgate_core::Together, each: Vec<Decision>) -> Together {
        Together { decided, each }
    }

    /// The answer of a single limit to a request that costs `units`.
    #[cfg(feature = "rules")]
    pub(crate) fn of_one(decision: Decision, units: u64) -> Together {
        let requests_remaining = decision.remaining() / units.max(1);
        let part = Part { role: Role::Enforced, decision: *decision.decided(), requests_remaining };
        Together { decided: tollgate_core::Together::of([part]), each: vec![decision] }
    }

    /// Whether every enforced limit admits the request.
    pub fn is_allowed(&self) -> bool {
        self.decided.verdict.is_allowed()
    }

    /// Yes or no, and when.
    pub fn verdict(&self) -> Verdict {
        self.decided.verdict
    }

    /// When refused, which of the checks one must wait for longest; of several, the first.
    pub fn refused_by(&self) -> Option<usize> {
        self.decided.refused_by
    }

    /// Returns the size of the tightest enforced limit; `None` without an enforced limit.
    ///
    /// The tightest limit is the one that refuses the request for longest; for an allowed request the one that
    /// fits the fewest more such requests, and among equals the one that resets last.
    pub fn limit(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.limit)
    }

    /// Returns the units left of the tightest enforced limit; `None` without an enforced limit.
    pub fn remaining(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.remaining)
    }

    /// Returns how many more such requests fit all enforced limits at this instant, as if peeks were charged too;
    /// `None` without an enforced limit.
    ///
    /// After a request that costs 10 of a limit of 600, [`remaining`](Self::remaining) is 590 and this is 59.
    pub fn requests_remaining(&self) -> Option<u64> {
        self.decided.tightest.map(|tightest| tightest.requests_remaining)
    }

    /// Returns how long a refused request must wait, exactly; `None` for an allowed request, and for
    /// a refused request that can never be allowed.
    ///
    /// `None` does not mean allowed. Branch on [`is_allowed`](Self::is_allowed) or
    /// [`verdict`](Self::verdict), and call this only for a refused request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.verdict.retry_after_us().map(Duration::from_micros)
    }

    /// How long until nothing is spent of any enforced limit.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.decided.reset_after_us)
    }

    /// How long an allowed request should wait before it goes: the longest of the limits' delays.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.decided.verdict.delay_us())
    }

    /// Whether the store failed, and one or more of the limits were decided without it.
    pub fn is_degraded(&self) -> bool {
        self.each.iter().any(Decision::is_degraded)
    }

    /// Each limit's own answer, in the order of the checks. One that admits a request which another
    /// refuses says allowed, and was not charged.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The same, to take the receipts.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

/// Decides without waiting.
pub(crate) fn now(limiter: &Limiter, checks: &[Check<'_>]) -> Result<Together, Error> {
    // Pushed where they stay: what is collected is moved.
    let mut parts = memory::Few::new();
    for check in checks {
        let demand = demand(limiter, check)?;
        check.scope.is_local()?;
        parts.push(memory::Part { scope: &check.scope.kept, key: check.key.as_bytes(), demand });
    }
    let Inner { memory, clock, .. } = &*limiter.inner;
    let now_us = time(checks).unwrap_or_else(|| clock.now_us());
    let mut each = memory::Few::new();
    let decided = memory.together(&parts, now_us, &mut each);
    Ok(Together::new(decided, each.drain(..).collect()))
}

/// What to ask of Redis.
#[cfg(feature = "redis")]
pub(crate) fn request(limiter: &Limiter, redis: &Redis, checks: &[Check<'_>]) -> Asked {
    let part = |check: &Check<'_>| {
        let demand = demand(limiter, check)?;
        match &check.scope.store {
            Store::Redis(scope) => Ok(scope.part(check.key.as_bytes(), demand)),
            Store::Memory => Err(Error::DifferentLimiters),
        }
    };
    let parts = checks.iter().map(part).collect::<Result<Vec<_>, Error>>()?;
    redis.request(parts, time(checks))
}

/// When several are decided: at the first time that one of them says.
fn time(checks: &[Check<'_>]) -> Option<u64> {
    checks.iter().find_map(|check| check.at_us)
}

fn demand(limiter: &Limiter, check: &Check<'_>) -> Result<Demand, Error> {
    if !Arc::ptr_eq(&check.scope.limiter.inner, &limiter.inner) {
        return Err(Error::DifferentLimiters);
    }
    Ok(Demand { ask: check.ask()?, role: check.role, intent: check.intent })
}

/// What is asked of one limit among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) ask: Ask,
    pub(crate) role: Role,
    pub(crate) intent: Intent,
}

impl Demand {
    /// One that can refuse, and is charged.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn of(ask: Ask) -> Demand {
        Demand { ask, role: Role::Enforced, intent: Intent::Charge }
    }

    /// Whether of two parts of one check with the same key this is the one that counts: what can refuse
    /// before a shadow, and of those what is charged before a look.
    pub(crate) fn outranks(&self, other: &Demand) -> bool {
        self.rank() > other.rank()
    }

    fn rank(&self) -> (bool, bool) {
        (self.role == Role::Enforced, self.intent == Intent::Charge)
    }

    /// Two parts of one check with the same key, as one: the one that counts alone, or else with the costs
    /// added, and as patient as the less patient. A shadow beside an enforced part adds nothing: it must
    /// not refuse; nor does a look beside a charge, which it is no part of.
    pub(crate) fn merged(self, other: Demand) -> Demand {
        if other.outranks(&self) {
            return other;
        } else if self.outranks(&other) {
            return self;
        }
        let units = self.ask.cost.units().saturating_add(other.ask.cost.units());
        // OK because a sum past the largest cost fits no limit either way.
        let cost = Cost::new(units.min(MAX_UNITS)).unwrap_or(self.ask.cost);
        let max_wait_us = [self.ask.max_wait_us, other.ask.max_wait_us].into_iter().flatten().min();
        Demand { ask: Ask { cost, max_wait_us }, ..self }
    }
}
