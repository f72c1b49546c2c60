//! A sliding window log's state: the charges that may still count.

mod storage;

use alloc::boxed::Box;
use alloc::vec;
use core::iter;
use core::num::NonZeroU64;

use super::super::MAX_TIME_US;
use crate::decision::Cost;
pub use storage::{LogStamp, LogStorage, OneChargeLog, ThreeUnitLog};

/// One charge in a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// When the charge was made.
    pub at_us: u64,
    /// The units that the charge spent.
    pub cost: Cost,
}

/// A sliding window log's state: the charges that may still count, oldest first.
///
/// Stored as running sums, so that a decision is a binary search: 65,536 charges take 16 steps. All charges of a
/// single unit in one microsecond form one run. A log of up to four runs allocates no memory.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub(super) head: Head,
    runs: LogCells,
}

/// The range of a log's cells that is in use, and the sum before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The number of the oldest run, and the number after the newest run's. Both only grow; the lower bits of a number
    /// are the index of the run's cell.
    pub(super) first: usize,
    pub(super) end: usize,
    /// The running sum before the oldest run.
    pub(super) base: u64,
    /// When the log was last charged, also if that charge was refunded.
    pub(super) charged_us: u64,
}

/// The cells in which a log keeps its runs. Their number is a power of two.
#[derive(Clone, Debug)]
enum LogCells {
    Few([ChargeRun; FEW]),
    Many(Box<[ChargeRun]>),
}

const FEW: usize = 4;

/// A charge, or several charges of one unit at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargeRun {
    /// The time, and in the lowest bit whether the run is of single units. One comparison covers both.
    mark: u64,
    /// The running sum of the costs up to and including this run.
    pub(super) through: u64,
}

impl ChargeRun {
    #[inline]
    pub(super) fn of_ones(at_us: u64, through: u64) -> ChargeRun {
        ChargeRun { mark: at_us << 1 | 1, through }
    }

    fn new(at_us: u64, units: u64, through: u64) -> ChargeRun {
        ChargeRun { mark: at_us.min(MAX_TIME_US) << 1 | u64::from(units == 1), through }
    }

    #[inline]
    pub(super) fn at_us(self) -> u64 {
        self.mark >> 1
    }

    /// Whether the run was charged at `then_us` or earlier.
    #[inline]
    pub(super) fn is_at_or_before(self, then_us: u64) -> bool {
        self.mark <= (then_us << 1 | 1)
    }

    /// Whether a single unit charged at `at_us` belongs to this run.
    #[inline]
    pub(super) fn is_of_ones_at(self, at_us: u64) -> bool {
        self.mark == (at_us << 1 | 1)
    }

    fn is_of_ones(self) -> bool {
        self.mark & 1 == 1
    }
}

impl Default for LogCells {
    #[inline]
    fn default() -> LogCells {
        LogCells::Few([ChargeRun::default(); FEW])
    }
}

impl LogCells {
    #[inline]
    fn cells(&self) -> &[ChargeRun] {
        match self {
            LogCells::Few(cells) => cells,
            LogCells::Many(cells) => cells,
        }
    }

    #[inline]
    fn cells_mut(&mut self) -> &mut [ChargeRun] {
        match self {
            LogCells::Few(cells) => cells,
            LogCells::Many(cells) => cells,
        }
    }
}

impl PartialEq for Log {
    fn eq(&self, other: &Log) -> bool {
        self.head.charged_us == other.head.charged_us && self.entries(0).eq(other.entries(0))
    }
}

impl Eq for Log {}

impl Log {
    /// Makes the log of these charges, oldest first. `charged_us` is when the log was last charged.
    pub fn of(charged_us: u64, entries: impl IntoIterator<Item = Entry>) -> Log {
        let mut log = Log::from(OneChargeLog { charged_us, ..OneChargeLog::default() });
        for Entry { at_us, cost } in entries {
            log.push(at_us, cost);
        }
        log
    }

    /// The charges from the run at `index` on, oldest first.
    pub(super) fn entries(&self, index: usize) -> impl Iterator<Item = Entry> + use<'_> {
        (index..self.count()).flat_map(|index| {
            let (entry, count) = self.charges(index);
            (0..count).map(move |_| entry)
        })
    }

    /// The bytes by which a charge would make the log grow after its `leaving` oldest runs were removed.
    pub(super) fn growth_bytes(&self, leaving: usize, at_us: u64, cost: Cost) -> usize {
        let cells = self.runs.cells().len();
        let joins = cost == Cost::ONE && self.newest().is_some_and(|run| run.is_of_ones_at(at_us));
        if joins || self.count() - leaving < cells {
            return 0;
        }
        2 * cells * size_of::<ChargeRun>() - self.heap_bytes()
    }

    #[cold]
    fn grow(&mut self) {
        let mut more = vec![ChargeRun::default(); 2 * self.runs.cells().len()];
        for (cell, run) in iter::zip(&mut more, self.runs()) {
            *cell = run;
        }
        self.head = Head { first: 0, end: self.count(), ..self.head };
        self.runs = LogCells::Many(more.into_boxed_slice());
    }

    /// Returns the parts that a decision changes.
    #[inline]
    pub(super) fn parts_mut(&mut self) -> (&mut Head, &mut [ChargeRun]) {
        (&mut self.head, self.runs.cells_mut())
    }

    /// The number of runs in the log.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.head.end.wrapping_sub(self.head.first)
    }

    #[inline]
    pub(super) fn run(&self, index: usize) -> Option<ChargeRun> {
        let cells = self.runs.cells();
        (index < self.count())
            .then(|| cells[self.head.first.wrapping_add(index) & (cells.len() - 1)])
    }

    #[inline]
    pub(super) fn newest(&self) -> Option<ChargeRun> {
        self.run(self.count().wrapping_sub(1))
    }

    #[inline]
    fn cell_mut(&mut self, index: usize) -> &mut ChargeRun {
        let cells = self.runs.cells_mut();
        let last = cells.len() - 1;
        &mut cells[self.head.first.wrapping_add(index) & last]
    }

    fn runs(&self) -> impl Iterator<Item = ChargeRun> {
        (0..self.count()).filter_map(|index| self.run(index))
    }

    /// The running sum of everything charged.
    #[inline]
    pub(super) fn through(&self) -> u64 {
        self.newest().map_or(self.head.base, |run| run.through)
    }

    /// The units of all charges in the log, also of charges that no longer count.
    pub(crate) fn units(&self) -> u64 {
        self.through() - self.head.base
    }

    /// The running sum before the run at `index`.
    #[inline]
    pub(super) fn before(&self, index: usize) -> u64 {
        match index.checked_sub(1).and_then(|earlier| self.run(earlier)) {
            Some(run) => run.through,
            None => self.head.base,
        }
    }

    /// The index of the oldest run that counts at `at_us`: a run at t counts before t + window.
    #[inline]
    pub(super) fn first_counting(&self, at_us: u64, window_us: NonZeroU64) -> usize {
        let Some(left_us) = at_us.checked_sub(window_us.get()) else { return 0 };
        self.first_without(|run| run.is_at_or_before(left_us))
    }

    /// The index of the first run for which `property` is false. It must be true for the oldest runs, up to some run,
    /// and false for all later runs.
    #[inline]
    pub(super) fn first_without(&self, property: impl Fn(ChargeRun) -> bool) -> usize {
        let (cells, count) = (self.runs.cells(), self.count());
        let has =
            |index: usize| property(cells[self.head.first.wrapping_add(index) & (cells.len() - 1)]);
        // Usually few runs leave at once: testing the four oldest before searching all saves 15 ns.
        let (mut low, mut high) = (0, count);
        for _ in 0..count.min(4) {
            if !has(low) {
                return low;
            }
            low += 1;
        }
        while low < high {
            let middle = low.midpoint(high);
            match has(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// One charge of the run at `index`, and the number of charges in the run, which are all equal.
    pub(super) fn charges(&self, index: usize) -> (Entry, u64) {
        let run = self.run(index).unwrap_or_default();
        let units = run.through.saturating_sub(self.before(index));
        let (cost, count) = if run.is_of_ones() { (1, units) } else { (units, 1) };
        (Entry { at_us: run.at_us(), cost: Cost::of(cost) }, count)
    }

    /// Adds a charge. It must not be earlier than the newest.
    #[inline]
    pub(super) fn push(&mut self, at_us: u64, cost: Cost) {
        let newest = self.newest();
        let through = newest.map_or(self.head.base, |newest| newest.through);
        let run = ChargeRun::new(at_us, cost.units(), through.saturating_add(cost.units()));
        let joins = cost == Cost::ONE && newest.is_some_and(|newest| newest.mark == run.mark);
        if !joins {
            self.reserve_one();
            self.head.end = self.head.end.wrapping_add(1);
        }
        *self.cell_mut(self.count() - 1) = run;
    }

    /// Removes the `count` oldest runs.
    #[inline]
    pub(super) fn forget(&mut self, count: usize) {
        self.head.base = if count == self.count() { 0 } else { self.before(count) };
        self.head.first = self.head.first.wrapping_add(count);
    }

    /// Removes a charge from the run at `index`. Changes the runs before it or the runs after it, whichever are fewer:
    /// only the differences between running sums matter.
    pub(super) fn remove(&mut self, index: usize, cost: Cost) {
        let (_, charges) = self.charges(index);
        let is_gone = charges < 2;
        if index < self.count() / 2 {
            self.raise_before(index, cost.units());
            if is_gone {
                for earlier in (0..index).rev() {
                    *self.cell_mut(earlier + 1) = self.run(earlier).unwrap_or_default();
                }
                self.head.first = self.head.first.wrapping_add(1);
            }
        } else {
            if is_gone {
                for later in index + 1..self.count() {
                    *self.cell_mut(later - 1) = self.run(later).unwrap_or_default();
                }
                self.head.end = self.head.end.wrapping_sub(1);
            }
            for later in index..self.count() {
                self.cell_mut(later).through -= cost.units();
            }
        }
    }

    /// Raises the running sums of the runs before `index`.
    fn raise_before(&mut self, index: usize, units: u64) {
        self.head.base = self.head.base.saturating_add(units);
        for earlier in 0..index {
            let run = self.cell_mut(earlier);
            run.through = run.through.saturating_add(units);
        }
    }

    /// Moves every run `back_us` back in time.
    pub(super) fn move_back(&mut self, back_us: u64) {
        for index in 0..self.count() {
            let run = self.cell_mut(index);
            let at_us = run.at_us().saturating_sub(back_us);
            run.mark = at_us << 1 | run.mark & 1;
        }
    }
}
