//! Fixed window: a counter that starts again at every window.

use core::num::NonZeroU64;
use core::time::Duration;

use super::{Algorithm, BesideHolds, Decide, FastPath, MAX_TIME_US};
use crate::decision::{
    ChargePlace, ChargeReceipt, CheckResult, Cost, LimitDecision, Retry, UnitRequest, Verdict,
};
use crate::parameter::{LimitError, limit_units, window_us};

/// At most `limit` units in each window; windows are aligned to the Unix epoch.
///
/// With 100 per minute, 100 at 0:59 and 100 more at 1:00 all pass: twice the limit in two seconds
/// is the algorithm's known flaw. Its advantage is that clients know when the window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    window_us: NonZeroU64,
}

impl FixedWindow {
    /// At most `limit` units in each `window`.
    pub fn new(limit: u64, window: Duration) -> Result<FixedWindow, LimitError> {
        Ok(FixedWindow { limit: limit_units("limit", limit)?, window_us: window_us(window)? })
    }

    /// The units that each window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    pub const fn window_us(&self) -> u64 {
        self.window_us.get()
    }
}

/// A fixed window's state: the window last charged, and what was charged in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// When the window last charged began.
    pub start_us: u64,
    /// The units charged in that window.
    pub spent: u64,
}

/// A [`Window`] at an instant of its key's time, with the caller's time for waits.
#[derive(Clone, Copy, Debug)]
pub struct WindowStanding {
    window: Window,
    now_us: u64,
}

impl Decide for FixedWindow {
    type State = Window;
    type Standing = WindowStanding;

    #[inline]
    fn floor_us(&self, window: &Window) -> u64 {
        window.start_us
    }

    fn restart(&self, window: &mut Window, now_us: u64) {
        window.start_us = window_start_us(now_us, self.window_us);
    }

    #[inline]
    fn standing(&self, window: &Window, now_us: u64) -> WindowStanding {
        let at_us = now_us.max(window.start_us);
        // The common case for a busy key: still the same window. Finding another window takes a division.
        if at_us - window.start_us < self.window_us() {
            return WindowStanding { window: *window, now_us };
        }
        let start_us = window_start_us(at_us, self.window_us);
        WindowStanding { window: Window { start_us, spent: 0 }, now_us }
    }

    #[inline]
    fn verdict(&self, _: &Window, standing: &WindowStanding, request: UnitRequest) -> Verdict {
        if request.cost.units() <= self.remaining(standing, request) {
            return Verdict::Allowed { delay_us: 0 };
        }
        Verdict::Denied { retry: Retry::AfterUs(self.ends_after_us(standing)) }
    }

    #[inline]
    fn charge(
        &self,
        window: &mut Window,
        mut standing: WindowStanding,
        cost: Cost,
    ) -> WindowStanding {
        standing.window.spent += cost.units();
        *window = standing.window;
        standing
    }

    #[inline]
    fn place(&self, standing: &WindowStanding, _: u64) -> ChargePlace {
        self.place_in(&standing.window)
    }

    #[inline]
    fn spent(&self, standing: &WindowStanding) -> u64 {
        standing.window.spent
    }

    #[inline]
    fn remaining(&self, standing: &WindowStanding, _: UnitRequest) -> u64 {
        // Saturates when the limit was lowered below what is spent.
        self.limit.saturating_sub(standing.window.spent)
    }

    #[inline]
    fn reset_after_us(&self, standing: &WindowStanding) -> u64 {
        if standing.window.spent == 0 { 0 } else { self.ends_after_us(standing) }
    }

    fn give_back(&self, window: &mut Window, now_us: u64, receipt: ChargeReceipt) {
        let has_ended = now_us >= window.start_us.saturating_add(self.window_us());
        if !has_ended && receipt.place == self.place_in(window) {
            window.spent = window.spent.saturating_sub(receipt.cost.units());
        }
    }
}

impl FastPath for FixedWindow {
    type FastState = Window;

    /// Decides if `now_us` is in the window last charged.
    #[inline(always)]
    fn check_one(&self, window: &mut Window, now_us: u64) -> Option<CheckResult> {
        let left_us = left_in_window_us(window.start_us, self.window_us, now_us)?;
        if window.spent >= self.limit {
            return None;
        }
        window.spent += 1;
        let decision = LimitDecision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - window.spent,
            reset_after_us: left_us,
            first_back_us: 0,
        };
        let receipt = ChargeReceipt { cost: Cost::ONE, place: self.place_in(window) };
        Some(CheckResult { decision, receipt: Some(receipt) })
    }
}

impl Algorithm for FixedWindow {
    #[inline]
    fn size(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn interval_us(&self) -> u64 {
        self.window_us()
    }

    /// A full burst at the last microsecond of one window, and another in each following window that the interval
    /// reaches.
    fn bound_units(&self, interval_us: u64) -> u64 {
        let Some(rest_us) = interval_us.checked_sub(1) else { return 0 };
        self.limit.saturating_mul(rest_us.div_ceil(self.window_us.get()) + 1)
    }

    fn bound_formula(&self) -> &'static str {
        "limit * (ceil((t - 1) / window) + 1)"
    }

    fn with_size(&self, size: u64) -> Self {
        FixedWindow { limit: size, ..*self }
    }

    fn after_spending(&self, units: u64, now_us: u64) -> Window {
        Window { start_us: window_start_us(now_us, self.window_us), spent: units }
    }

    fn carry_over(&self, old: &FixedWindow, window: Window, now_us: u64) -> Window {
        let latest_us = latest_in_window_us(window.start_us, old.window_us, now_us);
        self.after_spending(window.spent, latest_us)
    }
}

impl FixedWindow {
    #[inline]
    fn place_in(&self, window: &Window) -> ChargePlace {
        ChargePlace::Window { start_us: window.start_us, window_us: self.window_us() }
    }

    /// The time until the window ends. Counted from the caller's time, so that the wait is correct even after the clock
    /// has stepped back.
    #[inline]
    fn ends_after_us(&self, standing: &WindowStanding) -> u64 {
        let end_us = standing.window.start_us.saturating_add(self.window_us());
        end_us.saturating_sub(standing.now_us)
    }
}

/// The start of the window that holds `at_us`.
#[inline]
pub(super) fn window_start_us(at_us: u64, window_us: NonZeroU64) -> u64 {
    at_us - at_us % window_us
}

/// Returns the time left in the window that starts at `start_us`; `None` if `now_us` is outside the window or above
/// [`MAX_TIME_US`].
#[inline(always)]
pub(super) fn left_in_window_us(start_us: u64, window_us: NonZeroU64, now_us: u64) -> Option<u64> {
    if now_us > MAX_TIME_US {
        return None;
    }
    let elapsed_us = now_us.checked_sub(start_us)?;
    if elapsed_us >= window_us.get() {
        return None;
    }
    Some(window_us.get() - elapsed_us)
}

/// The latest time at which a charge in the window starting at `start_us` can have been made.
pub(super) fn latest_in_window_us(start_us: u64, window_us: NonZeroU64, now_us: u64) -> u64 {
    // If the clock stepped back, `now_us` may be before the start. The key's time is then the start.
    now_us.clamp(start_us, start_us.saturating_add(window_us.get() - 1))
}

impl BesideHolds for FixedWindow {
    fn store_standing(&self, window: &mut Window, now_us: u64) {
        *window = self.standing(window, now_us).window;
    }

    fn lease_ends_us(&self, at_us: u64) -> u64 {
        window_start_us(at_us, self.window_us).saturating_add(self.window_us() - 1)
    }
}
