//! What every algorithm does, and the flow they share.
//!
//! An algorithm says how a key stands at an instant, whether a request fits, and what charging it
//! changes. [`Algorithm::check`] and [`Algorithm::peek`] put those together the same way for all.

mod bucket;
mod fixed_window;
mod leaky_bucket;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

use core::fmt::Debug;

pub use bucket::{Bucket, BucketKind, Fill, FillStanding, Level};
pub use fixed_window::{FixedWindow, Window, WindowStanding};
pub use leaky_bucket::{LeakyBucket, Mode};
pub use sliding_window_counter::{SlidingWindowCounter, Windows, WindowsStanding};
pub use sliding_window_log::{Entry, Log, LogStanding, SlidingWindowLog};
pub use token_bucket::TokenBucket;

use crate::decision::{Ask, Checked, Cost, Decision, Receipt, Retry, Verdict};

/// A key's time holds still this long when the caller's clock steps back; a larger step is a new clock.
pub const MAX_STEP_BACK_US: u64 = 10_000_000;

/// The last instant there is: 2^53 - 1 microseconds, in the year 2255. Later times count as this one.
pub const MAX_TIME_US: u64 = (1 << 53) - 1;

/// One rate-limiting algorithm with its numbers, deciding on a key's state.
///
/// Pure: the same state, time and request give the same answer. [`Limit`](crate::Limit) has the
/// same methods for an algorithm chosen at run time; use this trait where it is known.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Window};
///
/// let limit = FixedWindow::new(2, Duration::from_secs(60))?;
/// let mut state = Window::default();
/// let ask = Ask::new(Cost::ONE);
/// assert_eq!(limit.check(&mut state, 59_000_000, ask).decision.remaining, 1);
/// assert_eq!(limit.check(&mut state, 59_000_000, ask).decision.remaining, 0);
/// let refused = limit.check(&mut state, 59_000_000, ask).decision;
/// assert_eq!(refused.retry_after_us(), Some(1_000_000));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub trait Algorithm: Debug {
    /// What is kept for each key; its default is a key that has spent nothing.
    type State: Clone + Debug + Default + PartialEq;

    /// How a key stands at one instant: its state brought up to that time.
    type Standing: Copy + Debug;

    /// The limit's size: the most one request can ever cost.
    fn size(&self) -> u64;

    /// The time this key's clock may not run behind (P6): its last charge, or the start of the
    /// window last charged.
    fn floor_us(&self, state: &Self::State) -> u64;

    /// Moves the state to a new clock that now shows `now_us`: what was spent stays spent.
    fn restart(&self, state: &mut Self::State, now_us: u64);

    /// How the key stands at `now_us`, or at its floor if that is later.
    fn standing(&self, state: &Self::State, now_us: u64) -> Self::Standing;

    /// Whether a request that costs at most [`size`](Self::size) fits.
    fn verdict(&self, state: &Self::State, standing: &Self::Standing, ask: Ask) -> Verdict;

    /// Charges a request that fits; returns how the key stands then.
    fn charge(
        &self,
        state: &mut Self::State,
        standing: Self::Standing,
        cost: Cost,
    ) -> (Self::Standing, Receipt);

    /// The largest cost that fits (P1).
    fn remaining(&self, standing: &Self::Standing, ask: Ask) -> u64;

    /// How many requests like this one fit, one after the other, at this instant.
    fn fits(&self, standing: &Self::Standing, ask: Ask) -> u64 {
        self.remaining(standing, ask) / ask.cost.units()
    }

    /// The time until nothing is spent any more (P3).
    fn reset_after_us(&self, standing: &Self::Standing) -> u64;

    /// Gives back what of a charge still counts at `now_us`; returns the whole units given back.
    fn refund(&self, state: &mut Self::State, now_us: u64, receipt: Receipt) -> u64;

    /// The interval an operator thinks in: the window, or the time a spent bucket takes to be whole.
    fn interval_us(&self) -> u64;

    /// The most units this limit admits in any `interval_us` consecutive microseconds (P11), on a
    /// clock that does not step back and a store that loses nothing. 0 for an empty interval.
    fn bound_units(&self, interval_us: u64) -> u64;

    /// How [`bound_units`](Self::bound_units) comes about, with t the interval in microseconds.
    fn bound_formula(&self) -> &'static str;

    /// The state under these numbers of a key that reached `state` under `old` ones.
    ///
    /// What was spent stays spent as far as it fits: it is taken to have been spent as late as it
    /// can have been. The result never has more remaining than a fresh key.
    fn carry_over(&self, old: &Self, state: Self::State, now_us: u64) -> Self::State;

    /// The state of a key that has just spent `units`, at most [`size`](Self::size), and nothing before.
    fn after_spending(&self, units: u64, now_us: u64) -> Self::State;

    /// Restarts the state's time if `now_us` shows a new clock: more than [`MAX_STEP_BACK_US`]
    /// behind its floor. Every check does this first, refused or not, so that nobody is locked out.
    fn settle(&self, state: &mut Self::State, now_us: u64) {
        let now_us = now_us.min(MAX_TIME_US);
        if is_new_clock(self, state, now_us) {
            self.restart(state, now_us);
        }
    }

    /// Decides one request and charges it if it is allowed.
    #[inline]
    fn check(&self, state: &mut Self::State, now_us: u64, ask: Ask) -> Checked {
        let now_us = now_us.min(MAX_TIME_US);
        self.settle(state, now_us);
        let standing = self.standing(state, now_us);
        let verdict = verdict(self, state, &standing, ask);
        if !verdict.is_allowed() {
            return Checked { decision: decision(self, verdict, &standing, ask), receipt: None };
        }
        let (charged, receipt) = self.charge(state, standing, ask.cost);
        Checked { decision: decision(self, verdict, &charged, ask), receipt: Some(receipt) }
    }

    /// Decides one request and charges nothing: `remaining` and `reset_after_us` are those before it.
    fn peek(&self, state: &Self::State, now_us: u64, ask: Ask) -> Decision {
        look(self, state, now_us, |state, standing| {
            decision(self, verdict(self, state, standing, ask), standing, ask)
        })
    }

    /// How many requests like this one fit, one after the other, at `now_us`.
    fn fits_at(&self, state: &Self::State, now_us: u64, ask: Ask) -> u64 {
        look(self, state, now_us, |_, standing| self.fits(standing, ask))
    }
}

/// Looks at a key without changing it; a new clock restarts a copy.
fn look<A: Algorithm + ?Sized, T>(
    limit: &A,
    state: &A::State,
    now_us: u64,
    read: impl FnOnce(&A::State, &A::Standing) -> T,
) -> T {
    let now_us = now_us.min(MAX_TIME_US);
    if is_new_clock(limit, state, now_us) {
        let mut restarted = state.clone();
        limit.restart(&mut restarted, now_us);
        return read(&restarted, &limit.standing(&restarted, now_us));
    }
    read(state, &limit.standing(state, now_us))
}

#[inline]
fn is_new_clock<A: Algorithm + ?Sized>(limit: &A, state: &A::State, now_us: u64) -> bool {
    limit.floor_us(state).saturating_sub(now_us) > MAX_STEP_BACK_US
}

#[inline]
fn verdict<A: Algorithm + ?Sized>(
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
fn decision<A: Algorithm + ?Sized>(
    limit: &A,
    verdict: Verdict,
    standing: &A::Standing,
    ask: Ask,
) -> Decision {
    Decision {
        verdict,
        limit: limit.size(),
        remaining: limit.remaining(standing, ask),
        reset_after_us: limit.reset_after_us(standing),
    }
}
