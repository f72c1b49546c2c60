//! The time until more remains.

use super::Limit;
use crate::decision::LimitDecision;

impl LimitDecision {
    /// Returns how long until more remains than now, if nothing else arrives; `None` if nothing is spent.
    ///
    /// The time is never too short. It is exact, except that a bucket's time may be one microsecond late. `limit` is
    /// the limit that decided, or the limit that the request named; see [`Limit::in_place_of`].
    ///
    /// ```
    /// use tollgate_core::{Cost, Limit, UnitRequest};
    ///
    /// let limit: Limit = "sliding-window-log limit=5 window=1m".parse()?;
    /// let mut log = limit.fresh();
    /// limit.check(&mut log, 0, UnitRequest::new(Cost::ONE));
    /// let decision = limit.check(&mut log, 20_000_000, UnitRequest::new(Cost::ONE)).decision;
    /// assert_eq!(decision.more_after_us(&limit), Some(40_000_000)); // the first leaves at 60 s
    /// assert_eq!(decision.reset_after_us, 60_000_000); // and the second at 80 s
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn more_after_us(&self, limit: &Limit) -> Option<u64> {
        let others = self.limit.checked_sub(self.remaining)?.checked_sub(1)?;
        if self.first_back_us > 0 {
            return Some(self.first_back_us);
        }
        let first_us = self.reset_after_us.saturating_sub(limit.come_back_at_last_us(others));
        // At least 1. The difference is 0 for a remembered refusal that is older than this wait: more remains by now,
        // and the next check finds it.
        Some(first_us.max(1))
    }
}

impl Limit {
    /// Completes a decision on a request to the limit `requested` that this limit made in its place, because the key
    /// still [stays](crate::CarryOver::Stays) under this limit, its old one.
    ///
    /// The client knows only `requested`. If computing from `requested` would give another time until more remains, the
    /// returned decision has the correct time in `first_back_us`.
    pub fn in_place_of(&self, requested: &Limit, decision: LimitDecision) -> LimitDecision {
        match decision.more_after_us(self) {
            Some(first_back_us) if decision.more_after_us(requested) != Some(first_back_us) => {
                LimitDecision { first_back_us, ..decision }
            }
            _ => decision,
        }
    }

    /// Returns how long the last `units` of a bucket take to come back, rounded down; 0 for a window or a log, whose
    /// units do not come back one by one.
    fn come_back_at_last_us(&self, units: u64) -> u64 {
        self.bucket().map_or(0, |bucket| bucket.time_for_us(units))
    }
}
