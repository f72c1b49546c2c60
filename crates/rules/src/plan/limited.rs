//! Limits that requests bring with them: a rule's own algorithm with other numbers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_limiter::{Error, Scope};

use super::{Map, Plan, Rule, Spent, SpentId};
use crate::descriptor::Quota;

/// The most that are kept. What comes after them is made anew each time: whoever invents numbers makes
/// that slower, and nothing larger.
const MAX_KEPT: usize = 1_024;

/// What was made for requests, by what they asked for in place of what.
#[derive(Default)]
pub(crate) struct Limited {
    /// Replaced as a whole: looking one up takes no lock.
    made: ArcSwap<Map<(SpentId, Quota), Arc<Spent>>>,
}

impl Plan {
    /// What a request spends that brings its own numbers, where the rule says `spent`. Keys are kept as
    /// those of the rule are, so that what they have spent of one they have spent of the other.
    pub(crate) fn limited_to(
        &self,
        quota: Quota,
        rule: &Rule,
        spent: SpentId,
    ) -> Result<Arc<Spent>, Error> {
        let own = &self.spends[spent];
        let Spent::Limit { name, scope } = &**own else { return Ok(Arc::clone(own)) };
        if quota.units == 0 {
            return Ok(Arc::new(Spent::Blocked));
        }
        let asked = (spent, quota);
        let Limited { made } = &self.limited;
        if let Some(known) = made.load().get(&asked) {
            return Ok(Arc::clone(known));
        }
        let scope = rule.on_terms(with_quota(scope, quota)?);
        let new = Arc::new(Spent::Limit { name: Arc::clone(name), scope });
        made.rcu(|made| {
            let mut more = Arc::clone(made);
            if made.len() < MAX_KEPT {
                Arc::make_mut(&mut more).insert(asked, Arc::clone(&new));
            }
            more
        });
        Ok(new)
    }

    /// How many are kept.
    #[cfg(test)]
    pub(super) fn limits_kept(&self) -> usize {
        self.limited.made.load().len()
    }
}

/// Under the same name, of the same limiter.
fn with_quota(scope: &Scope, Quota { units, per }: Quota) -> Result<Scope, Error> {
    let limit = scope
        .limit()
        .limited_to(units, per)
        .map_err(|problem| Error::LimitedTo { scope: scope.name().to_owned(), problem })?;
    scope.limiter().scope(scope.name(), limit)
}

#[cfg(test)]
mod tests;
