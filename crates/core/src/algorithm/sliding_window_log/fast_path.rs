//! The fast path of a sliding window log: for logs of one to three units, and for longer logs.

use core::hint::select_unpredictable;

use super::SlidingWindowLog;
use super::log::{ChargeRun, Log, ThreeUnitLog};
use crate::algorithm::{FastPath, MAX_TIME_US};
use crate::decision::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, Verdict,
};

/// The most runs that the fast path removes. A refusal removes no runs, so without this bound every refusal could
/// scan the same thousands of runs.
const MAX_REMOVED_RUNS: usize = 64;

/// The methods of a [`SlidingWindowLog`] that a store uses in addition to [`FastPath`]: a fast path for logs of any
/// length, a fast path for refusals, and the memory that a charge needs.
pub trait LogFastPath: LogFastPathSeal {
    /// Returns the bytes by which a charge at `now_us` would make the log grow.
    fn growth_bytes(&self, log: &Log, now_us: u64, cost: Cost) -> usize;

    /// Does what [`FastPath::check_one`] does, for a log of any length.
    ///
    /// Also returns `None` if no charge of the log counts, if it has no memory for one more charge, or if more than
    /// 64 of its runs have left the window.
    fn check_one_in_log(&self, log: &mut Log, now_us: u64) -> Option<CheckResult>;

    /// Refuses a request for one unit on a log of one to three units, without changing the log. Returns `None` if the
    /// unit may fit, or if only [`Algorithm::check`](crate::Algorithm::check) can decide.
    fn refuse_one(&self, log: ThreeUnitLog, now_us: u64) -> Option<CheckResult>;
}

/// Keeps other crates from implementing [`LogFastPath`], so that methods can be added to it.
pub trait LogFastPathSeal {}

impl LogFastPathSeal for SlidingWindowLog {}

impl LogFastPath for SlidingWindowLog {
    fn growth_bytes(&self, log: &Log, now_us: u64, cost: Cost) -> usize {
        let at_us = now_us.min(MAX_TIME_US).max(log.head.charged_us);
        log.growth_bytes(log.first_counting(at_us, self.window_us), at_us, cost)
    }

    #[inline]
    fn check_one_in_log(&self, log: &mut Log, now_us: u64) -> Option<CheckResult> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let (head, runs) = log.parts_mut();
        let last = runs.len().checked_sub(1)?;
        let newest = runs[head.end.wrapping_sub(1) & last];
        let is_usual =
            (head.charged_us..=MAX_TIME_US).contains(&now_us) && !newest.is_at_or_before(left_us);
        if !is_usual || head.first == head.end {
            return None;
        }
        let mut first = head.first;
        let mut base = head.base;
        // Ends at the newest run at the latest, because that one still counts.
        while runs[first & last].is_at_or_before(left_us) {
            if first.wrapping_sub(head.first) == MAX_REMOVED_RUNS {
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
            runs[head.end & last] = ChargeRun::of_ones(now_us, newest.through + 1);
            head.end = head.end.wrapping_add(1);
            head.charged_us = now_us;
        }
        head.first = first;
        head.base = base;
        Some(self.charged_one(spent, now_us, oldest_us - left_us))
    }

    fn refuse_one(&self, ThreeUnitLog { at_us }: ThreeUnitLog, now_us: u64) -> Option<CheckResult> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let [newest_us, ..] = at_us;
        // The index of the charge that must leave before another unit fits.
        let last_to_leave = usize::try_from(self.limit.checked_sub(1)?).ok()?;
        let counted_us = *at_us.get(last_to_leave).filter(|&&at_us| at_us > left_us)?;
        if !(newest_us..=MAX_TIME_US).contains(&now_us) {
            return None;
        }
        let after_us = counted_us - left_us;
        let decision = LimitDecision {
            verdict: Verdict::Denied { retry: Retry::AfterUs(after_us) },
            limit: self.limit,
            remaining: 0,
            reset_after_us: newest_us - left_us,
            first_back_us: after_us,
        };
        Some(CheckResult { decision, receipt: None })
    }
}

impl FastPath for SlidingWindowLog {
    type FastState = ThreeUnitLog;

    #[inline(always)]
    fn check_one(&self, log: &mut ThreeUnitLog, now_us: u64) -> Option<CheckResult> {
        let left_us = now_us.checked_sub(self.window_us())?;
        let [newest_us, ..] = log.at_us;
        let spent = log.at_us.iter().map(|&at_us| u64::from(at_us > left_us)).sum();
        if !(newest_us..=MAX_TIME_US).contains(&now_us) || spent >= self.limit.min(3) {
            return None;
        }
        let [newest_us, earlier_us, _] =
            log.at_us.map(|at_us| if at_us > left_us { at_us } else { 0 });
        log.at_us = [now_us, newest_us, earlier_us];
        // Without branches, because which charges are left is unpredictable, and a wrong prediction waits for memory.
        let oldest_us = select_unpredictable(newest_us > 0, newest_us, now_us);
        let oldest_us = select_unpredictable(earlier_us > 0, earlier_us, oldest_us);
        Some(self.charged_one(spent, now_us, oldest_us - left_us))
    }
}

impl SlidingWindowLog {
    /// The result of a check that charged one unit after `spent` other units.
    #[inline(always)]
    fn charged_one(&self, spent: u64, now_us: u64, first_back_us: u64) -> CheckResult {
        let decision = LimitDecision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - spent - 1,
            reset_after_us: self.window_us(),
            first_back_us,
        };
        let place = ChargePlace::Entry { at_us: now_us };
        CheckResult { decision, receipt: Some(ChargeReceipt { cost: Cost::ONE, place }) }
    }
}
