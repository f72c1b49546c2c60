//! What every algorithm does; one file each. `decide` is what they are made of.

mod bucket;
mod decide;
mod fast_path;
mod fixed_window;
mod leaky_bucket;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

pub(crate) use bucket::{Bucket, BucketKind};
pub use bucket::{Fill, Level};
pub use fast_path::FastPath;
pub use fixed_window::{FixedWindow, Window};
pub use leaky_bucket::{LeakyBucket, Mode};
pub use sliding_window_counter::{SlidingWindowCounter, WindowPair};
pub use sliding_window_log::{
    BriefLog, Entry, FewLog, Log, LogFastPath, LogStamp, LogStorage, SlidingWindowLog,
};
pub use token_bucket::TokenBucket;

pub(crate) use decide::Decide;

use crate::decision::{Ask, Checked, Decision, Receipt};

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
pub trait Algorithm: Decide {
    /// The limit's size, its `limit` or `capacity`: the most one request can ever cost.
    fn size(&self) -> u64;

    /// Gives back what of a charge still counts at `now_us`; returns how much more remains then.
    ///
    /// Never more than if the request had not been made; see [`Limit::refund`](crate::Limit::refund).
    fn refund(&self, state: &mut Self::State, now_us: u64, receipt: Receipt) -> u64 {
        let now_us = now_us.min(MAX_TIME_US);
        let ask = Ask::new(receipt.cost());
        let remaining = |state: &Self::State| {
            decide::look(self, state, now_us, |_, standing| self.remaining(standing, ask))
        };
        let before = remaining(state);
        self.give_back(state, now_us, receipt);
        remaining(state).saturating_sub(before)
    }

    /// The interval an operator thinks in: the window, or the time a spent bucket takes to be whole.
    fn interval_us(&self) -> u64;

    /// The most units this limit admits in any `interval_us` consecutive microseconds (P11), on a
    /// clock that does not step back and a store that loses nothing. 0 for an empty interval.
    fn bound_units(&self, interval_us: u64) -> u64;

    /// How [`bound_units`](Self::bound_units) comes about, with t the interval in microseconds.
    fn bound_formula(&self) -> &'static str;

    /// The state under these numbers of a key that reached `state` under `old` ones.
    ///
    /// What was spent stays spent: it is taken to have been spent as late as it can have been. A
    /// bucket's must fit. The result never has more remaining than a fresh key. A state that was
    /// reached under other numbers has to pass through this; without, waits need not be exact.
    fn carry_over(&self, old: &Self, state: Self::State, now_us: u64) -> Self::State;

    /// The state of a key that has just spent `units`, in a bucket at most [`size`](Self::size), and
    /// nothing before.
    fn after_spending(&self, units: u64, now_us: u64) -> Self::State;

    /// The whole units that a key has spent at `now_us`; a size that was lowered may be less.
    fn spent_at(&self, state: &Self::State, now_us: u64) -> u64 {
        decide::look(self, state, now_us, |_, standing| self.spent(standing))
    }

    /// The same with another size, also one that no limit could be made with: to decide by.
    #[must_use]
    fn with_size(&self, size: u64) -> Self
    where
        Self: Sized;

    /// Restarts the state's time if `now_us` shows a new clock: more than [`MAX_STEP_BACK_US`]
    /// behind the last charge. Every check does this first, refused or not, so that nobody is
    /// locked out.
    fn settle(&self, state: &mut Self::State, now_us: u64) {
        let now_us = now_us.min(MAX_TIME_US);
        if self.is_new_clock(state, now_us) {
            self.restart(state, now_us);
        }
    }

    /// Decides one request and charges it if it is allowed.
    // Always: copying a decision out of a call's result waits 4 ns for its words to be written.
    #[inline(always)]
    fn check(&self, state: &mut Self::State, now_us: u64, ask: Ask) -> Checked {
        let now_us = now_us.min(MAX_TIME_US);
        self.settle(state, now_us);
        let standing = self.standing(state, now_us);
        let verdict = decide::verdict(self, state, &standing, ask);
        // One way out: two would meet again in memory, at 25 instructions more.
        let is_allowed = verdict.is_allowed();
        let standing = if is_allowed { self.charge(state, standing, ask.cost) } else { standing };
        let decision = decide::decision(self, verdict, state, &standing, ask);
        let over_us = now_us.saturating_add(decision.reset_after_us);
        let receipt = Receipt { cost: ask.cost, place: self.place(&standing, over_us) };
        Checked { decision, receipt: is_allowed.then_some(receipt) }
    }

    /// Decides one request and charges nothing: `remaining` and `reset_after_us` are those before it.
    fn peek(&self, state: &Self::State, now_us: u64, ask: Ask) -> Decision {
        decide::look(self, state, now_us, |state, standing| {
            let verdict = decide::verdict(self, state, standing, ask);
            decide::decision(self, verdict, state, standing, ask)
        })
    }

    /// How many requests like this one fit, one after the other, at `now_us`.
    fn fits(&self, state: &Self::State, now_us: u64, ask: Ask) -> u64 {
        decide::look(self, state, now_us, |_, standing| self.fitting(standing, ask))
    }
}
