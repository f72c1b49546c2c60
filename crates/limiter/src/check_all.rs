//! A check of several limits: all are charged, or none is.

use std::mem;
use std::sync::Arc;

use tollgate_core::{Intent, Role};
use tollgate_lease::LeaseTerms;

use crate::answer::Answer;
use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;
use crate::failure::StoreTerms;
use crate::joint::{Demand, JointDecision};
use crate::leases::{LeasedParts, TakenParts};
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
        let joined = match joined(self, remote, checks) {
            Ok(Some(joined)) => joined,
            Ok(None) => return Answer::ready(Ok(empty_decision())),
            Err(error) => return Answer::ready(Err(error)),
        };
        let undecided = match joined.take(remote) {
            TakenCheck::Undecided(undecided) => undecided,
            TakenCheck::Decided(decided) => return Answer::ready(decided),
        };
        let remote = Arc::clone(remote);
        let answer = remote.store.check_all(undecided.request.clone());
        answer.then(move |answer| undecided.answer(&remote, answer))
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
        let taken: Vec<TakenCheck> = requests
            .iter()
            .map(|checks| match joined(self, remote, checks) {
                Ok(Some(joined)) => joined.take(remote),
                Ok(None) => TakenCheck::Decided(Ok(empty_decision())),
                Err(error) => TakenCheck::Decided(Err(error)),
            })
            .collect();
        let requests: Vec<_> = taken.iter().filter_map(TakenCheck::request).cloned().collect();
        let answer = match requests.is_empty() {
            true => Answer::ready(Ok(Vec::new())),
            false => Arc::clone(&remote.store).batch(requests, within),
        };
        let remote = Arc::clone(remote);
        answer.then(move |answers| {
            let mut answers = answers?.into_iter();
            let own = |taken| match taken {
                TakenCheck::Undecided(check) => {
                    // OK because a store returns one answer for each request.
                    check.answer(&remote, answers.next().unwrap_or(Err(Error::AnswerTaken)))
                }
                TakenCheck::Decided(decided) => decided,
            };
            Ok(taken.into_iter().map(own).collect())
        })
    }
}

/// The merged charges of one check, and the charge that each of the caller's parts belongs to.
#[derive(Debug)]
struct JoinedCheck {
    request: JointRequest,
    /// One entry for each charge: how its limit is leased, if it is.
    leases: Vec<Option<LeaseTerms>>,
    parts: CallerParts,
}

/// A check that the store decides, but for the limits that leases have admitted.
#[derive(Debug)]
struct UndecidedCheck {
    request: JointRequest,
    /// The charges that leases have admitted, and the others; `None` if no limit is leased.
    leased: Option<LeasedParts>,
    parts: CallerParts,
}

/// A check after the leases of its limits.
#[derive(Debug)]
enum TakenCheck {
    Undecided(UndecidedCheck),
    Decided(Result<JointDecision, Error>),
}

impl TakenCheck {
    fn request(&self) -> Option<&JointRequest> {
        match self {
            TakenCheck::Undecided(check) => Some(&check.request),
            TakenCheck::Decided(_) => None,
        }
    }
}

impl JoinedCheck {
    /// Decides with the leases of the limits, as far as they can.
    fn take(self, remote: &RemoteBackend) -> TakenCheck {
        let JoinedCheck { request: JointRequest { charges, call }, leases, parts } = self;
        if leases.iter().all(Option::is_none) {
            let request = JointRequest { charges, call };
            return TakenCheck::Undecided(UndecidedCheck { request, leased: None, parts });
        }
        match remote.leases.take_several(&charges, &leases) {
            TakenParts::Decided(joint) => TakenCheck::Decided(parts.answer(joint)),
            TakenParts::Store(leased) => {
                let request = JointRequest { charges: leased.rest(), call };
                TakenCheck::Undecided(UndecidedCheck { request, leased: Some(leased), parts })
            }
        }
    }
}

impl UndecidedCheck {
    /// Turns the store's answer into the decision of the whole check.
    fn answer(
        self,
        remote: &RemoteBackend,
        answer: Result<JointDecision, Error>,
    ) -> Result<JointDecision, Error> {
        let answer = remote.decide_all_instead(answer, &self.request);
        let joint = match self.leased {
            Some(leased) => leased.joined(answer)?,
            None => answer?,
        };
        self.parts.answer(joint)
    }
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
    let mut leases: Vec<Option<LeaseTerms>> = Vec::with_capacity(checks.len());
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
        let can_be_leased = demand.intent == Intent::Charge && check.at_us.is_none();
        let lease = scope.lease.filter(|_| can_be_leased);
        match same {
            Some(same) => {
                if charge.demand().outranks(charges[same].demand()) {
                    leases[same] = lease;
                }
                merge(&mut charges[same], &charge);
            }
            None => {
                charges.push(charge);
                leases.push(lease);
            }
        }
    }
    let Some(terms) = StoreTerms::of_all(&terms) else { return Ok(None) };
    let terms = terms.bounded(Check::shortest_deadline(checks));
    let at_us = remote.time(time(checks));
    let call = Call { at_us, deadline: terms.deadline, on_failure: terms.on_failure };
    let request = JointRequest { charges, call };
    Ok(Some(JoinedCheck { request, leases, parts: CallerParts(parts) }))
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
