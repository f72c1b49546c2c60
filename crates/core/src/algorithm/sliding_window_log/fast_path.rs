//! The fast path of a sliding window log, for logs of a few charges and for longer ones.

use core::hint::select_unpredictable;

use super::SlidingWindowLog;
use super::log::{FewLog, Log, Run};
use crate::algorithm::{FastPath, MAX_TIME_US};
use crate::decision::{Checked, Cost, Decision, Place, Receipt, Retry, Verdict};

/// The most runs that the fast path removes. A refusal removes none, so without this bound every refusal could walk
/// past the same thousands of runs.
const MOST_LEAVING: usize = 64;

/// The methods of a [`SlidingWindowLog`] that a store uses in addition to [`FastPath`]: a fast path for logs of any
/// length, a fast path for refusals, and the memory that a charge needs.
pub trait LogFastPath: Sealed {
    /// Returns the bytes by which a charge at `now_us` would make the log grow.
    fn growth_bytes(&self, log: &Log, now_us: u64, cost: Cost) -> usize;

    /// Does what [`FastPath::check_one`] does, for a log of any length.
    ///
    /// Also returns `None` if no charge of the log counts, if it has no memory for one more charge, or if more than
    /// 64 of its runs have left the window.
    fn check_one_more(&self, log: &mut Log, now_us: u64) -> Option<Checked>;

    /// Refuses one unit by a log of a few charges, without changing it. Returns `None` if the unit may fit, and where
    /// deciding takes more steps.
    fn refuse_one(&self, few: FewLog, now_us: u64) -> Option<Checked>;
}

/// Lets the trait gain methods: no other crate can implement it.
pub trait Sealed {}

impl Sealed for SlidingWindowLog {}

impl LogFastPath for SlidingWindowLog {
    fn growth_bytes(&self, log: &Log, now_us: u64, cost: Cost) -> usize {
        let at_us = now_us.min(MAX_TIME_US).max(log.head.charged_us);
        log.growth_bytes(log.first_counting(at_us, self.window_us), at_us, cost)
    }

    #[inline]
    fn check_one_more(&self, log: &mut Log, now_us: u64) -> Option<Checked> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let (head, runs) = log.parts_mut();
        let last = runs.len().checked_sub(1)?;
        let newest = runs[head.end.wrapping_sub(1) & last];
        let is_usual = (head.charged_us..=MAX_TIME_US).contains(&now_us) && !newest.is_by(left_us);
        if !is_usual || head.first == head.end {
            return None;
        }
        let mut first = head.first;
        let mut base = head.base;
        // Ends at the newest run at the latest, because that one still counts.
        while runs[first & last].is_by(left_us) {
            if first.wrapping_sub(head.first) == MOST_LEAVING {
                return None;
            }
            base = runs[first & last].through;
            first = first.wrapping_add(1);
        }
        let spent = newest.through - base;
        if spent >= self.limit {
            return None;
        }
        let oldest_us = runs[first & last].at_us();
        if newest.is_of_ones_at(now_us) {
            runs[head.end.wrapping_sub(1) & last].through += 1;
        } else {
            if head.end.wrapping_sub(first) > last {
                return None;
            }
            runs[head.end & last] = Run::of_ones(now_us, newest.through + 1);
            head.end = head.end.wrapping_add(1);
            head.charged_us = now_us;
        }
        head.first = first;
        head.base = base;
        Some(self.charged_one(spent, now_us, oldest_us - left_us))
    }

    fn refuse_one(&self, FewLog { at_us }: FewLog, now_us: u64) -> Option<Checked> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let [newest_us, ..] = at_us;
        // The charge that must leave for one more to fit; `None` below if the log has fewer charges.
        let last_to_leave = usize::try_from(self.limit.checked_sub(1)?).ok()?;
        let counted_us = *at_us.get(last_to_leave).filter(|&&at_us| at_us > left_us)?;
        if !(newest_us..=MAX_TIME_US).contains(&now_us) {
            return None;
        }
        let after_us = counted_us - left_us;
        let decision = Decision {
            verdict: Verdict::Denied { retry: Retry::AfterUs(after_us) },
            limit: self.limit,
            remaining: 0,
            reset_after_us: newest_us - left_us,
            first_back_us: after_us,
        };
        Some(Checked { decision, receipt: None })
    }
}

impl FastPath for SlidingWindowLog {
    type Usual = FewLog;

    #[inline(always)]
    fn check_one(&self, few: &mut FewLog, now_us: u64) -> Option<Checked> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let [newest_us, ..] = few.at_us;
        let spent = few.at_us.iter().map(|&at_us| u64::from(at_us > left_us)).sum();
        if !(newest_us..=MAX_TIME_US).contains(&now_us) || spent >= self.limit.min(3) {
            return None;
        }
        let [newest_us, earlier_us, _] =
            few.at_us.map(|at_us| if at_us > left_us { at_us } else { 0 });
        few.at_us = [now_us, newest_us, earlier_us];
        // Not branches: which charges are left is unpredictable, and a wrong prediction waits for memory.
        let oldest_us = select_unpredictable(newest_us > 0, newest_us, now_us);
        let oldest_us = select_unpredictable(earlier_us > 0, earlier_us, oldest_us);
        Some(self.charged_one(spent, now_us, oldest_us - left_us))
    }
}

impl SlidingWindowLog {
    /// The answer to one unit that was charged after `spent` others.
    #[inline(always)]
    fn charged_one(&self, spent: u64, now_us: u64, first_back_us: u64) -> Checked {
        let decision = Decision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - spent - 1,
            reset_after_us: self.window_us(),
            first_back_us,
        };
        let place = Place::Entry { at_us: now_us };
        Checked { decision, receipt: Some(Receipt { cost: Cost::ONE, place }) }
    }
}
