//! The algorithms, one file each, and the trait that they share. `decide` has the steps of a decision.

mod bucket;
mod concurrency;
mod decide;
mod fast_path;
mod fixed_window;
pub(crate) mod held;
mod leaky_bucket;
pub(crate) mod leased;
mod sliding_window_counter;
mod sliding_window_log;
mod token_bucket;

pub(crate) use bucket::{Bucket, BucketKind};
pub use bucket::{Fill, Level};
pub use concurrency::{Concurrency, KeyClock};
pub use fast_path::FastPath;
pub use fixed_window::{FixedWindow, Window};
pub use leaky_bucket::{LeakyBucket, Mode};
pub use sliding_window_counter::{SlidingWindowCounter, WindowPair};
pub use sliding_window_log::{
    Entry, Log, LogFastPath, LogStamp, LogStorage, OneChargeLog, SlidingWindowLog, ThreeUnitLog,
};
pub use token_bucket::TokenBucket;

pub(crate) use decide::Decide;
pub(crate) use held::BesideHolds;

use crate::decision::{ChargeReceipt, CheckResult, LimitDecision, UnitRequest};

/// The largest step back of the caller's clock that counts as the same clock: the key's time then stays the same until
/// the clock has caught up. A larger step back counts as a new clock.
pub const MAX_STEP_BACK_US: u64 = 10_000_000;

/// The latest time: 2^53 - 1 microseconds, in the year 2255. Later times count as this one.
pub const MAX_TIME_US: u64 = (1 << 53) - 1;

/// One rate-limiting algorithm with its numbers, deciding on a key's state.
///
/// Pure: the same state, time and request give the same answer. [`Limit`](crate::Limit) has the
/// same methods for an algorithm chosen at run time; use this trait where the algorithm is known at compile time.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Algorithm, Cost, FixedWindow, UnitRequest, Window};
///
/// let limit = FixedWindow::new(2, Duration::from_secs(60))?;
/// let mut state = Window::default();
/// let request = UnitRequest::new(Cost::ONE);
/// assert_eq!(limit.check(&mut state, 59_000_000, request).decision.remaining, 1);
/// assert_eq!(limit.check(&mut state, 59_000_000, request).decision.remaining, 0);
/// let refused = limit.check(&mut state, 59_000_000, request).decision;
/// assert_eq!(refused.retry_after_us(), Some(1_000_000));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub trait Algorithm: Decide {
    /// The limit's size, its `limit` or `capacity`: the most one request can ever cost.
    fn size(&self) -> u64;

    /// Gives back the part of a charge that still counts at `now_us`. Returns by how much `remaining` grew.
    ///
    /// Afterwards no more remains than if the request had not been made; see
    /// [`Limit::refund`](crate::Limit::refund).
    fn refund(&self, state: &mut Self::State, now_us: u64, receipt: ChargeReceipt) -> u64 {
        let now_us = now_us.min(MAX_TIME_US);
        let request = UnitRequest::new(receipt.cost());
        let remaining = |state: &Self::State| {
            decide::read_standing(self, state, now_us, |_, standing| {
                self.remaining(standing, request)
            })
        };
        let before = remaining(state);
        self.give_back(state, now_us, receipt);
        remaining(state).saturating_sub(before)
    }

    /// The interval for which an operator states the limit: the window, or the time in which a bucket that is all
    /// spent comes back.
    fn interval_us(&self) -> u64;

    /// The most units this limit admits in any `interval_us` consecutive microseconds (P11), on a
    /// clock that does not step back and a store that loses nothing. 0 for an empty interval.
    fn bound_units(&self, interval_us: u64) -> u64;

    /// The formula of [`bound_units`](Self::bound_units), with t the interval in microseconds.
    fn bound_formula(&self) -> &'static str;

    /// Converts a state that a key reached under the `old` numbers to these numbers.
    ///
    /// Spent units stay spent. Where the state does not say when they were spent, they count as spent at the latest
    /// time that is possible. A bucket's level at `now_us` must be at most the capacity of `self`. Afterwards no more
    /// remains than for a fresh key. Convert every state that was reached under other numbers; otherwise waits may be
    /// inexact.
    fn carry_over(&self, old: &Self, state: Self::State, now_us: u64) -> Self::State;

    /// The state of a key that has spent `units` at `now_us`, and nothing before. For a bucket, `units` must be at
    /// most [`size`](Self::size).
    fn after_spending(&self, units: u64, now_us: u64) -> Self::State;

    /// The whole units that a key has spent at `now_us`: possibly more than the size, if that was lowered.
    fn spent_at(&self, state: &Self::State, now_us: u64) -> u64 {
        decide::read_standing(self, state, now_us, |_, standing| self.spent(standing))
    }

    /// Returns the same algorithm with another size. The size may be out of the range that the constructor accepts.
    #[must_use]
    fn with_size(&self, size: u64) -> Self
    where
        Self: Sized;

    /// Restarts the state's clock if `now_us` shows a new one: one that is more than
    /// [`MAX_STEP_BACK_US`] behind the last charge. Every check does this first, also a check that
    /// refuses, so that a new clock never locks a key out.
    fn restart_clock(&self, state: &mut Self::State, now_us: u64) {
        let now_us = now_us.min(MAX_TIME_US);
        if self.is_new_clock(state, now_us) {
            self.restart(state, now_us);
        }
    }

    /// Decides one request and charges it if it is allowed.
    // Always inlined: copying the decision out of a call's result waits 4 ns for its words to be written.
    #[inline(always)]
    fn check(&self, state: &mut Self::State, now_us: u64, request: UnitRequest) -> CheckResult {
        let now_us = now_us.min(MAX_TIME_US);
        self.restart_clock(state, now_us);
        let standing = self.standing(state, now_us);
        let verdict = decide::verdict(self, state, &standing, request);
        // A single return: with two, the compiler merges the results in memory, which costs 25 instructions.
        let is_allowed = verdict.is_allowed();
        let standing =
            if is_allowed { self.charge(state, standing, request.cost) } else { standing };
        let decision = decide::decision(self, verdict, state, &standing, request);
        let over_us = now_us.saturating_add(decision.reset_after_us);
        let receipt = ChargeReceipt { cost: request.cost, place: self.place(&standing, over_us) };
        CheckResult { decision, receipt: is_allowed.then_some(receipt) }
    }

    /// Decides one request and charges nothing: `remaining` and `reset_after_us` are the values before it.
    fn peek(&self, state: &Self::State, now_us: u64, request: UnitRequest) -> LimitDecision {
        decide::read_standing(self, state, now_us, |state, standing| {
            let verdict = decide::verdict(self, state, standing, request);
            decide::decision(self, verdict, state, standing, request)
        })
    }

    /// Returns how many requests like this one fit at `now_us`, one after the other.
    fn fits(&self, state: &Self::State, now_us: u64, request: UnitRequest) -> u64 {
        decide::read_standing(self, state, now_us, |_, standing| self.fitting(standing, request))
    }
}
