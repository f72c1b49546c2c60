//! Limits that requests bring with them: a rule's own algorithm with other numbers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tollgate_limiter::{Error, Scope};

use super::{Map, Plan, PlannedRule, SpendTarget, SpendTargetId, with_leases};
use crate::descriptor::RequestQuota;

/// The most limits that are kept. Further limits are made again for each request, so that a client that invents numbers
/// makes its own requests slower and uses no more memory.
const MAX_KEPT: usize = 1_024;

/// The limits made for requests, by the limit that each replaces and the numbers of the request.
#[derive(Default)]
pub(crate) struct RequestLimits {
    /// Replaced as a whole, so that a lookup takes no lock.
    made: ArcSwap<Map<(SpendTargetId, RequestQuota), Arc<SpendTarget>>>,
}

impl Plan {
    /// Returns the limit for a request that brings its own numbers, in place of the rule's limit `spent`. Both keep
    /// their keys under the same scope name, so that what a key has spent of one it has also spent of the other.
    pub(crate) fn limited_to(
        &self,
        quota: RequestQuota,
        rule: &PlannedRule,
        spent: SpendTargetId,
    ) -> Result<Arc<SpendTarget>, Error> {
        let own = &self.spends[spent];
        let SpendTarget::Limit { name, scope, lease } = &**own else { return Ok(Arc::clone(own)) };
        if quota.units == 0 {
            return Ok(Arc::new(SpendTarget::Block));
        }
        let asked = (spent, quota);
        let RequestLimits { made } = &self.request_limits;
        if let Some(known) = made.load().get(&asked) {
            return Ok(Arc::clone(known));
        }
        let scope = with_leases(rule.with_terms(with_quota(scope, quota)?), *lease)?;
        let new = Arc::new(SpendTarget::Limit { name: Arc::clone(name), scope, lease: *lease });
        made.rcu(|made| {
            let mut more = Arc::clone(made);
            if made.len() < MAX_KEPT {
                Arc::make_mut(&mut more).insert(asked, Arc::clone(&new));
            }
            more
        });
        Ok(new)
    }

    /// Returns the number of limits that are kept.
    #[cfg(test)]
    pub(super) fn limits_kept(&self) -> usize {
        self.request_limits.made.load().len()
    }
}

/// Returns the scope of the same name and limiter with other numbers.
fn with_quota(scope: &Scope, RequestQuota { units, per }: RequestQuota) -> Result<Scope, Error> {
    let limit = scope
        .limit()
        .limited_to(units, per)
        .map_err(|problem| Error::LimitedTo { scope: scope.name().to_owned(), problem })?;
    scope.limiter().scope(scope.name(), limit)
}

#[cfg(test)]
mod tests;
