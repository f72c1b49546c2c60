//! The steps of an algorithm: a key's standing at an instant, whether a request fits, and what charging
//! it changes. [`Algorithm::check`] and [`Algorithm::peek`] combine the steps in the same way for every
//! algorithm. The steps are correct only in that combination, so other crates can neither call nor
//! implement them.

use core::fmt::Debug;

use super::{Algorithm, MAX_STEP_BACK_US, MAX_TIME_US};
use crate::decision::{
    ChargePlace, ChargeReceipt, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};

/// Sealed: public because [`Algorithm`] requires it, but other crates cannot name it.
#[allow(unreachable_pub)]
pub trait Decide: Debug {
    /// A key's stored state. The default is the state of a key that has spent nothing.
    type State: Clone + Debug + Default + PartialEq;

    /// A key's state brought up to one instant.
    type Standing: Copy + Debug;

    /// The earliest time that this key's clock may show (P6): the time of its last charge, or the start of the
    /// window last charged.
    fn floor_us(&self, state: &Self::State) -> u64;

    /// Whether `now_us` is so far behind the floor that it must be from another clock.
    #[inline]
    fn is_new_clock(&self, state: &Self::State, now_us: u64) -> bool {
        self.floor_us(state) > now_us.saturating_add(MAX_STEP_BACK_US)
    }

    /// Moves the state to a new clock that now shows `now_us`: what was spent stays spent.
    fn restart(&self, state: &mut Self::State, now_us: u64);

    /// The key's standing at `now_us`, or at its floor if the floor is later.
    fn standing(&self, state: &Self::State, now_us: u64) -> Self::Standing;

    /// Whether a request that costs at most [`Algorithm::size`] fits.
    fn verdict(
        &self,
        state: &Self::State,
        standing: &Self::Standing,
        request: UnitRequest,
    ) -> Verdict;

    /// Charges a request that fits. Returns the key's standing after it.
    fn charge(
        &self,
        state: &mut Self::State,
        standing: Self::Standing,
        cost: Cost,
    ) -> Self::Standing;

    /// Returns the place of the charge that led to this standing. `over_us` is the time from which nothing is spent any
    /// more.
    fn place(&self, standing: &Self::Standing, over_us: u64) -> ChargePlace;

    /// Removes the part of a charge that still counts at `now_us`.
    fn give_back(&self, state: &mut Self::State, now_us: u64, receipt: ChargeReceipt);

    /// The whole units that are spent: possibly more than the size, if that was lowered.
    fn spent(&self, standing: &Self::Standing) -> u64;

    /// The largest cost that fits (P1).
    fn remaining(&self, standing: &Self::Standing, request: UnitRequest) -> u64;

    /// The number of requests like this one that fit, one after the other, at this instant.
    fn fitting(&self, standing: &Self::Standing, request: UnitRequest) -> u64 {
        self.remaining(standing, request) / request.cost.units()
    }

    /// The time until nothing is spent any more (P3).
    fn reset_after_us(&self, standing: &Self::Standing) -> u64;

    /// The time until more remains, if it cannot be computed from `reset_after_us`; otherwise 0.
    #[inline]
    fn first_back_us(&self, _: &Self::State, _: &Self::Standing, _: UnitRequest) -> u64 {
        0
    }
}

/// Reads a key's standing without changing its state. On a new clock it restarts a copy.
#[inline]
pub(super) fn read_standing<A: Algorithm + ?Sized, T>(
    limit: &A,
    state: &A::State,
    now_us: u64,
    read: impl FnOnce(&A::State, &A::Standing) -> T,
) -> T {
    let now_us = now_us.min(MAX_TIME_US);
    let mut restarted;
    let mut state = state;
    if limit.is_new_clock(state, now_us) {
        restarted = state.clone();
        limit.restart(&mut restarted, now_us);
        state = &restarted;
    }
    // A single return, as in `Algorithm::check`.
    read(state, &limit.standing(state, now_us))
}

/// The verdict on a request of any cost.
#[inline]
pub(super) fn verdict<A: Algorithm + ?Sized>(
    limit: &A,
    state: &A::State,
    standing: &A::Standing,
    request: UnitRequest,
) -> Verdict {
    if request.cost.units() > limit.size() {
        return Verdict::Denied { retry: Retry::Never };
    }
    limit.verdict(state, standing, request)
}

#[inline]
pub(super) fn decision<A: Algorithm + ?Sized>(
    limit: &A,
    verdict: Verdict,
    state: &A::State,
    standing: &A::Standing,
    request: UnitRequest,
) -> LimitDecision {
    LimitDecision {
        verdict,
        limit: limit.size(),
        remaining: limit.remaining(standing, request),
        reset_after_us: limit.reset_after_us(standing),
        first_back_us: limit.first_back_us(state, standing, request),
    }
}
