//! The operations on a key that has holds, and on its holds.

use super::state::{State, change, read};
use super::{CarryOver, Limit};
use crate::algorithm::held::{self, TakenUnits};
use crate::algorithm::leased;
use crate::algorithm::{BesideHolds, KeyClock};
use crate::decision::{ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, Verdict};
use crate::holds::{
    ExtendAnswer, GrantedExtension, HoldError, HoldGrowth, HoldReference, HoldTime, HoldUse, Holds,
    Reservation, ReserveAnswer, SettleAnswer,
};
use crate::lease::{LeaseAnswer, LeaseRequest};
use crate::range::MAX_UNITS;
use crate::{__each as each, UnitRequest};

/// Holds: units that are set aside until they are settled or expire.
///
/// Held units count as spent and do not come back while they are held. At its expiry a hold is charged in full. The sum
/// of what is spent and held grows when a request is admitted, or settled above its hold, and at no other time.
///
/// A key without holds is decided by the functions without `_beside`, with the same results.
///
/// ```
/// use tollgate_core::{Cost, HoldId, HoldTime, HoldUse, Holds, Limit, Reservation};
///
/// let limit: Limit = "token-bucket capacity=1000 refill=1000/m".parse()?;
/// let (mut state, mut holds) = (limit.fresh(), Holds::default());
/// let hold_for = HoldTime::from_us(30_000_000)?;
/// let estimate = Reservation { id: HoldId(1), cost: Cost::new(400)?, hold_for };
/// let answer = limit.reserve(&mut state, &mut holds, 0, estimate)?;
/// assert_eq!(answer.decision.remaining, 600);
/// let hold = answer.hold.unwrap();
///
/// // The answer took 250 tokens: 150 are free at once.
/// let used = HoldUse { units: 250, is_last: true };
/// let settled = limit.settle_hold(&mut state, &mut holds, 0, hold, used);
/// assert_eq!(settled.decision.remaining, 750);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Limit {
    /// Whether the limit's units are only ever held: true only for a concurrency limit. [Reserve](Self::reserve) its
    /// units. A check is denied and charges nothing; a peek answers for a reservation.
    pub const fn only_holds(&self) -> bool {
        matches!(self, Limit::Concurrency(_))
    }

    /// Returns the hold time of a reservation that gives none; `None` if the limit does not set it.
    pub const fn hold_for(&self) -> Option<HoldTime> {
        match self {
            Limit::Concurrency(limit) => Some(limit.hold_for()),
            _ => None,
        }
    }

    /// Returns an error if this limit cannot have holds.
    pub fn can_hold(&self) -> Result<(), HoldError> {
        if self.is_shaping() { Err(HoldError::Shaping) } else { Ok(()) }
    }

    /// Decides one request beside the holds of its key, and charges it if it is allowed.
    pub fn check_beside(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        request: UnitRequest,
    ) -> CheckResult {
        if holds.is_empty() {
            return self.check(state, now_us, request);
        }
        each!(self, limit => change(limit, state, now_us, |own| {
            held::check(limit, own, holds, now_us, request.cost)
        }))
    }

    /// Decides one request beside the holds of its key, and charges nothing.
    pub fn peek_beside(
        &self,
        state: &State,
        holds: &Holds,
        now_us: u64,
        request: UnitRequest,
    ) -> LimitDecision {
        if holds.is_empty() {
            return self.peek(state, now_us, request);
        }
        each!(self, limit => read(limit, state, now_us, |own| {
            held::peek(limit, own, holds, now_us, request.cost)
        }))
    }

    /// Decides a check beside the holds of its key, and charges nothing. A check of a limit whose units are only held is
    /// denied.
    pub(crate) fn peek_check_beside(
        &self,
        state: &State,
        holds: &Holds,
        now_us: u64,
        request: UnitRequest,
    ) -> LimitDecision {
        if holds.is_empty() {
            return self.peek_check(state, now_us, request);
        }
        each!(self, limit => read(limit, state, now_us, |own| {
            held::peek_check(limit, own, holds, now_us, request.cost)
        }))
    }

    /// Decides a check of a key without holds, and charges nothing. A check of a limit whose units are only held is
    /// denied.
    pub(crate) fn peek_check(
        &self,
        state: &State,
        now_us: u64,
        request: UnitRequest,
    ) -> LimitDecision {
        let decision = self.peek(state, now_us, request);
        match self.only_holds() {
            true => LimitDecision { verdict: Verdict::Denied { retry: Retry::Never }, ..decision },
            false => decision,
        }
    }

    /// Decides a reservation and holds nothing.
    pub fn peek_reserve(
        &self,
        state: &State,
        holds: &Holds,
        now_us: u64,
        cost: Cost,
    ) -> Result<LimitDecision, HoldError> {
        self.can_hold()?;
        Ok(self.peek_reserve_unchecked(state, holds, now_us, cost))
    }

    /// Does the same as [`peek_reserve`](Self::peek_reserve), for a limit that can have holds.
    pub(crate) fn peek_reserve_unchecked(
        &self,
        state: &State,
        holds: &Holds,
        now_us: u64,
        cost: Cost,
    ) -> LimitDecision {
        each!(self, limit => read(limit, state, now_us, |own| {
            held::peek_reserve(limit, own, holds, now_us, cost)
        }))
    }

    /// Sets units aside, if a check of them would be allowed.
    ///
    /// A key can have [`MAX_HOLDS`](crate::MAX_HOLDS) holds. One more is refused until the first of them expires.
    pub fn reserve(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        reservation: Reservation,
    ) -> Result<ReserveAnswer, HoldError> {
        self.can_hold()?;
        Ok(self.reserve_unchecked(state, holds, now_us, reservation))
    }

    /// Does the same as [`reserve`](Self::reserve), for a limit that can have holds.
    pub(crate) fn reserve_unchecked(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        reservation: Reservation,
    ) -> ReserveAnswer {
        each!(self, limit => change(limit, state, now_us, |own| {
            held::reserve(limit, own, holds, now_us, reservation)
        }))
    }

    /// Restarts the clock of a key with holds if `now_us` shows a new one, as every check does.
    pub fn restart_clock_beside(&self, state: &mut State, holds: &mut Holds, now_us: u64) {
        if holds.is_empty() {
            return self.restart_clock(state, now_us);
        }
        each!(self, limit => change(limit, state, now_us, |own| {
            held::restart_clock(limit, own, holds, now_us);
        }));
    }

    /// Charges the holds that have expired at `now_us`, as an operation that changes the key does first.
    pub fn charge_expired(&self, state: &mut State, holds: &mut Holds, now_us: u64) {
        if holds.is_empty() {
            return;
        }
        each!(self, limit => change(limit, state, now_us, |own| {
            held::charge_expired(limit, own, holds, now_us);
        }));
    }

    /// Charges the used units of a hold. The other units are free at once if the hold ends.
    ///
    /// Never refused. Units used beyond the hold are charged too, because they were consumed: the key is in debt, and
    /// requests are refused until it has drained. At most one whole limit is charged beyond a hold, so that no
    /// mistake locks a key for years.
    pub fn settle_hold(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        hold: HoldReference,
        used: HoldUse,
    ) -> SettleAnswer {
        each!(self, limit => change(limit, state, now_us, |own| {
            held::settle(limit, own, holds, now_us, hold, used)
        }))
    }

    /// Adds units to a hold if a check of them would be allowed, and moves its expiry.
    pub fn extend_hold(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        each!(self, limit => change(limit, state, now_us, |own| {
            held::extend(limit, own, holds, now_us, hold, growth)
        }))
    }

    /// Takes an extension back, because another hold of the same request could not be extended. The hold keeps a later
    /// expiry that was granted meanwhile. The answer has the expiry that the hold has now.
    pub fn take_back_extension(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        extended: GrantedExtension,
    ) -> ExtendAnswer {
        each!(self, limit => change(limit, state, now_us, |own| {
            held::take_back(limit, own, holds, now_us, extended)
        }))
    }

    /// Returns an error if this limit cannot be leased.
    pub fn can_lease(&self) -> Result<(), HoldError> {
        if self.only_holds() { Err(HoldError::OnlyHolds) } else { self.can_hold() }
    }

    /// Opens or renews a lease: units that a process takes without asking the store.
    ///
    /// The steps, in their order:
    ///
    /// 1. The units that were taken from the lease are charged, and the lease expires later.
    /// 2. The check that waits is decided beside all holds, and charged. If it is refused, the lease does not grow.
    /// 3. The lease grows by what the process wants, but by at most half of what remains, divided among the leases of
    ///    the key.
    ///
    /// If the lease to be renewed has ended, only the check is decided.
    ///
    /// ```
    /// use tollgate_core::{HoldId, HoldTime, Holds, LeaseRequest, LeaseState, Limit};
    ///
    /// let limit: Limit = "token-bucket capacity=1000 refill=1000/m".parse()?;
    /// let (mut state, mut holds) = (limit.fresh(), Holds::default());
    /// let open = LeaseRequest {
    ///     id: HoldId::of_lease(1),
    ///     expires_us: None,
    ///     used: 0,
    ///     need: None,
    ///     want: 100,
    ///     most: 250,
    ///     lease_for: HoldTime::from_us(1_000_000)?,
    /// };
    /// let answer = limit.lease(&mut state, &mut holds, 0, open)?;
    /// assert_eq!(answer.decision.remaining, 900);
    /// assert!(matches!(answer.lease, LeaseState::Open { unused: 100, lasts_us: 1_000_000, .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        request: LeaseRequest,
    ) -> Result<LeaseAnswer, HoldError> {
        self.can_lease()?;
        Ok(each!(self, limit => change(limit, state, now_us, |own| {
            leased::lease(limit, own, holds, now_us, request)
        })))
    }

    /// Gives back the part of a charge that still counts at `now_us`, beside the holds of the key. Returns by how
    /// much `remaining` grew.
    pub fn refund_beside(
        &self,
        state: &mut State,
        holds: &mut Holds,
        now_us: u64,
        receipt: ChargeReceipt,
    ) -> u64 {
        if holds.is_empty() {
            return self.refund(state, now_us, receipt);
        }
        each!(self, limit => change(limit, state, now_us, |own| {
            held::refund(limit, own, holds, now_us, receipt)
        }))
    }

    /// Moves a key with holds from the `old` limit to this one, as [`carry_over`](Self::carry_over) does. The holds
    /// stay as they are, even if more units are held than this limit's size.
    ///
    /// Under a shaping limit a key cannot have holds, so it stays under the old limit until they have ended.
    ///
    /// The limit that a key is under determines what happens to a hold that expires or is settled: a concurrency limit
    /// frees its units, any other limit charges them.
    pub fn carry_over_beside(
        &self,
        old: &Limit,
        mut state: State,
        holds: &mut Holds,
        now_us: u64,
        cost: Cost,
    ) -> CarryOver {
        if holds.is_empty() {
            return self.carry_over(old, state, now_us, cost);
        }
        let TakenUnits { taken, held, has_open } = each!(old, limit => {
            read(limit, &state, now_us, |own| held::taken_units(limit, own, holds, now_us))
        });
        if self.is_shaping() && old.only_holds() && has_open {
            // With this size the old limit has room for the request once nothing is held any more. If the request does
            // not fit this limit, the old limit never has room for it.
            let size = self.size().min(cost.units());
            return CarryOver::Stays { decides: old.with_size(size), state };
        }
        let spent = (taken - held).min(MAX_UNITS);
        let units = held.saturating_add(cost.units());
        if !self.takes_over(old, spent, units) {
            return CarryOver::Stays { decides: old.with_size(self.size()), state };
        }
        // If a key has far more units held than a slow bucket has capacity, they take longer to drain than can be
        // computed.
        let is_too_much = taken > each!(self, limit => limit.most_taken());
        if (self.is_shaping() && has_open) || is_too_much {
            return CarryOver::Stays { decides: old.with_size(self.size().min(old.size())), state };
        }
        let at_us = each!(old, limit => change(limit, &mut state, now_us, |own| {
            held::restart_clock(limit, own, holds, now_us);
            held::bring_up(limit, own, holds, now_us)
        }));
        CarryOver::Done(match self {
            Limit::Concurrency(_) if !holds.is_empty() => KeyClock { at_us }.into(),
            _ => self.carried(old, state, spent, now_us),
        })
    }
}
