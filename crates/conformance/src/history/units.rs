//! Whether more units were admitted in some interval than the limit may admit.

use std::collections::BTreeMap;
use std::fmt;

use tollgate_core::Limit;

use super::RecordedRequest;

/// The most times at which an interval may begin or end. With more, the times are rounded outwards, so that a long
/// history is still checked in a second.
const MAX_SLOTS: u64 = 4_000;

/// The most different times that are compared as they are.
const MAX_EXACT_TIMES: usize = 1_500;

/// An interval in which more units were admitted than the limit may admit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The first microsecond of the interval.
    pub from_us: u64,
    /// The last microsecond of the interval.
    pub until_us: u64,
    /// The units of the requests that began and were allowed within the interval.
    pub admitted_units: u64,
    /// The most units that the limit admits in an interval of this length.
    pub max_units: u64,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excess { from_us, until_us, admitted_units, max_units } = self;
        let length_us = until_us - from_us + 1;
        write!(
            f,
            "{admitted_units} units were admitted in the {length_us} us from {from_us} to {until_us}; the limit admits at \
             most {max_units}"
        )
    }
}

/// Finds the interval in which the admitted units exceed the limit's bound by most; `None` if they exceed it nowhere.
///
/// Every unit that certainly was admitted within an interval counts for it: the request began and was answered in it. The
/// bound is [`Limit::bound_over`], and one whole limit for each loss of state. Answers are not compared, so this is for
/// callers whose answers are estimates, and for requests at the store's time. A fixed window is also checked window by
/// window.
pub fn excess_over(
    limit: &Limit,
    history: &[RecordedRequest],
    most_losses: usize,
) -> Option<Excess> {
    let admitted: Vec<AdmittedUnits> = history.iter().filter_map(AdmittedUnits::of).collect();
    let lost_units = limit.size().saturating_mul(most_losses as u64);
    let in_window = excess_of_windows(limit, &admitted, lost_units);
    worse(in_window, excess_of_intervals(limit, &admitted, lost_units))
}

/// Units that were admitted at some time between two times, both included.
#[derive(Clone, Copy)]
struct AdmittedUnits {
    began_us: u64,
    ended_us: u64,
    units: u64,
}

impl AdmittedUnits {
    fn of(request: &RecordedRequest) -> Option<AdmittedUnits> {
        let (units, ended_us) = request.admitted()?;
        Some(AdmittedUnits { began_us: request.began_us, ended_us, units })
    }
}

/// Returns the one that exceeds its bound by more.
fn worse(one: Option<Excess>, other: Option<Excess>) -> Option<Excess> {
    one.into_iter().chain(other).max_by_key(|excess| excess.admitted_units - excess.max_units)
}

fn excess_of_windows(limit: &Limit, admitted: &[AdmittedUnits], lost_units: u64) -> Option<Excess> {
    let Limit::FixedWindow(fixed) = limit else { return None };
    let (window_us, max_units) = (fixed.window_us(), limit.size() + lost_units);
    let mut sums = BTreeMap::<u64, u64>::new();
    for own in admitted {
        let window = own.began_us / window_us;
        if own.ended_us / window_us == window {
            *sums.entry(window * window_us).or_default() += own.units;
        }
    }
    let excess = sums.into_iter().filter(|&(_, admitted_units)| admitted_units > max_units);
    let excess = excess.map(|(from_us, admitted_units)| Excess {
        from_us,
        until_us: from_us + (window_us - 1),
        admitted_units,
        max_units,
    });
    excess.fold(None, |most, excess| worse(most, Some(excess)))
}

/// Compares every interval from the beginning of a slot to the end of the same or a later slot with the bound.
fn excess_of_intervals(
    limit: &Limit,
    admitted: &[AdmittedUnits],
    lost_units: u64,
) -> Option<Excess> {
    let slots = TimeSlots::of(admitted)?;
    let bounds = slots.bounds(limit);
    let mut beginning_at = vec![Vec::new(); slots.count()];
    for own in admitted {
        beginning_at[slots.at(own.began_us)].push(own);
    }
    // For each slot, the units of the requests that ended in it and began in the slot `first` or later.
    let mut ending_at = vec![0_u64; slots.count()];
    let mut most = None;
    for (first, beginning) in beginning_at.iter().enumerate().rev() {
        for own in beginning {
            ending_at[slots.at(own.ended_us)] += own.units;
        }
        if beginning.is_empty() {
            continue;
        }
        let mut admitted_units = 0;
        for (last, &units) in
            ending_at.iter().enumerate().skip(first).filter(|(_, units)| **units > 0)
        {
            admitted_units += units;
            let max_units = bounds.between(&slots, first, last) + lost_units;
            if admitted_units > max_units {
                let (from_us, until_us) = (slots.start_us(first), slots.end_us(last));
                let excess = Excess { from_us, until_us, admitted_units, max_units };
                most = worse(most, Some(excess));
            }
        }
    }
    most
}

/// A division of the time of a history.
enum TimeSlots {
    /// Each time that occurs is a slot of its own.
    Exact(Vec<u64>),
    /// TimeSlots of equal length.
    Equal { start_us: u64, length_us: u64, count: usize },
}

impl TimeSlots {
    /// Returns `None` if nothing was admitted.
    fn of(admitted: &[AdmittedUnits]) -> Option<TimeSlots> {
        let mut times: Vec<u64> =
            admitted.iter().flat_map(|own| [own.began_us, own.ended_us]).collect();
        times.sort_unstable();
        times.dedup();
        let (&first_us, &last_us) = (times.first()?, times.last()?);
        if times.len() <= MAX_EXACT_TIMES {
            return Some(TimeSlots::Exact(times));
        }
        let length_us = ((last_us - first_us) / MAX_SLOTS) + 1;
        let count = ((last_us - first_us) / length_us + 1) as usize;
        Some(TimeSlots::Equal { start_us: first_us, length_us, count })
    }

    fn bounds<'l>(&self, limit: &'l Limit) -> IntervalBounds<'l> {
        let by_distance = match self {
            TimeSlots::Exact(_) => Vec::new(),
            TimeSlots::Equal { length_us, count, .. } => {
                let lengths = (1..=*count as u64).map(|slots| slots * length_us);
                lengths.map(|length_us| limit.bound_over(length_us).max_units).collect()
            }
        };
        IntervalBounds { limit, by_distance }
    }

    fn count(&self) -> usize {
        match self {
            TimeSlots::Exact(times) => times.len(),
            TimeSlots::Equal { count, .. } => *count,
        }
    }

    /// Returns the slot of a time of the history.
    fn at(&self, time_us: u64) -> usize {
        match self {
            TimeSlots::Exact(times) => times.partition_point(|&own| own < time_us),
            TimeSlots::Equal { start_us, length_us, .. } => {
                ((time_us - start_us) / length_us) as usize
            }
        }
    }

    /// Returns the first microsecond of a slot.
    fn start_us(&self, slot: usize) -> u64 {
        match self {
            TimeSlots::Exact(times) => times[slot],
            TimeSlots::Equal { start_us, length_us, .. } => start_us + slot as u64 * length_us,
        }
    }

    /// Returns the last microsecond of a slot.
    fn end_us(&self, slot: usize) -> u64 {
        match self {
            TimeSlots::Exact(times) => times[slot],
            TimeSlots::Equal { length_us, .. } => self.start_us(slot) + (length_us - 1),
        }
    }
}

/// The limit's bound for the time between two slots.
struct IntervalBounds<'l> {
    limit: &'l Limit,
    /// The bound for each distance between two slots of equal length, because millions of pairs have the same distance.
    by_distance: Vec<u64>,
}

impl IntervalBounds<'_> {
    fn between(&self, slots: &TimeSlots, first: usize, last: usize) -> u64 {
        self.by_distance.get(last - first).copied().unwrap_or_else(|| {
            let length_us = slots.end_us(last) - slots.start_us(first) + 1;
            self.limit.bound_over(length_us).max_units
        })
    }
}
