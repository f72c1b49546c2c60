//! Sliding window log: every charge, for exactly one window.

use alloc::collections::VecDeque;
use core::num::NonZeroU64;
use core::time::Duration;

use super::{Algorithm, Decide, MAX_TIME_US};
use crate::decision::{Ask, Checked, Cost, Decision, Place, Receipt, Retry, Verdict};
use crate::limit::{LimitError, log_units, window_us};

/// At most `limit` units in any window, wherever it begins.
///
/// A charge at t counts until exactly t + window. Exact, at 16 bytes a charge; for more than
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

    /// The units any window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length.
    pub const fn window_us(&self) -> u64 {
        self.window_us.get()
    }

    /// The charges that count at `now_us`, oldest first: an audit trail.
    pub fn entries<'l>(
        &self,
        log: &'l Log,
        now_us: u64,
    ) -> impl ExactSizeIterator<Item = Entry> + use<'l> {
        let at_us = now_us.min(MAX_TIME_US).max(log.charged_us);
        let counting = log.first_counting(at_us, self.window_us);
        (counting..log.len()).map(|index| log.entry(index))
    }

    /// The bytes by which a charge at `now_us` would make the log grow.
    pub fn growth_bytes(&self, log: &Log, now_us: u64) -> usize {
        let now_us = now_us.min(MAX_TIME_US);
        if log.older.len() < log.older.capacity() {
            return 0;
        }
        let leaving = log.first_counting(now_us.max(log.charged_us), self.window_us);
        // All that stay will be older than the newest.
        if log.len() - leaving <= log.older.capacity() {
            return 0;
        }
        log.older.capacity().max(4) * size_of::<Sum>()
    }

    /// [`check_one`](Algorithm::check_one) of a log with charges that count, of which one leaves at most, and memory
    /// for one more.
    #[inline]
    pub fn check_one_more(&self, log: &mut Log, now_us: u64) -> Option<Checked> {
        let newest = log.newest?;
        let left_us = now_us.checked_sub(self.window_us())?;
        let has_left = |sum: &Sum| sum.at_us <= left_us;
        let is_usual = (log.charged_us..=MAX_TIME_US).contains(&now_us) && !has_left(&newest);
        if !is_usual || log.older.get(1).is_some_and(has_left) {
            return None;
        }
        let leaving = log.older.front().copied().filter(has_left);
        let base = leaving.map_or(log.base, |sum| sum.through);
        let spent = newest.through - base;
        if spent >= self.limit || log.older.len() == log.older.capacity() {
            return None;
        }
        if leaving.is_some() {
            log.older.pop_front();
        }
        log.older.push_back(newest);
        log.newest = Some(Sum { at_us: now_us, through: newest.through + 1 });
        log.base = base;
        log.charged_us = now_us;
        // OK because one was just put there.
        let oldest_us = log.older.front().map_or(now_us, |sum| sum.at_us);
        let decision = Decision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - spent - 1,
            reset_after_us: self.window_us(),
            first_back_us: oldest_us - left_us,
        };
        let place = Place::Entry { at_us: now_us };
        Some(Checked { decision, receipt: Some(Receipt { cost: Cost::ONE, place }) })
    }
}

/// One charge in a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// When it was charged.
    pub at_us: u64,
    /// What it spent.
    pub cost: Cost,
}

/// A sliding window log's state: the charges that may still count, oldest first.
///
/// Kept as running sums, so that a decision is a binary search: 65,536 charges take 16 steps. The
/// newest is apart from the others: a log of one charge needs no memory beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    older: VecDeque<Sum>,
    /// `None` only if there are no older ones either.
    newest: Option<Sum>,
    /// The running sum before the oldest charge kept.
    base: u64,
    /// When it was last charged, also if that charge was refunded.
    charged_us: u64,
}

/// A charge, as the running sum of costs up to and including it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    at_us: u64,
    through: u64,
}

/// A [`Log`] of at most one charge, as three numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BriefLog {
    /// When it was last charged, also if that charge was refunded.
    pub charged_us: u64,
    /// When the charge that is kept was made.
    pub at_us: u64,
    /// What it spent; 0 if none is kept.
    pub units: u64,
}

impl From<BriefLog> for Log {
    #[inline]
    fn from(BriefLog { charged_us, at_us, units }: BriefLog) -> Log {
        let newest = (units > 0).then_some(Sum { at_us, through: units });
        Log { older: VecDeque::new(), newest, base: 0, charged_us }
    }
}

impl Log {
    /// The log of these charges, oldest first, last charged at `charged_us`.
    pub fn of(charged_us: u64, entries: impl IntoIterator<Item = Entry>) -> Log {
        let mut log = Log { charged_us, ..Log::default() };
        for Entry { at_us, cost } in entries {
            let through = log.through().saturating_add(cost.units());
            log.push(Sum { at_us, through });
        }
        log
    }

    /// The log as three numbers; `None` if it has more than one charge.
    #[inline]
    pub fn brief(&self) -> Option<BriefLog> {
        self.older.is_empty().then(|| self.coarsened())
    }

    /// The log as one charge of all its units, at the time of the newest.
    ///
    /// Conservative: units count no shorter than they did.
    #[inline]
    pub fn coarsened(&self) -> BriefLog {
        let at_us = self.newest.map_or(0, |sum| sum.at_us);
        BriefLog { charged_us: self.charged_us, at_us, units: self.units() }
    }

    /// The bytes it keeps on the heap, used or not.
    pub fn heap_bytes(&self) -> usize {
        self.older.capacity() * size_of::<Sum>()
    }

    /// Makes room for one more charge.
    pub fn reserve_one(&mut self) {
        self.older.reserve(1);
    }

    /// Makes room for a charge without more memory: the two newest become one, at the later time.
    /// Whether there were two.
    ///
    /// Conservative: the older one's units count as long as the newer one's.
    pub fn coarsen(&mut self) -> bool {
        self.older.pop_back().is_some()
    }

    fn len(&self) -> usize {
        self.older.len() + usize::from(self.newest.is_some())
    }

    #[inline]
    fn sum(&self, index: usize) -> Option<Sum> {
        match self.older.get(index) {
            Some(sum) => Some(*sum),
            None => self.newest.filter(|_| index == self.older.len()),
        }
    }

    /// The running sum of everything charged.
    fn through(&self) -> u64 {
        self.newest.map_or(self.base, |sum| sum.through)
    }

    /// All units kept, whether they still count or not.
    pub(crate) fn units(&self) -> u64 {
        self.through() - self.base
    }

    /// The running sum before the charge at `index`.
    fn before(&self, index: usize) -> u64 {
        match index.checked_sub(1).and_then(|earlier| self.sum(earlier)) {
            Some(sum) => sum.through,
            None => self.base,
        }
    }

    /// The index of the oldest charge that counts at `at_us`: one at t counts before t + window.
    fn first_counting(&self, at_us: u64, window_us: NonZeroU64) -> usize {
        let Some(left_us) = at_us.checked_sub(window_us.get()) else { return 0 };
        self.first_without(|sum| sum.at_us <= left_us)
    }

    /// The index of the first charge without a property that only the oldest have.
    #[inline]
    fn first_without(&self, property: impl Fn(&Sum) -> bool) -> usize {
        // As a rule few charges leave at once: looking at four before searching all saves 15 ns.
        let near = (0..4).find(|&index| !self.sum(index).is_some_and(|sum| property(&sum)));
        near.unwrap_or_else(|| {
            let older = self.older.partition_point(&property);
            let all = older == self.older.len();
            older + usize::from(all && self.newest.is_some_and(|sum| property(&sum)))
        })
    }

    fn entry(&self, index: usize) -> Entry {
        let Sum { at_us, through } = self.sum(index).unwrap_or_default();
        Entry { at_us, cost: Cost::of(through.saturating_sub(self.before(index))) }
    }

    fn push(&mut self, sum: Sum) {
        if let Some(before) = self.newest.replace(sum) {
            self.older.push_back(before);
        }
    }

    /// Drops the `count` oldest charges.
    fn forget(&mut self, count: usize) {
        if count == self.len() {
            self.older.clear();
            self.newest = None;
            self.base = 0;
            return;
        }
        self.base = self.before(count);
        match count {
            0 => {}
            // As a rule one leaves for each that comes, and `drain` takes 7 ns more for it.
            1 => _ = self.older.pop_front(),
            _ => _ = self.older.drain(..count),
        }
    }

    fn remove(&mut self, index: usize) {
        let cost = self.entry(index).cost.units();
        if self.older.remove(index).is_none() {
            self.newest = self.older.pop_back();
            return;
        }
        self.older.range_mut(index..).chain(&mut self.newest).for_each(|sum| sum.through -= cost);
    }
}

/// A [`Log`] at an instant of its key's time, seen from the caller's.
#[derive(Clone, Copy, Debug)]
pub struct LogStanding {
    /// The index of the oldest charge that counts.
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
        log.charged_us
    }

    fn restart(&self, log: &mut Log, now_us: u64) {
        let back_us = log.charged_us.saturating_sub(now_us);
        for sum in log.older.iter_mut().chain(&mut log.newest) {
            sum.at_us = sum.at_us.saturating_sub(back_us);
        }
        log.charged_us = now_us;
    }

    #[inline]
    fn standing(&self, log: &Log, now_us: u64) -> LogStanding {
        let newest_us = log.newest.map_or(0, |sum| sum.at_us);
        let at_us = now_us.max(log.charged_us);
        let counting = log.first_counting(at_us, self.window_us);
        let spent = log.through() - log.before(counting);
        LogStanding { counting, spent, newest_us, at_us, now_us }
    }

    #[inline]
    fn verdict(&self, log: &Log, standing: &LogStanding, ask: Ask) -> Verdict {
        let cost = ask.cost.units();
        if cost <= self.remaining(standing, ask) {
            return Verdict::Allowed { delay_us: 0 };
        }
        // OK because no cost above the limit gets here, and this one does not fit.
        let most = self.limit - cost;
        Verdict::Denied { retry: Retry::AfterUs(self.falls_to_after_us(log, *standing, most)) }
    }

    fn charge(&self, log: &mut Log, mut standing: LogStanding, cost: Cost) -> LogStanding {
        log.forget(standing.counting);
        let at_us = standing.at_us;
        log.push(Sum { at_us, through: log.through() + cost.units() });
        log.charged_us = at_us;
        standing.counting = 0;
        standing.spent += cost.units();
        standing.newest_us = at_us;
        standing
    }

    #[inline]
    fn place(&self, standing: &LogStanding, _: u64) -> Place {
        Place::Entry { at_us: standing.newest_us }
    }

    #[inline]
    fn spent(&self, standing: &LogStanding) -> u64 {
        standing.spent
    }

    #[inline]
    fn remaining(&self, standing: &LogStanding, _: Ask) -> u64 {
        // Saturates when the limit was lowered below what is spent.
        self.limit.saturating_sub(standing.spent)
    }

    #[inline]
    fn reset_after_us(&self, standing: &LogStanding) -> u64 {
        if standing.spent == 0 { 0 } else { self.leaves_after_us(standing.newest_us, standing) }
    }

    /// When the oldest leaves; if the limit was lowered below what is spent, when enough have.
    #[inline]
    fn first_back_us(&self, log: &Log, standing: &LogStanding, _: Ask) -> u64 {
        match standing.spent {
            0 => 0,
            spent if spent > self.limit => self.falls_to_after_us(log, *standing, self.limit - 1),
            _ => {
                let oldest_us = log.sum(standing.counting).map_or(0, |sum| sum.at_us);
                self.leaves_after_us(oldest_us, standing)
            }
        }
    }

    /// Charges of one time and cost are alike: any of them will do.
    fn give_back(&self, log: &mut Log, now_us: u64, receipt: Receipt) {
        let Place::Entry { at_us } = receipt.place else { return };
        let counting = log.first_counting(now_us.max(log.charged_us), self.window_us);
        let first = log.first_without(|sum| sum.at_us < at_us).max(counting);
        let charge = Entry { at_us, cost: receipt.cost };
        let found = (first..log.len())
            .map(|index| (index, log.entry(index)))
            .take_while(|(_, entry)| entry.at_us == at_us)
            .find_map(|(index, entry)| (entry == charge).then_some(index));
        if let Some(index) = found {
            log.remove(index);
        }
    }
}

impl Algorithm for SlidingWindowLog {
    type Usual = BriefLog;

    /// With nothing that still counts.
    #[inline(always)]
    fn check_one(&self, log: &mut BriefLog, now_us: u64) -> Option<Checked> {
        let BriefLog { charged_us, at_us, units } = *log;
        let has_left = now_us.checked_sub(at_us)? >= self.window_us();
        if now_us > MAX_TIME_US || now_us < charged_us || units > 0 && !has_left || self.limit == 0
        {
            return None;
        }
        *log = BriefLog { charged_us: now_us, at_us: now_us, units: 1 };
        let decision = Decision {
            verdict: Verdict::Allowed { delay_us: 0 },
            limit: self.limit,
            remaining: self.limit - 1,
            reset_after_us: self.window_us(),
            first_back_us: self.window_us(),
        };
        let place = Place::Entry { at_us: now_us };
        Some(Checked { decision, receipt: Some(Receipt { cost: Cost::ONE, place }) })
    }

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
        BriefLog { charged_us: now_us, at_us: now_us, units }.into()
    }

    /// Charges keep their times; the new window decides which of them count.
    fn carry_over(&self, _: &SlidingWindowLog, log: Log, _: u64) -> Log {
        log
    }
}

impl SlidingWindowLog {
    /// The wait until at most `most` units count; it is more now.
    fn falls_to_after_us(&self, log: &Log, standing: LogStanding, most: u64) -> u64 {
        let must_leave = standing.spent - most;
        let left = log.before(standing.counting) + must_leave;
        let last_to_leave = log.first_without(|sum| sum.through < left);
        let at_us = log.sum(last_to_leave).map_or(standing.newest_us, |sum| sum.at_us);
        self.leaves_after_us(at_us, &standing)
    }

    /// From the caller's own now, so that it holds across a step back.
    #[inline]
    fn leaves_after_us(&self, charged_us: u64, standing: &LogStanding) -> u64 {
        charged_us.saturating_add(self.window_us()).saturating_sub(standing.now_us)
    }
}
