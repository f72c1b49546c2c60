//! The state that a share of a limit begins with when the store fails.
//!
//! A decision does not contain the state of its key, but it says how many units are spent, and when all of them will be
//! back. That is enough to spend units of the share in such a way that they come back no earlier than they would have under
//! the limit. The rules for each algorithm are in `docs/design/redis-failures.md`.

use tollgate_core::{Cost, Limit, MAX_STEP_BACK_US, State, UnitRequest};

use super::LastSeen;

/// Units of a share that count as spent, and the time at which they were spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpentUnits {
    pub(crate) cost: Cost,
    pub(crate) at_us: u64,
}

/// The units of a share that count as spent, oldest first. A counter has units of two windows, every other limit has one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spending([Option<SpentUnits>; 2]);

/// Returns what counts as spent of `share`, which is the share of one of `processes` processes of `limit`.
///
/// The share keeps one process's part of the units that remained under the limit: at least one unit if any remained, none
/// if the key was spent. If 8 of 100 remained, each of 4 processes keeps 2 of 25, and 23 count as spent.
///
/// The units of a concurrency limit never count as spent: this process would not see when they are released, and could
/// not use them until their holds expire.
pub(crate) fn starting_point(
    limit: &Limit,
    share: &Limit,
    processes: u32,
    seen: LastSeen,
) -> Spending {
    let remaining = limit.size().saturating_sub(seen.spent);
    let kept = match remaining {
        0 => 0,
        // A share has at least one unit.
        _ => (remaining / u64::from(processes.max(1))).clamp(1, share.size()),
    };
    let spent = share.size() - kept;
    match share {
        Limit::Concurrency(_) => Spending::default(),
        Limit::FixedWindow(own) => Spending::of(spent, in_fixed_window(own.window_us(), seen)),
        Limit::SlidingWindowLog(own) => Spending::of(spent, newest_entry(own.window_us(), seen)),
        Limit::SlidingWindowCounter(own) => in_window_pair(share, own.window_us(), spent, seen),
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            Spending::of(spent, drained_in_time(share, spent, seen))
        }
    }
}

/// Returns a time in the window in which the units were spent, by this process's clock. That window ends when all units are
/// back, on the store's clock. If the two clocks differ by less than half a window, the middle of the window is in the same
/// window on both.
///
/// Units on hold may come back only after the window. They count as spent in the window of the answer.
fn in_fixed_window(window_us: u64, seen: LastSeen) -> u64 {
    if seen.back_after_us > window_us {
        return seen.at_us;
    }
    let end_us = seen.at_us.saturating_add(seen.back_after_us);
    let middle_us = end_us.saturating_sub(window_us / 2);
    let start_us = middle_us - middle_us % window_us;
    // The window may begin after the answer, if this clock is behind the store's. A later time is not used, because the
    // memory store would drop keys whose units are back by then.
    let latest_us = seen.at_us.saturating_add(MAX_STEP_BACK_US);
    middle_us.min(seen.at_us).max(start_us.min(latest_us))
}

/// Returns when the newest units were spent: a window before they leave. The older units count as spent then too, because
/// their times are not known.
fn newest_entry(window_us: u64, seen: LastSeen) -> u64 {
    let newest_us = seen.at_us.saturating_add(seen.back_after_us).saturating_sub(window_us);
    newest_us.min(seen.at_us)
}

/// Returns what was spent in the current window and in the previous one, of which a part still counts.
///
/// The time at which all units are back says how many units the later of the two windows has: of `n` units, less than one is
/// in view as soon as less than an `n`-th of the window is in view.
fn in_window_pair(share: &Limit, window_us: u64, spent: u64, seen: LastSeen) -> Spending {
    let since_start_us = seen.at_us % window_us;
    let in_view_us = window_us - since_start_us;
    let units_gone_at = |in_view_us: u64| match in_view_us {
        // Units on hold may come back even later. They count as spent now.
        0 => seen.spent,
        in_view_us => (window_us - 1) / in_view_us,
    };
    let of_share = |units: u64| scaled_up(units, spent, seen.spent);
    let (previous, current) = match seen.back_after_us.checked_sub(in_view_us) {
        None => (of_share(units_gone_at(in_view_us - seen.back_after_us)), 0),
        Some(into_next_us) => {
            let current = units_gone_at(window_us.saturating_sub(into_next_us)).min(seen.spent);
            let current = of_share(current).min(spent);
            // As many units as may count as the rest now. A part of a unit in view counts as none.
            let counting = u128::from(spent - current + 1) * u128::from(window_us) - 1;
            let previous = u64::try_from(counting / u128::from(in_view_us)).unwrap_or(u64::MAX);
            (previous, current)
        }
    };
    match seen.at_us.checked_sub(since_start_us + 1) {
        Some(before_us) => Spending([
            SpentUnits::new(previous.min(share.size()), before_us),
            SpentUnits::new(current, seen.at_us),
        ]),
        None => Spending::of(spent, seen.at_us),
    }
}

/// Returns `units * by / of`, rounded up.
fn scaled_up(units: u64, by: u64, of: u64) -> u64 {
    let scaled = (u128::from(units) * u128::from(by)).div_ceil(u128::from(of.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Returns the time from which a bucket drains the units until the time at which all of them are back.
///
/// A decision rounds up the units that are spent. So that this does not delay the last unit, they count as spent a little
/// earlier than at the time of the answer.
fn drained_in_time(share: &Limit, spent: u64, seen: LastSeen) -> u64 {
    let mut state = share.fresh();
    let Ok(cost) = Cost::new(spent) else { return seen.at_us };
    let drained_after_us =
        share.check(&mut state, 0, UnitRequest::new(cost)).decision.reset_after_us;
    let back_at_us = seen.at_us.saturating_add(seen.back_after_us);
    back_at_us.saturating_sub(drained_after_us).min(seen.at_us)
}

impl SpentUnits {
    /// Returns `None` for no units.
    pub(crate) fn new(units: u64, at_us: u64) -> Option<SpentUnits> {
        Some(SpentUnits { cost: Cost::new(units).ok()?, at_us })
    }
}

impl Spending {
    fn of(units: u64, at_us: u64) -> Spending {
        Spending([SpentUnits::new(units, at_us), None])
    }

    /// Returns the units, oldest first.
    pub(crate) fn each(self) -> impl Iterator<Item = SpentUnits> {
        self.0.into_iter().flatten()
    }

    /// Returns how many of these units still count at `now_us`.
    pub(crate) fn counts_at(self, share: &Limit, now_us: u64) -> u64 {
        let mut state: State = share.fresh();
        for SpentUnits { cost, at_us } in self.each() {
            // Never refused: no more than the size of the share counts as spent.
            let _ = share.check(&mut state, at_us, UnitRequest::new(cost));
        }
        let left = share.peek(&state, now_us, UnitRequest::new(Cost::ONE)).remaining;
        share.size().saturating_sub(left)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    const AT_US: u64 = 1_000_000_020 * S;

    fn spending(text: &str, processes: u32, seen: LastSeen) -> Spending {
        let limit = text.parse().unwrap();
        let share = super::super::share_of(&limit, processes);
        starting_point(&limit, &share, processes, seen)
    }

    fn only(spending: Spending) -> SpentUnits {
        let mut each = spending.each();
        let only = each.next().unwrap();
        assert_eq!(each.next(), None);
        only
    }

    /// Returns how many of ten units are left at this time, if `spent` units were spent at `AT_US`.
    fn remaining(text: &str, spent: u64, back_after_us: u64, at_us: u64) -> u64 {
        let seen = LastSeen { spent, at_us: AT_US, back_after_us };
        let limit = text.parse().unwrap();
        10 - spending(text, 1, seen).counts_at(&limit, at_us)
    }

    /// The window of the store ends in 25 s. This process's clock is right, 10 s behind, or 26 s ahead.
    #[test]
    fn spent_window_ends_once_on_a_clock_that_differs_from_the_stores() {
        let window_us = 60 * S;
        for at_us in [35 * S, 25 * S, 61 * S].map(|offset_us| AT_US + offset_us) {
            let seen = LastSeen { spent: 10, at_us, back_after_us: 25 * S };
            let spending = only(spending("fixed-window limit=10 window=1m", 1, seen));
            assert_eq!(spending.at_us / window_us, AT_US / window_us, "{at_us}");
            assert!(spending.at_us <= at_us, "{at_us}");
        }
        // 5 s of the store's window are over, and this clock is 10 s behind.
        let seen = LastSeen { spent: 10, at_us: AT_US - 5 * S, back_after_us: 55 * S };
        let own = only(spending("fixed-window limit=10 window=1m", 1, seen));
        assert_eq!(own.at_us, AT_US, "the window begins after the answer");
        // A clock that is 100 days behind.
        let days = 24 * 3_600 * S;
        let seen = LastSeen { spent: 10, at_us: 300 * days, back_after_us: 300 * days };
        let own = only(spending("fixed-window limit=10 window=366d", 1, seen));
        assert!(own.at_us <= 300 * days + 10 * S);
    }

    #[test]
    fn units_of_a_bucket_come_back_at_the_same_microsecond_as_in_the_store() {
        let bucket = "token-bucket capacity=10 refill=1/s";
        // The level was 9.25: after 250 ms another unit is back.
        let left = |at_us| remaining(bucket, 10, 9_250_000, at_us);
        assert_eq!([left(AT_US), left(AT_US + 250_000 - 1), left(AT_US + 250_000)], [0, 0, 1]);
        assert_eq!([left(AT_US + 9_250_000 - 1), left(AT_US + 9_250_000)], [9, 10]);
    }

    #[test]
    fn log_counts_all_units_until_the_newest_leaves() {
        let log = "sliding-window-log limit=10 window=1m";
        let left = |at_us| remaining(log, 7, 20 * S, at_us);
        assert_eq!([left(AT_US), left(AT_US + 20 * S - 1), left(AT_US + 20 * S)], [3, 3, 10]);
    }

    /// Any two counts of two windows, decided by the counter itself and by what its last decision says.
    #[test]
    fn units_of_a_counters_two_windows_come_back_as_in_the_store() {
        let counter: Limit = "sliding-window-counter limit=10 window=1m".parse().unwrap();
        let charge = |state: &mut State, at_us, units| {
            let cost = Cost::new(units).unwrap();
            counter.check(state, at_us, UnitRequest::new(cost)).decision
        };
        for (previous, current, second) in (0..=10)
            .flat_map(|previous| (1..=9).map(move |current| (previous, current)))
            .flat_map(|(previous, current)| [1, 29, 59].map(|second| (previous, current, second)))
        {
            let mut state = counter.fresh();
            if previous > 0 {
                charge(&mut state, AT_US - 1, previous);
            }
            let at_us = AT_US + second * S;
            let decision = charge(&mut state, at_us, current);
            if !decision.is_allowed() {
                continue;
            }
            let (spent, back_after_us) = (10 - decision.remaining, decision.reset_after_us);
            let own = spending(&counter.to_string(), 1, LastSeen { spent, at_us, back_after_us });
            for later_us in [0, S, 20 * S, 60 * S, back_after_us - 1, back_after_us] {
                let now_us = at_us + later_us;
                let left = counter.peek(&state, now_us, UnitRequest::new(Cost::ONE)).remaining;
                let own_left = 10 - own.counts_at(&counter, now_us);
                let shown = format!("{previous}, {current}, {second}, {later_us}");
                // The parts of units in view are not known. At most one unit counts longer than in the store.
                assert!(own_left == left || own_left + 1 == left, "{shown}: {own_left} of {left}");
                assert!(later_us < back_after_us || own_left == 10);
            }
        }
    }

    #[test]
    fn share_keeps_the_part_of_one_process_of_what_remained() {
        let window = "fixed-window limit=100 window=1m";
        for (spent, processes, want) in [
            (0, 4, None),
            (8, 4, Some(2)),
            (92, 4, Some(23)),
            (99, 4, Some(24)),
            (100, 4, Some(25)),
            (500, 4, Some(25)),
            // One unit is the whole share. It is kept as long as any unit remains.
            (99, 200, None),
            (100, 200, Some(1)),
        ] {
            let seen = LastSeen { spent, at_us: AT_US, back_after_us: 60 * S };
            let spending = spending(window, processes, seen);
            let units = spending.each().next().map(|units| units.cost.units());
            assert_eq!(units, want, "{spent} of {processes}");
        }
    }

    #[test]
    fn no_units_of_a_concurrency_limit_count_as_spent() {
        let seen = LastSeen { spent: 10, at_us: AT_US, back_after_us: 60 * S };
        assert_eq!(spending("concurrency limit=10 for=1h", 1, seen), Spending::default());
    }
}
