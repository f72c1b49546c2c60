//! One request on several limits: all limits are charged, or none (P7).

use crate::decision::{ChargeReceipt, CheckResult, LimitDecision, Retry, UnitRequest, Verdict};
use crate::holds::{HoldError, HoldId, HoldReference, HoldTime, Holds, Reservation};
use crate::limit::{Limit, State};

/// One limit in a check of several limits: the limit, the state of its key, the request, and after the check the
/// result.
#[derive(Debug)]
pub struct LimitCheck<'a> {
    limit: &'a Limit,
    state: &'a mut State,
    request: UnitRequest,
    role: Role,
    intent: Intent,
    /// The holds of the key; `None` if the caller has none.
    holds: Option<&'a mut Holds>,
    /// Set if the units are set aside instead of charged.
    reserves: Option<(HoldId, HoldTime)>,
    /// How long a reservation that the limit admits is refused, if the store has no memory for the hold.
    without_memory_us: Option<u64>,
    result: Option<CheckResult>,
    hold: Option<HoldReference>,
}

/// Whether a limit can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The limit can refuse.
    Enforced,
    /// The limit cannot refuse: it only reports what it would have done. It is charged only if the limit itself
    /// and all enforced limits admit the request.
    Shadow,
}

/// Whether a limit is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The limit is charged, if no enforced limit refuses.
    Charge,
    /// The limit is only read, and its state does not change. It refuses the same requests as if it were
    /// charged.
    Peek,
}

impl<'a> LimitCheck<'a> {
    /// Returns the check of a limit that can refuse.
    pub fn enforced(
        limit: &'a Limit,
        state: &'a mut State,
        request: impl Into<UnitRequest>,
    ) -> LimitCheck<'a> {
        LimitCheck {
            limit,
            state,
            request: request.into(),
            role: Role::Enforced,
            intent: Intent::Charge,
            holds: None,
            reserves: None,
            without_memory_us: None,
            result: None,
            hold: None,
        }
    }

    /// Returns the check of a limit that only reports what it would have done.
    pub fn shadow(
        limit: &'a Limit,
        state: &'a mut State,
        request: impl Into<UnitRequest>,
    ) -> LimitCheck<'a> {
        LimitCheck { role: Role::Shadow, ..LimitCheck::enforced(limit, state, request) }
    }

    /// Returns the reservation of units of a limit that can refuse: they are set aside if all enforced limits admit
    /// them. An error if the limit cannot have holds.
    ///
    /// ```
    /// use tollgate_core::{
    ///     Cost, HoldId, HoldTime, Holds, Limit, LimitCheck, Reservation, check_all,
    /// };
    ///
    /// let team: Limit = "token-bucket capacity=1000 refill=1000/m".parse()?;
    /// let all: Limit = "fixed-window limit=500 window=1m".parse()?;
    /// let (mut of_team, mut of_all) = (team.fresh(), all.fresh());
    /// let (mut held_by_team, mut held_by_all) = (Holds::default(), Holds::default());
    /// let hold_for = HoldTime::from_us(30_000_000)?;
    /// let estimate = Reservation { id: HoldId(1), cost: Cost::new(400)?, hold_for };
    /// let mut reserve = || -> Result<_, Box<dyn std::error::Error>> {
    ///     let mut both = [
    ///         LimitCheck::reserve(&team, &mut of_team, &mut held_by_team, estimate)?,
    ///         LimitCheck::reserve(&all, &mut of_all, &mut held_by_all, estimate)?,
    ///     ];
    ///     let decision = check_all(&mut both, 0);
    ///     Ok((decision.refused_by, both.each_ref().map(|part| part.hold().is_some())))
    /// };
    /// assert_eq!(reserve()?, (None, [true, true]));
    /// assert_eq!(reserve()?, (Some(1), [false, false])); // 400 more do not fit 500
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(
        limit: &'a Limit,
        state: &'a mut State,
        holds: &'a mut Holds,
        Reservation { id, cost, hold_for }: Reservation,
    ) -> Result<LimitCheck<'a>, HoldError> {
        limit.can_hold()?;
        Ok(LimitCheck::enforced(limit, state, cost).beside(holds).held_as(id, hold_for))
    }

    /// Sets the units aside instead of charging them. The check must have the [holds](Self::beside) of its key.
    ///
    /// If the limit cannot have holds, the check only reads it. That happens when the key's state is still under an old
    /// limit of its name.
    #[must_use]
    pub fn held_as(self, id: HoldId, hold_for: HoldTime) -> LimitCheck<'a> {
        match self.limit.can_hold() {
            Ok(()) => LimitCheck { reserves: Some((id, hold_for)), ..self },
            Err(_) => LimitCheck { intent: Intent::Peek, ..self },
        }
    }

    /// Refuses a reservation that the limit would admit, because the store has no memory for the hold. It may be tried
    /// again after this time.
    #[must_use]
    pub fn without_memory(self, retry_after_us: u64) -> LimitCheck<'a> {
        LimitCheck { without_memory_us: Some(retry_after_us), ..self }
    }

    /// Adds the holds of the key, which count as spent.
    #[must_use]
    pub fn beside(self, holds: &'a mut Holds) -> LimitCheck<'a> {
        LimitCheck { holds: Some(holds), ..self }
    }

    /// Sets the role and the intent.
    #[must_use]
    pub fn with(self, role: Role, intent: Intent) -> LimitCheck<'a> {
        LimitCheck { role, intent, ..self }
    }

    /// Returns whether the limit can refuse.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns this limit's own decision; `None` before the check. If this limit admits the request and another
    /// refuses it, the decision is "allowed", but nothing was charged.
    pub fn decision(&self) -> Option<&LimitDecision> {
        self.result.as_ref().map(|result| &result.decision)
    }

    /// Takes the receipt of this limit's charge; `None` if nothing was charged, or if it was taken before.
    pub fn take_receipt(&mut self) -> Option<ChargeReceipt> {
        self.result.as_mut()?.receipt.take()
    }

    /// Returns the hold of a reservation that was admitted.
    pub fn hold(&self) -> Option<HoldReference> {
        self.hold
    }

    fn peek(&mut self, now_us: u64) -> LimitDecision {
        let is_charged = self.intent == Intent::Charge;
        let mut decision = match &mut self.holds {
            Some(holds) => {
                if is_charged {
                    self.limit.restart_clock_beside(self.state, holds, now_us);
                }
                match self.reserves {
                    Some(_) => {
                        let cost = self.request.cost;
                        self.limit.peek_reserve_unchecked(self.state, holds, now_us, cost)
                    }
                    None if is_charged => {
                        self.limit.peek_check_beside(self.state, holds, now_us, self.request)
                    }
                    None => self.limit.peek_beside(self.state, holds, now_us, self.request),
                }
            }
            None => {
                if is_charged {
                    // First, so that also a refusal restarts the clock of every key on a new clock.
                    self.limit.restart_clock(self.state, now_us);
                }
                match is_charged {
                    true => self.limit.peek_check(self.state, now_us, self.request),
                    false => self.limit.peek(self.state, now_us, self.request),
                }
            }
        };
        if let Some(retry_after_us) = self.without_memory_us.filter(|_| decision.is_allowed()) {
            decision.verdict = Verdict::Denied { retry: Retry::AfterUs(retry_after_us) };
        }
        self.result = Some(CheckResult { decision, receipt: None });
        decision
    }

    fn charge(&mut self, now_us: u64) {
        let result = match (&mut self.holds, self.reserves) {
            (Some(holds), Some((id, hold_for))) => {
                let reservation = Reservation { id, cost: self.request.cost, hold_for };
                let answer = self.limit.reserve_unchecked(self.state, holds, now_us, reservation);
                self.hold = answer.hold;
                CheckResult { decision: answer.decision, receipt: None }
            }
            (Some(holds), None) => self.limit.check_beside(self.state, holds, now_us, self.request),
            (None, _) => self.limit.check(self.state, now_us, self.request),
        };
        self.result = Some(result);
    }

    fn part(&self, now_us: u64) -> Option<DecisionPart> {
        let decision = *self.decision()?;
        // A limit with holds is never shaping, so the caller's longest wait makes no difference.
        let has_holds = self.holds.as_ref().is_some_and(|holds| !holds.is_empty());
        let requests_remaining = match self.request.max_wait_us {
            Some(_) if !has_holds => self.limit.fits(self.state, now_us, self.request),
            _ => decision.remaining / self.request.cost.units(),
        };
        Some(DecisionPart { role: self.role, decision, requests_remaining })
    }
}

/// The decision of one limit within a [`CombinedDecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionPart {
    /// Whether the limit can refuse.
    pub role: Role,
    /// The limit's own decision.
    pub decision: LimitDecision,
    /// The number of further such requests that fit this limit.
    pub requests_remaining: u64,
}

/// The decision of several limits on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CombinedDecision {
    /// Allowed if every enforced limit admits the request, with the longest of their delays; otherwise
    /// denied, with the longest of their waits.
    pub verdict: Verdict,
    /// When denied, the index of the limit with the longest wait; the first of several with the same wait.
    pub refused_by: Option<usize>,
    /// The tightest enforced limit; `None` without an enforced limit.
    pub tightest: Option<TightestLimit>,
    /// How long until nothing of any enforced limit is spent.
    pub reset_after_us: u64,
}

/// The state of the tightest of several limits. For a denied request that is the limit that refuses it for longest;
/// for an allowed request, the limit that fits the fewest more such requests. Among equals it is the limit that resets
/// last, then the one with the fewest units left, then the smallest: the order of the limits makes no difference.
///
/// After a request that costs 10, a limit of 600 with 590 units left fits 59 more such requests: it is tighter than
/// a limit of 100 with 99 units left, of which each request takes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TightestLimit {
    /// The limit's size.
    pub limit: u64,
    /// The units left of the limit.
    pub remaining: u64,
    /// The number of further such requests that fit all enforced limits at this instant, as if limits that are only
    /// read were charged too.
    pub requests_remaining: u64,
    /// How long until nothing of the limit is spent.
    pub reset_after_us: u64,
}

impl TightestLimit {
    fn of(DecisionPart { decision, requests_remaining, .. }: &DecisionPart) -> TightestLimit {
        let LimitDecision { limit, remaining, reset_after_us, .. } = *decision;
        TightestLimit { limit, remaining, requests_remaining: *requests_remaining, reset_after_us }
    }

    /// Whether this limit is tighter than another, when both admit the request.
    pub const fn is_tighter_than(&self, other: &TightestLimit) -> bool {
        if self.requests_remaining != other.requests_remaining {
            return self.requests_remaining < other.requests_remaining;
        }
        if self.reset_after_us != other.reset_after_us {
            return self.reset_after_us > other.reset_after_us;
        }
        if self.remaining != other.remaining {
            return self.remaining < other.remaining;
        }
        self.limit < other.limit
    }
}

/// Decides one request on several limits, and charges all of them or none. Limits with [`Intent::Peek`] are never
/// charged.
///
/// ```
/// use tollgate_core::{Cost, Limit, LimitCheck, check_all};
///
/// let per_user: Limit = "token-bucket capacity=10 refill=1/s".parse()?;
/// let everyone: Limit = "fixed-window limit=3 window=1s".parse()?;
/// let (mut user, mut all) = (per_user.fresh(), everyone.fresh());
/// let mut check = |cost: u64| {
///     let cost = Cost::new(cost).unwrap();
///     check_all(&mut [
///         LimitCheck::enforced(&per_user, &mut user, cost),
///         LimitCheck::enforced(&everyone, &mut all, cost),
///     ], 0)
/// };
/// let tightest = check(2).tightest.unwrap();
/// assert_eq!((tightest.limit, tightest.remaining), (3, 1)); // `everyone`
/// assert_eq!(tightest.requests_remaining, 0); // no second request of 2 fits
/// assert_eq!(check(2).refused_by, Some(1));
/// assert_eq!(check(1).tightest.unwrap().remaining, 0); // the refused request was not charged to `per_user`
/// # assert_eq!(per_user.peek(&user, 0, Cost::ONE.into()).remaining, 7);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub fn check_all(checks: &mut [LimitCheck<'_>], now_us: u64) -> CombinedDecision {
    let mut is_refused = false;
    for check in &mut *checks {
        let is_allowed = check.peek(now_us).is_allowed();
        is_refused |= check.role == Role::Enforced && !is_allowed;
    }
    if !is_refused {
        charge_admitted(checks, now_us);
    }
    CombinedDecision::of(checks.iter().filter_map(|check| check.part(now_us)))
}

/// Charges every limit that admitted the request in the first pass. Deciding is pure, so at the same time and state
/// each of these limits admits the request again.
fn charge_admitted(checks: &mut [LimitCheck<'_>], now_us: u64) {
    for check in checks {
        let is_allowed = check.decision().is_some_and(LimitDecision::is_allowed);
        if is_allowed && check.intent == Intent::Charge {
            check.charge(now_us);
        }
    }
}

impl CombinedDecision {
    /// Combines the decisions of the limits into one.
    #[inline]
    pub fn of(parts: impl IntoIterator<Item = DecisionPart>) -> CombinedDecision {
        let mut combined = CombinedDecision {
            verdict: Verdict::Allowed { delay_us: 0 },
            refused_by: None,
            tightest: None,
            reset_after_us: 0,
        };
        for (index, part) in parts.into_iter().enumerate() {
            combined.add(index, &part);
        }
        combined
    }

    /// Adds the decision of one more limit, which has this index among all limits. A shadow adds nothing.
    #[inline]
    pub fn add(&mut self, index: usize, part: &DecisionPart) {
        if part.role == Role::Shadow {
            return;
        }
        let decision = &part.decision;
        self.reset_after_us = self.reset_after_us.max(decision.reset_after_us);
        let (was_refused, own) = (self.refused_by.is_some(), TightestLimit::of(part));
        let is_longest = match (self.verdict, decision.verdict) {
            (Verdict::Allowed { delay_us: longest }, Verdict::Allowed { delay_us }) => {
                self.verdict = Verdict::Allowed { delay_us: longest.max(delay_us) };
                false
            }
            (Verdict::Allowed { .. }, Verdict::Denied { .. }) => true,
            (Verdict::Denied { .. }, Verdict::Allowed { .. }) => false,
            (Verdict::Denied { retry: longest }, Verdict::Denied { retry }) => longest < retry,
        };
        if is_longest {
            (self.verdict, self.refused_by) = (decision.verdict, Some(index));
        }
        let is_tightest = self.tightest.is_none_or(|tightest| own.is_tighter_than(&tightest));
        if is_longest || !was_refused && is_tightest {
            self.tightest = Some(own);
        }
    }
}
