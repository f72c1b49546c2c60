//! How a store keeps a log: in three numbers if they suffice, and within a memory budget.

use core::iter;

use super::{ChargeRun, FEW, Head, Log, LogCells};
use crate::algorithm::MAX_TIME_US;

/// A [`Log`] of at most one charge, as three numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OneChargeLog {
    /// When the log was last charged, also if that charge was refunded.
    pub charged_us: u64,
    /// When the charge that is kept was made.
    pub at_us: u64,
    /// The units that the charge spent; 0 if no charge is kept.
    pub units: u64,
}

impl From<OneChargeLog> for Log {
    fn from(OneChargeLog { charged_us, at_us, units }: OneChargeLog) -> Log {
        let mut runs = [ChargeRun::default(); FEW];
        runs[0] = ChargeRun::new(at_us, units, units);
        let charged_us = charged_us.min(MAX_TIME_US);
        let head = Head { first: 0, end: usize::from(units > 0), base: 0, charged_us };
        Log { head, runs: LogCells::Few(runs) }
    }
}

/// A [`Log`] of one to three charges of one unit each: the times of the charges, the latest first, then zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreeUnitLog {
    /// The first is also the time at which the log was last charged.
    pub at_us: [u64; 3],
}

impl From<ThreeUnitLog> for Log {
    fn from(ThreeUnitLog { at_us: [newest_us, earlier_us, oldest_us] }: ThreeUnitLog) -> Log {
        let missing = u8::from(earlier_us == 0) + u8::from(oldest_us == 0);
        let head =
            Head { first: missing.into(), end: 3, base: missing.into(), charged_us: newest_us };
        let run = |at_us, through| ChargeRun::new(at_us, 1, through);
        let runs = [run(oldest_us, 1), run(earlier_us, 2), run(newest_us, 3), ChargeRun::default()];
        Log { head, runs: LogCells::Few(runs) }
    }
}

/// A value that identifies a [`Log`]'s content at one time; see [`LogStorage::stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStamp {
    head: Head,
    through: u64,
}

/// The methods that a store needs to keep a [`Log`]: they convert it to three numbers, count its bytes, and merge charges
/// if there is no memory for more.
pub trait LogStorage: LogStorageSeal {
    /// Returns the log as one charge; `None` if the log has more than one charge.
    fn as_one_charge(&self) -> Option<OneChargeLog>;

    /// Returns the log as the times of its charges; `None` unless it has one to three charges of one unit each, at
    /// times above 0, and the last charge was not refunded.
    fn as_three_units(&self) -> Option<ThreeUnitLog>;

    /// Returns the log as one charge of all its units, at the time of the newest charge.
    ///
    /// Conservative: every unit counts at least as long as before.
    fn coarsened(&self) -> OneChargeLog;

    /// Returns a value that changes with every charge, refund or new clock, and does not change otherwise.
    fn stamp(&self) -> LogStamp;

    /// Returns the bytes the log has allocated on the heap, used or not.
    fn heap_bytes(&self) -> usize;

    /// Returns whether the log has no memory for another charge until older charges leave.
    fn is_full(&self) -> bool;

    /// Allocates memory for one more charge if the log is full.
    fn reserve_one(&mut self);

    /// Frees memory for one charge within the log by merging the two newest charges, at the later time. Returns
    /// `false` if there are fewer than two.
    ///
    /// Conservative: the older charge's units then count as long as the newer charge's.
    fn coarsen(&mut self) -> bool;

    /// Removes every charge but keeps the memory allocated.
    fn clear(&mut self);

    /// Copies another log into this one's memory, or replaces this one if its memory is too small.
    fn refill(&mut self, other: Log);
}

/// Keeps other crates from implementing [`LogStorage`], so that methods can be added to it.
pub trait LogStorageSeal {}

impl LogStorageSeal for Log {}

impl LogStorage for Log {
    fn as_one_charge(&self) -> Option<OneChargeLog> {
        let is_brief = match self.count() {
            0 => true,
            1 => self.units() == 1 || self.newest().is_some_and(|run| !run.is_of_ones()),
            _ => false,
        };
        is_brief.then(|| self.coarsened())
    }

    fn as_three_units(&self) -> Option<ThreeUnitLog> {
        let is_few = (1..=3).contains(&self.units()) && self.runs().all(ChargeRun::is_of_ones);
        if !is_few {
            return None;
        }
        let at_us = self
            .entries(0)
            .fold([0; 3], |[newest, earlier, _], entry| [entry.at_us, newest, earlier]);
        let oldest_us = self.run(0).map_or(0, ChargeRun::at_us);
        (at_us[0] == self.head.charged_us && oldest_us > 0).then_some(ThreeUnitLog { at_us })
    }

    #[inline]
    fn coarsened(&self) -> OneChargeLog {
        let at_us = self.newest().map_or(0, ChargeRun::at_us);
        OneChargeLog { charged_us: self.head.charged_us, at_us, units: self.units() }
    }

    #[inline]
    fn stamp(&self) -> LogStamp {
        LogStamp { head: self.head, through: self.through() }
    }

    fn heap_bytes(&self) -> usize {
        match &self.runs {
            LogCells::Few(_) => 0,
            LogCells::Many(cells) => size_of_val(&**cells),
        }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.count() == self.runs.cells().len()
    }

    #[inline]
    fn reserve_one(&mut self) {
        if self.is_full() {
            self.grow();
        }
    }

    fn coarsen(&mut self) -> bool {
        let Some(earlier) = self.count().checked_sub(2) else { return false };
        let ChargeRun { mark, through } = self.run(earlier + 1).unwrap_or_default();
        // Marked as one charge of several units; a run of single units would count as several charges.
        *self.cell_mut(earlier) = ChargeRun { mark: mark & !1, through };
        self.head.end = self.head.end.wrapping_sub(1);
        true
    }

    fn clear(&mut self) {
        self.head = Head::default();
    }

    fn refill(&mut self, other: Log) {
        if self.runs.cells().len() < other.count() {
            *self = other;
            return;
        }
        self.head = Head { first: 0, end: other.count(), ..other.head };
        for (cell, run) in iter::zip(self.runs.cells_mut(), other.runs()) {
            *cell = run;
        }
    }
}
