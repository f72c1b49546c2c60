//! Measures the units that a key needs in a pace.

/// Parts of a unit in which the rate is kept, so that a key with one unit in 100 paces has a rate above 0.
const PARTS: u64 = 1 << 10;

/// The most parts in a pace, so that products with times stay exact in 128 bits.
const MAX_RATE: u64 = 1 << 62;

/// The recent demand for a key, including the checks that were refused.
///
/// It follows a growing demand at once, and a falling demand within a few paces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecentDemand {
    /// The smoothed rate: parts of units in a pace.
    rate: u64,
    /// The units of the checks since `since_us`.
    units: u64,
    since_us: u64,
}

impl RecentDemand {
    /// Makes a demand of the units that checks wanted since `since_us`.
    pub(crate) const fn since(since_us: u64, units: u64) -> RecentDemand {
        RecentDemand { rate: 0, units, since_us }
    }

    #[inline]
    pub(crate) const fn add(&mut self, units: u64) {
        self.units = self.units.saturating_add(units);
    }

    /// Brings the rate up to `now_us`. Within a pace after the last time, the rate can only grow.
    pub(crate) fn update(&mut self, now_us: u64, pace_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us < pace_us {
            // Few units in a very short time say little about the rate.
            let rate = rate_of(self.units, elapsed_us.max(pace_us / 8), pace_us);
            self.rate = self.rate.max(rate);
            return;
        }
        let rate = rate_of(self.units, elapsed_us, pace_us);
        self.rate = if rate >= self.rate { rate } else { self.falling(rate, elapsed_us, pace_us) };
        (self.units, self.since_us) = (0, now_us);
    }

    /// The mean of the old rate, which weighs four paces, and the new one, which weighs the time that it was measured.
    fn falling(&self, rate: u64, elapsed_us: u64, pace_us: u64) -> u64 {
        let (old, new) = (u128::from(pace_us) * 4, u128::from(elapsed_us));
        let sum = u128::from(self.rate) * old + u128::from(rate) * new;
        // OK because a mean is at most the larger of the two.
        (sum / (old + new)) as u64
    }

    /// Returns the units that are needed in `time_us`, rounded up.
    pub(crate) fn units_in(&self, time_us: u64, pace_us: u64) -> u64 {
        let parts = u128::from(self.rate).saturating_mul(u128::from(time_us));
        let units = parts.div_ceil(u128::from(pace_us.max(1)) * u128::from(PARTS));
        u64::try_from(units).unwrap_or(u64::MAX)
    }
}

fn rate_of(units: u64, elapsed_us: u64, pace_us: u64) -> u64 {
    let parts = u128::from(units).saturating_mul(u128::from(PARTS) * u128::from(pace_us));
    u64::try_from(parts / u128::from(elapsed_us.max(1))).unwrap_or(MAX_RATE).min(MAX_RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE_US: u64 = 10_000;

    #[test]
    fn demand_grows_at_once_and_falls_within_a_few_paces() {
        let mut demand = RecentDemand::since(0, 0);
        demand.add(100);
        demand.update(PACE_US, PACE_US);
        assert_eq!(demand.units_in(PACE_US, PACE_US), 100);
        assert_eq!(demand.units_in(PACE_US / 2, PACE_US), 50);
        demand.update(2 * PACE_US, PACE_US);
        assert_eq!(demand.units_in(PACE_US, PACE_US), 80);
        demand.update(1_000 * PACE_US, PACE_US);
        assert_eq!(demand.units_in(PACE_US, PACE_US), 1);
    }

    #[test]
    fn demand_within_a_pace_counts_as_a_rate() {
        let mut demand = RecentDemand::since(0, 0);
        demand.add(100);
        demand.update(PACE_US / 2, PACE_US);
        assert_eq!(demand.units_in(PACE_US, PACE_US), 200);
        demand.add(100);
        demand.update(PACE_US, PACE_US); // the same 200 in the whole pace
        assert_eq!(demand.units_in(PACE_US, PACE_US), 200);
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let mut demand = RecentDemand::since(0, u64::MAX);
        demand.add(u64::MAX);
        demand.update(0, u64::MAX);
        demand.update(u64::MAX, 1);
        assert!(demand.units_in(u64::MAX, 1) > 0);
    }
}
