//! Sliding window counter: two counters approximate the log.

use core::num::NonZeroU64;
use core::time::Duration;

use super::fixed_window::{latest_in_window_us, left_in_window_us, window_start_us};
use super::{Algorithm, BesideHolds, Decide, FastPath};
use crate::decision::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};
use crate::muldiv::muldiv;
use crate::parameter::{LimitError, limit_units, window_us};
use crate::range::MAX_UNITS;

/// At most `limit` units in an estimate of the last window's units: the units of the current window, and
/// a share of the previous window's units, in proportion to the part of that window that is still in view.
///
/// With 100 per minute, 80 in the previous minute and 50 in this one, 30 s into it the estimate is
/// 50 + 80 / 2 = 90.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowCounter {
    limit: u64,
    window_us: NonZeroU64,
}

impl SlidingWindowCounter {
    /// At most `limit` units in the estimate of the last `window`.
    pub fn new(limit: u64, window: Duration) -> Result<SlidingWindowCounter, LimitError> {
        Ok(SlidingWindowCounter {
            limit: limit_units("limit", limit)?,
            window_us: window_us(window)?,
        })
    }

    /// The most units that the estimate may reach.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    pub const fn window_us(&self) -> u64 {
        self.window_us.get()
    }
}

/// A sliding window counter's state: the window last charged, and the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WindowPair {
    /// When the window last charged began.
    pub start_us: u64,
    /// The units charged in that window.
    pub current: u64,
    /// The units charged in the window before it.
    pub previous: u64,
}

impl WindowPair {
    /// The two windows that count at `at_us`, a time not before `start_us`.
    #[inline]
    fn rolled_to(self, at_us: u64, window_us: NonZeroU64) -> WindowPair {
        // The common case for a busy key. Finding another window takes a division.
        if at_us - self.start_us < window_us.get() {
            return self;
        }
        let start_us = window_start_us(at_us, window_us);
        let is_next = start_us == self.start_us.saturating_add(window_us.get());
        WindowPair { start_us, current: 0, previous: if is_next { self.current } else { 0 } }
    }
}

/// A [`WindowPair`] at an instant of its key's time, with the caller's time for waits.
#[derive(Clone, Copy, Debug)]
pub struct WindowPairStanding {
    windows: WindowPair,
    /// The whole units of the previous window that are still in view.
    in_view: u64,
    /// The part of one more unit that is in view, in parts of the window.
    in_view_part: u64,
    now_us: u64,
}

impl Decide for SlidingWindowCounter {
    type State = WindowPair;
    type Standing = WindowPairStanding;

    #[inline]
    fn floor_us(&self, windows: &WindowPair) -> u64 {
        windows.start_us
    }

    fn restart(&self, windows: &mut WindowPair, now_us: u64) {
        windows.start_us = window_start_us(now_us, self.window_us);
    }

    #[inline]
    fn standing(&self, windows: &WindowPair, now_us: u64) -> WindowPairStanding {
        let at_us = now_us.max(windows.start_us);
        let windows = windows.rolled_to(at_us, self.window_us);
        // OK because `at_us` is inside the window rolled to.
        let in_view_us = self.window_us() - (at_us - windows.start_us);
        let (in_view, in_view_part) = muldiv(windows.previous, in_view_us, self.window_us);
        WindowPairStanding { windows, in_view, in_view_part, now_us }
    }

    #[inline]
    fn verdict(
        &self,
        _: &WindowPair,
        standing: &WindowPairStanding,
        request: UnitRequest,
    ) -> Verdict {
        if request.cost.units() <= self.remaining(standing, request) {
            return Verdict::Allowed { delay_us: 0 };
        }
        // OK because no request above the limit gets here.
        let most = self.limit - request.cost.units();
        Verdict::Denied { retry: Retry::AfterUs(self.falls_to_after_us(standing, most)) }
    }

    #[inline]
    fn charge(
        &self,
        windows: &mut WindowPair,
        mut standing: WindowPairStanding,
        cost: Cost,
    ) -> WindowPairStanding {
        standing.windows.current += cost.units();
        *windows = standing.windows;
        standing
    }

    #[inline]
    fn place(&self, standing: &WindowPairStanding, _: u64) -> ChargePlace {
        ChargePlace::Window { start_us: standing.windows.start_us, window_us: self.window_us() }
    }

    #[inline]
    fn spent(&self, standing: &WindowPairStanding) -> u64 {
        standing.estimate()
    }

    #[inline]
    fn remaining(&self, standing: &WindowPairStanding, _: UnitRequest) -> u64 {
        // Saturates when the limit was lowered below what is spent.
        self.limit.saturating_sub(standing.estimate())
    }

    #[inline]
    fn reset_after_us(&self, standing: &WindowPairStanding) -> u64 {
        if standing.estimate() == 0 { 0 } else { self.falls_to_after_us(standing, 0) }
    }

    #[inline]
    fn first_back_us(&self, _: &WindowPair, standing: &WindowPairStanding, _: UnitRequest) -> u64 {
        let WindowPair { start_us, current, previous } = standing.windows;
        if standing.estimate() > self.limit {
            return self.falls_to_limit_after_us(*standing);
        }
        let then_us = match NonZeroU64::new(previous) {
            // More remains when the part of a unit has left the view. That part shrinks by `previous` each microsecond.
            Some(previous) if standing.in_view > 0 => {
                let at_us = standing.now_us.max(start_us);
                at_us.saturating_add(standing.in_view_part / previous)
            }
            // One microsecond into the next window, when the current window begins to leave the view.
            _ if current > 0 => start_us.saturating_add(self.window_us()),
            _ => return 0,
        };
        // OK because that time is not before now.
        then_us - standing.now_us + 1
    }

    fn give_back(&self, windows: &mut WindowPair, now_us: u64, receipt: ChargeReceipt) {
        let ChargePlace::Window { start_us, window_us } = receipt.place else { return };
        let end_us = start_us.saturating_add(window_us);
        let is_out_of_view = now_us >= end_us.saturating_add(window_us);
        if is_out_of_view || window_us != self.window_us() {
            return;
        }
        let spent = if start_us == windows.start_us {
            &mut windows.current
        } else if end_us == windows.start_us {
            &mut windows.previous
        } else {
            return;
        };
        *spent = spent.saturating_sub(receipt.cost.units());
    }
}

impl FastPath for SlidingWindowCounter {
    type FastState = WindowPair;

    /// Decides if `now_us` is in the window last charged and all products fit 64 bits.
    #[inline(always)]
    fn check_one(&self, windows: &mut WindowPair, now_us: u64) -> Option<CheckResult> {
        let WindowPair { start_us, current, previous } = *windows;
        let in_view_us = left_in_window_us(start_us, self.window_us, now_us)?;
        let (in_view, in_view_part) = match previous.checked_mul(in_view_us)? {
            0 => (0, 0),
            parts => (parts / self.window_us, parts % self.window_us),
        };
        let estimate = current.checked_add(in_view)?;
        if estimate >= self.limit {
            return None;
        }
        let after = current + 1;
        *windows = WindowPair { start_us, current: after, previous };
        let first_back_us = match NonZeroU64::new(previous) {
            Some(previous) if in_view > 0 => in_view_part / previous,
            _ => in_view_us,
        };
        let decision = LimitDecision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - estimate - 1,
            // Nothing is spent when, in the next window, less than one whole unit of this window is still in view.
            reset_after_us: in_view_us + self.window_us() - (self.window_us() - 1) / after,
            first_back_us: first_back_us + 1,
        };
        let place = ChargePlace::Window { start_us, window_us: self.window_us() };
        Some(CheckResult { decision, receipt: Some(ChargeReceipt { cost: Cost::ONE, place }) })
    }
}

impl Algorithm for SlidingWindowCounter {
    #[inline]
    fn size(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn interval_us(&self) -> u64 {
        self.window_us()
    }

    /// A full burst at the last microsecond of a window after an idle one, and from then on the units that
    /// leave the estimate.
    fn bound_units(&self, interval_us: u64) -> u64 {
        if interval_us == 0 {
            return 0;
        }
        let (whole, part) = muldiv(self.limit, interval_us.saturating_sub(2), self.window_us);
        self.limit.saturating_add(whole).saturating_add(u64::from(part > 0))
    }

    fn bound_formula(&self) -> &'static str {
        "limit + ceil(limit * (t - 2) / window)"
    }

    fn with_size(&self, size: u64) -> Self {
        SlidingWindowCounter { limit: size, ..*self }
    }

    fn after_spending(&self, units: u64, now_us: u64) -> WindowPair {
        WindowPair {
            start_us: window_start_us(now_us, self.window_us),
            current: units,
            previous: 0,
        }
    }

    fn carry_over(
        &self,
        old: &SlidingWindowCounter,
        windows: WindowPair,
        now_us: u64,
    ) -> WindowPair {
        let WindowPair { start_us, current, previous } = windows;
        let latest_us = latest_in_window_us(start_us, old.window_us, now_us);
        let carried = self.after_spending(current, latest_us);
        let Some(previous_end_us) = start_us.checked_sub(1) else { return carried };
        let previous_start_us = window_start_us(previous_end_us, self.window_us);
        if previous_start_us == carried.start_us {
            WindowPair { current: current.saturating_add(previous).min(MAX_UNITS), ..carried }
        } else if previous_start_us.saturating_add(self.window_us()) == carried.start_us {
            WindowPair { previous, ..carried }
        } else {
            carried
        }
    }
}

impl WindowPairStanding {
    /// The whole units of the estimate.
    #[inline]
    fn estimate(&self) -> u64 {
        self.windows.current.saturating_add(self.in_view)
    }
}

impl SlidingWindowCounter {
    /// The exact wait until the estimate's whole units are at most `most`; they are above it now.
    ///
    /// The weight of the previous window's units falls with time. If the current window's units alone are
    /// above `most`, the wait ends in the next window, where they are the previous window's.
    #[inline]
    fn falls_to_after_us(&self, standing: &WindowPairStanding, most: u64) -> u64 {
        let WindowPair { start_us, current, previous } = standing.windows;
        let end_us = start_us.saturating_add(self.window_us());
        let then_us = match most.checked_sub(current) {
            Some(most_previous) => end_us - self.in_view_at_most_us(previous, most_previous),
            None => {
                let next_end_us = end_us.saturating_add(self.window_us());
                next_end_us - self.in_view_at_most_us(current, most)
            }
        };
        then_us.saturating_sub(standing.now_us)
    }

    /// The wait until something remains of a limit that was lowered below what is spent.
    // By value: with a reference, every check would keep the standing in memory, which takes 10 instructions more.
    #[cold]
    #[inline(never)]
    fn falls_to_limit_after_us(&self, standing: WindowPairStanding) -> u64 {
        self.falls_to_after_us(&standing, self.limit - 1)
    }

    /// The longest part of a window with `spent` units that can be in view while at most `most` whole
    /// units of it are in view: the greatest v with `spent * v < (most + 1) * window`.
    #[inline]
    fn in_view_at_most_us(&self, spent: u64, most: u64) -> u64 {
        let Some(spent) = NonZeroU64::new(spent) else { return self.window_us() };
        let (whole, part) = muldiv(most.saturating_add(1), self.window_us(), spent);
        if part == 0 { whole.saturating_sub(1) } else { whole }.min(self.window_us())
    }
}

impl BesideHolds for SlidingWindowCounter {
    fn store_standing(&self, windows: &mut WindowPair, now_us: u64) {
        *windows = self.standing(windows, now_us).windows;
    }

    fn lease_ends_us(&self, at_us: u64) -> u64 {
        window_start_us(at_us, self.window_us).saturating_add(self.window_us() - 1)
    }
}
