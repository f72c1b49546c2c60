//! Sliding window log: every charge, for exactly one window.

mod fast_path;
mod log;

use core::num::NonZeroU64;
use core::time::Duration;

use super::{Algorithm, BesideHolds, Decide, MAX_TIME_US};
use crate::decision::{ChargePlace, ChargeReceipt, Cost, Retry, UnitRequest, Verdict};
use crate::holds::{OpenHold, units_of};
use crate::parameter::{LimitError, log_units, window_us};
use crate::range::MAX_LOG_UNITS;
pub use fast_path::LogFastPath;
use log::ChargeRun;
pub use log::{Entry, Log, LogStamp, LogStorage, OneChargeLog, ThreeUnitLog};

/// At most `limit` units in any window, wherever it begins.
///
/// A charge at t counts until exactly t + window. Exact, at no more than 16 bytes a charge; for more than
/// 65,536 units use [`SlidingWindowCounter`](super::SlidingWindowCounter).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowLog {
    limit: u64,
    window_us: NonZeroU64,
}

impl SlidingWindowLog {
    /// At most `limit` units in any `window`.
    pub fn new(limit: u64, window: Duration) -> Result<SlidingWindowLog, LimitError> {
        Ok(SlidingWindowLog { limit: log_units(limit)?, window_us: window_us(window)? })
    }

    /// The units that any window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    pub const fn window_us(&self) -> u64 {
        self.window_us.get()
    }

    /// The charges that count at `now_us`, oldest first: an audit trail.
    pub fn entries<'l>(&self, log: &'l Log, now_us: u64) -> impl Iterator<Item = Entry> + use<'l> {
        let at_us = now_us.min(MAX_TIME_US).max(log.head.charged_us);
        let counting = log.first_counting(at_us, self.window_us);
        log.entries(counting)
    }
}

/// A [`Log`] at an instant of its key's time, with the caller's time for waits.
#[derive(Clone, Copy, Debug)]
pub struct LogStanding {
    /// The index of the oldest run that counts.
    counting: usize,
    spent: u64,
    newest_us: u64,
    at_us: u64,
    now_us: u64,
}

impl Decide for SlidingWindowLog {
    type State = Log;
    type Standing = LogStanding;

    #[inline]
    fn floor_us(&self, log: &Log) -> u64 {
        log.head.charged_us
    }

    fn restart(&self, log: &mut Log, now_us: u64) {
        log.move_back(log.head.charged_us.saturating_sub(now_us));
        log.head.charged_us = now_us;
    }

    #[inline]
    fn standing(&self, log: &Log, now_us: u64) -> LogStanding {
        let newest_us = log.newest().map_or(0, ChargeRun::at_us);
        let at_us = now_us.max(log.head.charged_us);
        let counting = log.first_counting(at_us, self.window_us);
        let spent = log.through() - log.before(counting);
        LogStanding { counting, spent, newest_us, at_us, now_us }
    }

    #[inline]
    fn verdict(&self, log: &Log, standing: &LogStanding, request: UnitRequest) -> Verdict {
        let cost = request.cost.units();
        if cost <= self.remaining(standing, request) {
            return Verdict::Allowed { delay_us: 0 };
        }
        // OK because no cost above the limit gets here, and this one does not fit.
        let most = self.limit - cost;
        Verdict::Denied { retry: Retry::AfterUs(self.falls_to_after_us(log, *standing, most)) }
    }

    fn charge(&self, log: &mut Log, mut standing: LogStanding, cost: Cost) -> LogStanding {
        log.forget(standing.counting);
        let at_us = standing.at_us;
        log.push(at_us, cost);
        log.head.charged_us = at_us;
        standing.counting = 0;
        standing.spent += cost.units();
        standing.newest_us = at_us;
        standing
    }

    #[inline]
    fn place(&self, standing: &LogStanding, _: u64) -> ChargePlace {
        ChargePlace::Entry { at_us: standing.newest_us }
    }

    #[inline]
    fn spent(&self, standing: &LogStanding) -> u64 {
        standing.spent
    }

    #[inline]
    fn remaining(&self, standing: &LogStanding, _: UnitRequest) -> u64 {
        // Saturates when the limit was lowered below what is spent.
        self.limit.saturating_sub(standing.spent)
    }

    #[inline]
    fn reset_after_us(&self, standing: &LogStanding) -> u64 {
        if standing.spent == 0 { 0 } else { self.leaves_after_us(standing.newest_us, standing) }
    }

    /// When the oldest charge leaves; if the limit was lowered below what is spent, when enough have left.
    #[inline]
    fn first_back_us(&self, log: &Log, standing: &LogStanding, _: UnitRequest) -> u64 {
        match standing.spent {
            0 => 0,
            spent if spent > self.limit => self.falls_to_after_us(log, *standing, self.limit - 1),
            _ => {
                let oldest_us = log.run(standing.counting).map_or(0, ChargeRun::at_us);
                self.leaves_after_us(oldest_us, standing)
            }
        }
    }

    /// Charges of the same time and cost are interchangeable: removes any of them.
    fn give_back(&self, log: &mut Log, now_us: u64, receipt: ChargeReceipt) {
        let ChargePlace::Entry { at_us } = receipt.place else { return };
        let counting = log.first_counting(now_us.max(log.head.charged_us), self.window_us);
        let first = log.first_without(|run| run.at_us() < at_us).max(counting);
        let charge = Entry { at_us, cost: receipt.cost };
        let found = (first..log.count())
            .map(|index| (index, log.charges(index).0))
            .take_while(|(_, entry)| entry.at_us == at_us)
            .find_map(|(index, entry)| (entry == charge).then_some(index));
        if let Some(index) = found {
            log.remove(index, receipt.cost);
        }
    }
}

impl Algorithm for SlidingWindowLog {
    #[inline]
    fn size(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn interval_us(&self) -> u64 {
        self.window_us()
    }

    /// A full burst every window, the first at once.
    fn bound_units(&self, interval_us: u64) -> u64 {
        self.limit.saturating_mul(interval_us.div_ceil(self.window_us.get()))
    }

    fn bound_formula(&self) -> &'static str {
        "limit * ceil(t / window)"
    }

    fn with_size(&self, size: u64) -> Self {
        SlidingWindowLog { limit: size, ..*self }
    }

    fn after_spending(&self, units: u64, now_us: u64) -> Log {
        OneChargeLog { charged_us: now_us, at_us: now_us, units }.into()
    }

    /// Charges keep their times. The new window decides which of them count.
    fn carry_over(&self, _: &SlidingWindowLog, log: Log, _: u64) -> Log {
        log
    }
}

impl SlidingWindowLog {
    /// The wait until at most `most` units count; more than `most` count now.
    fn falls_to_after_us(&self, log: &Log, standing: LogStanding, most: u64) -> u64 {
        let must_leave = standing.spent - most;
        let left = log.before(standing.counting) + must_leave;
        let last_to_leave = log.first_without(|run| run.through < left);
        let at_us = log.run(last_to_leave).map_or(standing.newest_us, ChargeRun::at_us);
        self.leaves_after_us(at_us, &standing)
    }

    /// The time until a charge leaves the window. Counted from the caller's time, so that the wait is correct even
    /// after the clock has stepped back.
    #[inline]
    fn leaves_after_us(&self, charged_us: u64, standing: &LogStanding) -> u64 {
        charged_us.saturating_add(self.window_us()).saturating_sub(standing.now_us)
    }
}

/// Computes waits without a copy of the log. That is correct because a hold expires after every charge in the log, and
/// its charge leaves one window after the expiry: the log's own charges leave first, and then the holds in order.
impl BesideHolds for SlidingWindowLog {
    const MOST_UNITS: u64 = MAX_LOG_UNITS;

    fn store_standing(&self, log: &mut Log, now_us: u64) {
        let standing = self.standing(log, now_us);
        log.forget(standing.counting);
        log.head.charged_us = standing.at_us;
    }

    fn spent_with(&self, log: &Log, expired: &[OpenHold], at_us: u64) -> u64 {
        let counts = |hold: &&OpenHold| self.leaves_at_us(hold.expires_us) > at_us;
        let units: u64 = expired.iter().filter(counts).map(|hold| hold.units).sum();
        self.standing(log, at_us).spent.saturating_add(units)
    }

    fn when_taken_at_most_us(
        &self,
        log: &Log,
        (expired, open): (&[OpenHold], &[OpenHold]),
        at_us: u64,
        most: u64,
    ) -> u64 {
        let own = self.standing(log, at_us).spent;
        let taken = self.spent_with(log, expired, at_us).saturating_add(units_of(open));
        let mut must_leave = taken.saturating_sub(most);
        if let Some(most_own) = own.checked_sub(must_leave) {
            return self.when_spent_at_most_us(log, at_us, most_own);
        }
        must_leave -= own;
        let leaving = expired.iter().chain(open);
        let leaving = leaving.map(|hold| (self.leaves_at_us(hold.expires_us), hold.units));
        for (leaves_us, units) in leaving.filter(|(leaves_us, _)| *leaves_us > at_us) {
            must_leave = must_leave.saturating_sub(units);
            if must_leave == 0 {
                return leaves_us;
            }
        }
        at_us
    }
}

impl SlidingWindowLog {
    /// When a charge made at `charged_us` leaves the window.
    fn leaves_at_us(&self, charged_us: u64) -> u64 {
        charged_us.saturating_add(self.window_us())
    }
}
