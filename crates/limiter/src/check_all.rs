//! A check of several limits: all are charged, or none is.

use std::mem;
use std::sync::Arc;

use tollgate_core::{Intent, Role};

use crate::answer::Answer;
use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;
use crate::failure::StoreTerms;
use crate::joint::{Demand, JointDecision};
use crate::limiter::{Backend, Limiter, RemoteBackend};
use crate::scope::ScopeBackend;
use crate::store::memory;
use crate::store::{Call, Charge, JointRequest};

impl Limiter {
    /// Decides one request on several limits: all of them are charged, or none is. A
    /// [peek](crate::Scope::peek) among them can refuse the request, and is never charged.
    ///
    /// Parts with the same name and key become one part. An enforced part replaces shadows, so next to an enforced
    /// peek, a shadow is not charged. Among parts of one role, a charge replaces peeks, which get its decision. A
    /// replaced part adds nothing. The costs of the parts that are not replaced are added, and decided under the limit
    /// of the first of them.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let user = limiter.scope("user", "token-bucket capacity=60 refill=1/s")?;
    /// let all = limiter.scope("all", "fixed-window limit=1000 window=1s")?;
    /// let joint = limiter.check_all_now(&[user.check("user:42").cost(5), all.check("all")])?;
    /// assert_eq!((joint.limit(), joint.remaining()), (Some(60), Some(55))); // `user`, the tightest
    /// assert_eq!(joint.requests_remaining(), Some(11)); // eleven more requests like this one fit
    ///
    /// // After three failed logins a user is refused; only failures are charged.
    /// let failed = limiter.scope("failed", "sliding-window-log limit=3 window=1h")?;
    /// assert!(failed.check("user:42").cost(3).now()?.is_allowed());
    /// let refused = limiter.check_all_now(&[user.check("user:42"), failed.peek("user:42")])?;
    /// assert_eq!(refused.refused_by(), Some(1));
    /// assert_eq!(user.peek("user:42").now()?.remaining(), 55); // not charged
    ///
    /// let both = [failed.peek("user:7").cost(2), failed.check("user:7")];
    /// let joint = limiter.check_all_now(&both)?; // the charge alone, for both parts
    /// assert_eq!(joint.each()[0].remaining(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_all_now(&self, checks: &[Check<'_>]) -> Result<JointDecision, Error> {
        let Backend::Memory(backend) = self.backend() else { return Err(Error::MustWait) };
        // Pushed one by one to their final place in memory: `collect` would move them.
        let mut parts = memory::ShortVec::new();
        for check in checks {
            let demand = demand(self, check)?;
            let ScopeBackend::Memory { memory_scope, .. } = check.scope.backend() else {
                return Err(Error::MustWait);
            };
            parts.push(memory::JointPart {
                scope: memory_scope,
                key: check.key.as_bytes(),
                demand,
            });
        }
        let now_us = time(checks).unwrap_or_else(|| backend.clock.now_us());
        let mut each = Vec::with_capacity(checks.len());
        let decided = match backend.memory.check_all_known(&parts, now_us, &mut each) {
            Some(decided) => decided,
            None => {
                checks.iter().try_for_each(Check::can_charge)?;
                backend.memory.check_all_any(&parts, now_us, &mut each)
            }
        };
        Ok(JointDecision::new(decided, each))
    }

    /// [`check_all_now`](Self::check_all_now), for any store.
    pub fn check_all(&self, checks: &[Check<'_>]) -> Answer<JointDecision> {
        let Backend::Remote(remote) = self.backend() else {
            return Answer::ready(self.check_all_now(checks));
        };
        let JoinedCheck { request, parts } = match joined(self, remote, checks) {
            Ok(Some(joined)) => joined,
            Ok(None) => return Answer::ready(Ok(empty_decision())),
            Err(error) => return Answer::ready(Err(error)),
        };
        let (remote, again) = (Arc::clone(remote), request.clone());
        let answer = remote.store.check_all(request);
        answer.then(move |answer| {
            let answer = remote.decide_all_instead(answer, &again)?;
            parts.answer(answer)
        })
    }

    /// Decides many independent requests, each on one or more limits.
    ///
    /// On Redis they are sent in their order, 64 charges at a time. Each of these batches has the limiter's deadline,
    /// or that of its scopes if they have their own. If any request has [`Check::within`], the shortest of these times
    /// is the deadline of the whole call.
    pub fn batch(&self, requests: &[&[Check<'_>]]) -> Answer<Vec<Result<JointDecision, Error>>> {
        let Backend::Remote(remote) = self.backend() else {
            let decide = |checks: &&[Check<'_>]| self.check_all_now(checks);
            return Answer::ready(Ok(requests.iter().map(decide).collect()));
        };
        let within = requests.iter().filter_map(|checks| Check::shortest_deadline(checks)).min();
        let joined: Vec<_> = requests.iter().map(|checks| joined(self, remote, checks)).collect();
        let requests = joined.iter().flatten().flatten().map(|joined| joined.request.clone());
        let answer = Arc::clone(&remote.store).batch(requests.collect(), within);
        let remote = Arc::clone(remote);
        answer.then(move |answers| {
            let mut answers = answers?.into_iter();
            let own = |joined| match joined {
                Ok(Some(JoinedCheck { request, parts })) => {
                    // OK because a store returns one answer for each request.
                    let answer = answers.next().unwrap_or(Err(Error::AnswerTaken));
                    parts.answer(remote.decide_all_instead(answer, &request)?)
                }
                Ok(None) => Ok(empty_decision()),
                Err(error) => Err(error),
            };
            Ok(joined.into_iter().map(own).collect())
        })
    }
}

/// The merged charges of one check, and the charge that each of the caller's parts belongs to.
#[derive(Debug)]
struct JoinedCheck {
    request: JointRequest,
    parts: CallerParts,
}

#[derive(Debug)]
pub(crate) struct CallerParts(pub(crate) Vec<CallerPart>);

/// The charge that a caller's part belongs to, and whether the caller wants it charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerPart {
    pub(crate) charge: usize,
    pub(crate) intent: Intent,
}

/// Merges the checks of one key into one charge, under the limit of the part that takes precedence
/// ([`Demand::outranks`]). Returns `None` if there are no checks.
fn joined(
    limiter: &Limiter,
    remote: &RemoteBackend,
    checks: &[Check<'_>],
) -> Result<Option<JoinedCheck>, Error> {
    let most = remote.store.max_charges();
    if checks.len() > most {
        return Err(Error::TooManyCharges { count: checks.len(), most });
    }
    let mut charges: Vec<Charge> = Vec::with_capacity(checks.len());
    let mut parts = Vec::with_capacity(checks.len());
    let mut terms: Vec<(Role, StoreTerms)> = Vec::with_capacity(checks.len());
    for check in checks {
        let demand = demand(limiter, check)?;
        check.can_charge()?;
        let ScopeBackend::Remote(scope) = check.scope.backend() else {
            return Err(Error::DifferentLimiters);
        };
        terms.push((demand.role, scope.terms));
        let charge = scope.charge(check.key.as_bytes(), demand);
        let same = charges.iter().position(|other| other.has_key_of(&charge));
        parts.push(CallerPart { charge: same.unwrap_or(charges.len()), intent: demand.intent });
        match same {
            Some(same) => merge(&mut charges[same], &charge),
            None => charges.push(charge),
        }
    }
    let Some(terms) = StoreTerms::of_all(&terms) else { return Ok(None) };
    let terms = terms.bounded(Check::shortest_deadline(checks));
    let at_us = remote.time(time(checks));
    let call = Call { at_us, deadline: terms.deadline, on_failure: terms.on_failure };
    Ok(Some(JoinedCheck { request: JointRequest { charges, call }, parts: CallerParts(parts) }))
}

/// Merges two charges of one key into the first.
fn merge(charge: &mut Charge, other: &Charge) {
    let outranks = other.demand().outranks(charge.demand());
    let limit = if outranks { other.limit() } else { charge.limit() };
    let demand = charge.demand().merged(*other.demand());
    *charge = Charge::new(Arc::clone(charge.name()), charge.key(), *limit, demand);
}

impl CallerParts {
    /// Turns the decision on each charge into the decision on each part. The first part of a charge that is
    /// not a peek gets the receipt.
    pub(crate) fn answer(&self, joint: JointDecision) -> Result<JointDecision, Error> {
        let mut decided = *joint.decided();
        let first_of = |charge| self.0.iter().position(|part| part.charge == charge);
        decided.refused_by = decided.refused_by.and_then(first_of);
        let mut answers = joint.into_each();
        let own = |part: &CallerPart| {
            let answer = answers.get_mut(part.charge)?;
            let rest = answer.without_receipt();
            Some(match part.intent {
                Intent::Charge => mem::replace(answer, rest),
                Intent::Peek => rest,
            })
        };
        let each: Option<Vec<Decision>> = self.0.iter().map(own).collect();
        // OK because a store returns one decision for each charge.
        Ok(JointDecision::new(decided, each.ok_or(Error::AnswerTaken)?))
    }
}

pub(crate) fn empty_decision() -> JointDecision {
    JointDecision::new(tollgate_core::CombinedDecision::of([]), Vec::new())
}

/// Returns the time at which several checks are decided: that of the first check that sets a time.
fn time(checks: &[Check<'_>]) -> Option<u64> {
    checks.iter().find_map(|check| check.at_us)
}

fn demand(limiter: &Limiter, check: &Check<'_>) -> Result<Demand, Error> {
    if !check.scope.limiter().is_same(limiter) {
        return Err(Error::DifferentLimiters);
    }
    check.demand()
}
