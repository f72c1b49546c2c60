//! The times at which checks arrive.

use crate::random_source::RandomSource;

/// The times at which checks of one key arrive at one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficModel {
    /// At random times, independent of each other.
    Random {
        /// The mean time between two checks.
        mean_gap_us: u64,
    },
    /// Several at once, at even times.
    Even {
        /// The time between two arrivals.
        gap_us: u64,
        /// The checks that arrive together.
        together: u32,
    },
    /// Evenly, but only while it is the turn of the process: the turn passes from process to process.
    InTurn {
        /// The time between two arrivals.
        gap_us: u64,
        /// The checks that arrive together.
        together: u32,
        /// The length of a turn.
        turn_us: u64,
        /// The turn of this process, counted from 0.
        turn: u64,
        /// The number of turns.
        turns: u64,
    },
    /// Many at once at first, and from an instant of the run on one at a time.
    Fades {
        /// The time between two arrivals.
        gap_us: u64,
        /// The checks that arrive together at first.
        together: u32,
        /// The time of the change, from the start of the run.
        after_us: u64,
    },
    /// Many at once for a while, one at a time for a while, and again.
    Waves {
        /// The time between two arrivals.
        gap_us: u64,
        /// The checks that arrive together at first.
        together: u32,
        /// The time in which several arrive together.
        fast_us: u64,
        /// The time in which one at a time arrives.
        slow_us: u64,
    },
    /// At random times until an instant of the run, and then no more.
    Stops {
        /// The mean time between two checks.
        mean_gap_us: u64,
        /// The time at which it stops, from the start of the run.
        after_us: u64,
    },
}

/// The next arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) at_us: u64,
    pub(crate) checks: u32,
}

impl TrafficModel {
    /// Returns the arrival after `now_us`, both from the start of the run.
    pub(crate) fn next(&self, now_us: u64, random: &mut RandomSource) -> Option<Arrival> {
        match *self {
            TrafficModel::Random { mean_gap_us } => {
                Some(Arrival { at_us: now_us + random.gap_us(mean_gap_us), checks: 1 })
            }
            TrafficModel::Even { gap_us, together } => {
                Some(Arrival { at_us: now_us + gap_us, checks: together })
            }
            TrafficModel::InTurn { gap_us, together, turn_us, turn, turns } => {
                let at_us = now_us + gap_us;
                let current = at_us / turn_us % turns;
                let turns_to_wait = (turn + turns - current) % turns;
                let at_us = match turns_to_wait {
                    0 => at_us,
                    wait => (at_us / turn_us + wait) * turn_us,
                };
                Some(Arrival { at_us, checks: together })
            }
            TrafficModel::Fades { gap_us, together, after_us } => {
                let checks = if now_us < after_us { together } else { 1 };
                Some(Arrival { at_us: now_us + gap_us, checks })
            }
            TrafficModel::Waves { gap_us, together, fast_us, slow_us } => {
                let is_fast = now_us % (fast_us + slow_us) < fast_us;
                Some(Arrival { at_us: now_us + gap_us, checks: if is_fast { together } else { 1 } })
            }
            TrafficModel::Stops { mean_gap_us, after_us } => {
                let at_us = now_us + random.gap_us(mean_gap_us);
                (at_us < after_us).then_some(Arrival { at_us, checks: 1 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turn_passes_from_process_to_process() {
        let mut random = RandomSource::new(1);
        let model =
            TrafficModel::InTurn { gap_us: 10, together: 1, turn_us: 100, turn: 1, turns: 3 };
        let mut times = vec![0];
        for _ in 0..12 {
            let next = model.next(times[times.len() - 1], &mut random).unwrap();
            times.push(next.at_us);
        }
        assert_eq!(times[1..], [100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 400, 410]);
    }
}
