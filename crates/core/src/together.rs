//! Several limits decided together: all are charged, or none (P7).

use crate::decision::{Ask, Checked, Decision, Receipt, Verdict};
use crate::limit::{Limit, State};

/// One limit's part in a check of several.
#[derive(Debug)]
pub struct Charge<'a> {
    limit: &'a Limit,
    state: &'a mut State,
    ask: Ask,
    role: Role,
    intent: Intent,
    checked: Option<Checked>,
}

/// Whether a limit can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The limit can refuse.
    Enforced,
    /// The limit cannot refuse: it only reports what it would have done. It is charged only if the
    /// request fits it and the enforced limits admit it.
    Shadow,
}

/// Whether a limit is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The limit is charged, if no enforced limit refuses.
    Charge,
    /// The limit is only read, and its state does not change. It refuses the same requests as if it were
    /// charged.
    Look,
}

impl<'a> Charge<'a> {
    /// A limit that can refuse.
    pub fn enforced(limit: &'a Limit, state: &'a mut State, ask: impl Into<Ask>) -> Charge<'a> {
        let (role, intent) = (Role::Enforced, Intent::Charge);
        Charge { limit, state, ask: ask.into(), role, intent, checked: None }
    }

    /// A limit that only reports what it would have done.
    pub fn shadow(limit: &'a Limit, state: &'a mut State, ask: impl Into<Ask>) -> Charge<'a> {
        Charge { role: Role::Shadow, ..Charge::enforced(limit, state, ask) }
    }

    /// Sets the role and the intent.
    #[must_use]
    pub fn with(self, role: Role, intent: Intent) -> Charge<'a> {
        Charge { role, intent, ..self }
    }

    /// Whether it can refuse.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// This limit's own answer, after the check. If this limit admits a request and another refuses it, the
    /// answer is allowed, but nothing was charged.
    pub fn decision(&self) -> Option<&Decision> {
        self.checked.as_ref().map(|checked| &checked.decision)
    }

    /// Takes the receipt of this limit's charge; `None` if nothing was charged, or if it was taken before.
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        self.checked.as_mut()?.receipt.take()
    }

    fn peek(&mut self, now_us: u64) -> Decision {
        if self.intent == Intent::Charge {
            // First, so that also a refusal restarts the time of every key on a new clock.
            self.limit.settle(self.state, now_us);
        }
        let decision = self.limit.peek(self.state, now_us, self.ask);
        self.checked = Some(Checked { decision, receipt: None });
        decision
    }

    fn check(&mut self, now_us: u64) -> Decision {
        let checked = self.limit.check(self.state, now_us, self.ask);
        self.checked.insert(checked).decision
    }

    fn part(&self, now_us: u64) -> Option<Part> {
        let decision = *self.decision()?;
        let requests_remaining = match self.ask.max_wait_us {
            Some(_) => self.limit.fits(self.state, now_us, self.ask),
            None => decision.remaining / self.ask.cost.units(),
        };
        Some(Part { role: self.role, decision, requests_remaining })
    }
}

/// One limit's answer within the answer of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Whether it can refuse.
    pub role: Role,
    /// Its own answer.
    pub decision: Decision,
    /// The number of further such requests that fit this limit.
    pub requests_remaining: u64,
}

/// The answer of several limits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Together {
    /// Allowed if every enforced limit admits the request, with the longest of their delays; otherwise
    /// denied, with the longest of their waits.
    pub verdict: Verdict,
    /// When denied, the index of the charge with the longest wait; the first of several with the same wait.
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
    fn of(Part { decision, requests_remaining, .. }: &Part) -> TightestLimit {
        let Decision { limit, remaining, reset_after_us, .. } = *decision;
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

/// Decides one request on several limits, and charges all of them or none. Limits with [`Intent::Look`] are never
/// charged.
///
/// ```
/// use tollgate_core::{Charge, Cost, Limit, check_all};
///
/// let per_user: Limit = "token-bucket capacity=10 refill=1/s".parse()?;
/// let everyone: Limit = "fixed-window limit=3 window=1s".parse()?;
/// let (mut user, mut all) = (per_user.fresh(), everyone.fresh());
/// let mut check = |cost: u64| {
///     let cost = Cost::new(cost).unwrap();
///     check_all(&mut [
///         Charge::enforced(&per_user, &mut user, cost),
///         Charge::enforced(&everyone, &mut all, cost),
///     ], 0)
/// };
/// let tightest = check(2).tightest.unwrap();
/// assert_eq!((tightest.limit, tightest.remaining), (3, 1)); // `everyone`
/// assert_eq!(tightest.requests_remaining, 0); // no second request of 2 fits
/// assert_eq!(check(2).refused_by, Some(1));
/// assert_eq!(check(1).tightest.unwrap().remaining, 0); // the refusal cost `per_user` nothing
/// # assert_eq!(per_user.peek(&user, 0, Cost::ONE.into()).remaining, 7);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub fn check_all(charges: &mut [Charge<'_>], now_us: u64) -> Together {
    let mut is_refused = false;
    for charge in &mut *charges {
        let is_allowed = charge.peek(now_us).is_allowed();
        is_refused |= charge.role == Role::Enforced && !is_allowed;
    }
    if !is_refused {
        charge_what_fits(charges, now_us);
    }
    Together::of(charges.iter().filter_map(|charge| charge.part(now_us)))
}

/// Charges every limit that the request fits. Deciding is pure, so what fitted in the first pass, at the same time
/// and state, still fits.
fn charge_what_fits(charges: &mut [Charge<'_>], now_us: u64) {
    for charge in charges {
        let is_allowed = charge.decision().is_some_and(Decision::is_allowed);
        if is_allowed && charge.intent == Intent::Charge {
            charge.check(now_us);
        }
    }
}

impl Together {
    /// Combines the answers of the limits into one.
    #[inline]
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Together {
        let mut together = Together {
            verdict: Verdict::Allowed { delay_us: 0 },
            refused_by: None,
            tightest: None,
            reset_after_us: 0,
        };
        for (index, part) in parts.into_iter().enumerate() {
            if part.role == Role::Enforced {
                together.add(index, &part);
            }
        }
        together
    }

    #[inline]
    fn add(&mut self, index: usize, part: &Part) {
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
