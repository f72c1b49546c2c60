//! The answer of several limits to one request.

use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Verdict;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::{Inner, Limiter};
use crate::store::memory::Part;

/// The answer of several limits to one request: all were charged, or none.
#[derive(Debug)]
pub struct Together {
    decided: tollgate_core::Together,
    each: Vec<Decision>,
}

impl Together {
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

    /// How many more such requests fit at this instant; `None` without an enforced limit.
    pub fn remaining(&self) -> Option<u64> {
        self.decided.remaining
    }

    /// How long a refused request must wait, exactly; `None` when it was allowed, and when waiting
    /// cannot help.
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

pub(crate) fn decide_together(limiter: &Limiter, checks: &[Check<'_>]) -> Result<Together, Error> {
    let Inner { memory, clock, .. } = &*limiter.inner;
    let parts: Vec<Part<'_>> =
        checks.iter().map(|check| part(limiter, check)).collect::<Result<_, _>>()?;
    let at_us = checks.iter().find_map(|check| check.at_us);
    let now_us = at_us.unwrap_or_else(|| clock.now_us());
    let (decided, each) = memory.together(&parts, now_us);
    Ok(Together { decided, each: each.into_iter().map(Decision::from).collect() })
}

fn part<'a>(limiter: &Limiter, check: &Check<'a>) -> Result<Part<'a>, Error> {
    if !Arc::ptr_eq(&check.scope.limiter.inner, &limiter.inner) {
        return Err(Error::DifferentLimiters);
    }
    if check.is_peek() {
        return Err(Error::PeekAmongChecks);
    }
    Ok(Part { scope: &check.scope.kept, key: check.key, ask: check.ask()?, role: check.role })
}
