//! When more remains.

use super::Limit;
use crate::decision::Decision;

impl Decision {
    /// How long until more remains than now, nothing else arriving; `None` if all of it remains.
    ///
    /// Never too early: exact, but that a bucket's may be a microsecond late. `limit` is the one that
    /// decided, or that was asked for; see [`Limit::in_place_of`].
    ///
    /// ```
    /// use tollgate_core::{Ask, Cost, Limit};
    ///
    /// let limit: Limit = "sliding-window-log limit=5 window=1m".parse()?;
    /// let mut log = limit.fresh();
    /// limit.check(&mut log, 0, Ask::new(Cost::ONE));
    /// let decision = limit.check(&mut log, 20_000_000, Ask::new(Cost::ONE)).decision;
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
        // A refusal that is remembered may be older than that: more remains, as one finds who asks again.
        Some(first_us.max(1))
    }
}

impl Limit {
    /// Its decision, in place of the limit that was asked for: as while a key
    /// [stays](crate::CarryOver::Stays).
    ///
    /// Who is told knows only the limit asked for. If by that one more would seem to remain at another
    /// time than it does, the decision itself says when.
    pub fn in_place_of(&self, asked: &Limit, decision: Decision) -> Decision {
        match decision.more_after_us(self) {
            Some(first_back_us) if decision.more_after_us(asked) != Some(first_back_us) => {
                Decision { first_back_us, ..decision }
            }
            _ => decision,
        }
    }

    /// Of the time in which all that is spent comes back, what the last `units` of it take, rounded down:
    /// none unless they come back one by one.
    fn come_back_at_last_us(&self, units: u64) -> u64 {
        self.bucket().map_or(0, |bucket| bucket.time_for_us(units))
    }
}
