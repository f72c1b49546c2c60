//! What an algorithm is made of: how a key stands at an instant, whether a request fits, and what
//! charging it changes. [`Algorithm::check`] and [`Algorithm::peek`] put these together the same way
//! for all. They hold only together, so nobody outside can call or implement them.

use core::fmt::Debug;

use super::{Algorithm, MAX_STEP_BACK_US, MAX_TIME_US};
use crate::decision::{Ask, Cost, Decision, Place, Receipt, Retry, Verdict};

/// Sealed: public for the sake of [`Algorithm`], and not to be named outside.
#[allow(unreachable_pub)]
pub trait Decide: Debug {
    /// What is kept for each key; its default is a key that has spent nothing.
    type State: Clone + Debug + Default + PartialEq;

    /// How a key stands at one instant: its state brought up to that time.
    type Standing: Copy + Debug;

    /// The time this key's clock may not run behind (P6): its last charge, or the start of the
    /// window last charged.
    fn floor_us(&self, state: &Self::State) -> u64;

    /// Whether `now_us` is so far behind that it must be another clock's.
    #[inline]
    fn is_new_clock(&self, state: &Self::State, now_us: u64) -> bool {
        self.floor_us(state) > now_us.saturating_add(MAX_STEP_BACK_US)
    }

    /// Moves the state to a new clock that now shows `now_us`: what was spent stays spent.
    fn restart(&self, state: &mut Self::State, now_us: u64);

    /// How the key stands at `now_us`, or at its floor if that is later.
    fn standing(&self, state: &Self::State, now_us: u64) -> Self::Standing;

    /// Whether a request that costs at most [`Algorithm::size`] fits.
    fn verdict(&self, state: &Self::State, standing: &Self::Standing, ask: Ask) -> Verdict;

    /// Charges a request that fits; returns how the key stands then.
    fn charge(
        &self,
        state: &mut Self::State,
        standing: Self::Standing,
        cost: Cost,
    ) -> Self::Standing;

    /// Where in the state the charge is that led to this standing, all of which is over at `over_us`.
    fn place(&self, standing: &Self::Standing, over_us: u64) -> Place;

    /// Takes off what of a charge still counts at `now_us`.
    fn give_back(&self, state: &mut Self::State, now_us: u64, receipt: Receipt);

    /// The whole units that are spent; a size that was lowered may be less.
    fn spent(&self, standing: &Self::Standing) -> u64;

    /// The largest cost that fits (P1).
    fn remaining(&self, standing: &Self::Standing, ask: Ask) -> u64;

    /// How many requests like this one fit, one after the other, at this instant.
    fn fitting(&self, standing: &Self::Standing, ask: Ask) -> u64 {
        self.remaining(standing, ask) / ask.cost.units()
    }

    /// The time until nothing is spent any more (P3).
    fn reset_after_us(&self, standing: &Self::Standing) -> u64;

    /// The time until more remains, if `reset_after_us` does not tell; otherwise 0.
    #[inline]
    fn first_back_us(&self, _: &Self::State, _: &Self::Standing, _: Ask) -> u64 {
        0
    }
}

/// Looks at a key without changing it; a new clock restarts a copy.
#[inline]
pub(super) fn look<A: Algorithm + ?Sized, T>(
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
    // One way out, as in a check.
    read(state, &limit.standing(state, now_us))
}

/// The verdict on a request of any cost.
#[inline]
pub(super) fn verdict<A: Algorithm + ?Sized>(
    limit: &A,
    state: &A::State,
    standing: &A::Standing,
    ask: Ask,
) -> Verdict {
    if ask.cost.units() > limit.size() {
        return Verdict::Denied { retry: Retry::Never };
    }
    limit.verdict(state, standing, ask)
}

#[inline]
pub(super) fn decision<A: Algorithm + ?Sized>(
    limit: &A,
    verdict: Verdict,
    state: &A::State,
    standing: &A::Standing,
    ask: Ask,
) -> Decision {
    Decision {
        verdict,
        limit: limit.size(),
        remaining: limit.remaining(standing, ask),
        reset_after_us: limit.reset_after_us(standing),
        first_back_us: limit.first_back_us(state, standing, ask),
    }
}
