//! The clocks of the processes and of the store.
//!
//! The time of the simulation runs at the speed of the store's clock. The clock of a process runs a little faster or
//! slower.

use tollgate_lease::Now;

/// The clocks of one process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessClock {
    started_us: u64,
    monotonic_base_us: u64,
    wall_base_us: i64,
    /// How much faster than the store's it runs, in millionths.
    faster_ppm: i64,
}

impl ProcessClock {
    pub(crate) const fn new(started_us: u64, wall_skew_us: i64, faster_ppm: i64) -> ProcessClock {
        ProcessClock {
            started_us,
            monotonic_base_us: 1_000_000,
            wall_base_us: started_us as i64 + wall_skew_us,
            faster_ppm,
        }
    }

    /// The time of the process at `at_us`.
    pub(crate) fn now(&self, at_us: u64) -> Now {
        let elapsed_us = self.elapsed_us(at_us);
        Now {
            monotonic_us: self.monotonic_base_us + elapsed_us,
            wall_us: self.wall_base_us.saturating_add_unsigned(elapsed_us).max(0) as u64,
        }
    }

    fn elapsed_us(&self, at_us: u64) -> u64 {
        let elapsed_us = (at_us - self.started_us) as i64;
        (elapsed_us + elapsed_us * self.faster_ppm / 1_000_000).max(0) as u64
    }

    /// Returns when the monotonic clock shows at least `monotonic_us`.
    pub(crate) fn when_us(&self, monotonic_us: u64) -> u64 {
        let elapsed_us = monotonic_us.saturating_sub(self.monotonic_base_us).min(1 << 40);
        let ticks = u128::from(elapsed_us) * 1_000_000;
        // OK because the quotient is about the elapsed time.
        let slow_us = ticks.div_ceil((1_000_000 + self.faster_ppm).unsigned_abs().into()) as u64;
        self.started_us + slow_us + 1
    }

    pub(crate) fn step_wall(&mut self, by_us: i64) {
        self.wall_base_us += by_us;
    }
}

/// The clock of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoreClock {
    ahead_us: i64,
    /// The furthest that it was ever ahead.
    most_ahead_us: i64,
    /// The sum of the small steps forward.
    small_steps_us: u64,
}

/// The effect of a step of the store's clock on the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockStep {
    /// A step forward within the margin of a lease.
    Small,
    /// A step back. The time of a key does not pass until the clock has caught up.
    Back,
    /// A step forward that makes holds expire, or a step back that makes a new clock.
    Loss,
}

/// Steps forward up to this one are within the margin of a lease.
const SMALL_STEP_US: i64 = 1_500;

/// If the clock is never further behind, no key sees a new clock, which takes more than 10 s.
const BEHIND_US: i64 = 9_500_000;

impl StoreClock {
    pub(crate) const fn new() -> StoreClock {
        StoreClock { ahead_us: 0, most_ahead_us: 0, small_steps_us: 0 }
    }

    /// The time of the store at `at_us`.
    pub(crate) fn now_us(&self, at_us: u64) -> u64 {
        at_us.saturating_add_signed(self.ahead_us)
    }

    /// A time that never goes back, and in which at least as much time passes between two instants as on the store's
    /// clock, except where that loses state by a step.
    pub(crate) const fn generous_us(&self, at_us: u64) -> u64 {
        at_us + self.small_steps_us
    }

    pub(crate) fn step(&mut self, by_us: i64) -> ClockStep {
        self.ahead_us += by_us;
        let behind_us = self.most_ahead_us - self.ahead_us;
        self.most_ahead_us = self.most_ahead_us.max(self.ahead_us);
        match by_us {
            ..=-1 if behind_us > BEHIND_US => ClockStep::Loss,
            ..=-1 => ClockStep::Back,
            0..=SMALL_STEP_US => {
                self.small_steps_us += by_us.unsigned_abs();
                ClockStep::Small
            }
            _ => ClockStep::Loss,
        }
    }

    /// Whether the clock was set, so that windows may start at other times.
    pub(crate) const fn was_set(&self) -> bool {
        self.ahead_us != self.small_steps_us as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_instant_is_found_again() {
        for faster_ppm in [-4_000, 0, 4_000] {
            let clock = ProcessClock::new(5_000_000, 77, faster_ppm);
            for monotonic_us in [1_000_000, 1_000_001, 1_234_567, 9_999_999] {
                let at_us = clock.when_us(monotonic_us);
                assert!(clock.now(at_us).monotonic_us >= monotonic_us);
                assert!(clock.now(at_us).monotonic_us <= monotonic_us + 3);
            }
        }
    }
}
