//! The exact level of a bucket.

use core::hint::select_unpredictable;
use core::num::NonZeroU64;

use crate::muldiv::muldiv;
use crate::parameter::Rate;

/// An exact amount in a bucket: whole units, and a fraction in parts of the rate's period.
///
/// At 3 units per 7 ms, half a unit is a fraction of 3500: 3500 / 7000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level {
    /// Whole units.
    pub units: u64,
    /// Parts of one unit, out of the rate's period in microseconds.
    pub fraction: u64,
}

impl Level {
    pub(super) const fn of(units: u64) -> Level {
        Level { units, fraction: 0 }
    }

    /// Whole units, rounded up.
    #[inline]
    pub(crate) fn ceil(self) -> u64 {
        self.units.saturating_add(u64::from(self.fraction > 0))
    }

    #[inline]
    pub(super) fn saturating_minus(self, other: Level, period_us: NonZeroU64) -> Level {
        let borrows = self.fraction < other.fraction;
        let taken = other.units.saturating_add(u64::from(borrows));
        let Some(units) = self.units.checked_sub(taken) else { return Level::default() };
        // Not a branch: which fraction is larger is unpredictable, and a wrong prediction costs 3 ns.
        let borrowed = select_unpredictable(borrows, period_us.get(), 0);
        // OK to wrap: the result is below the period.
        let fraction = self.fraction.wrapping_add(borrowed).wrapping_sub(other.fraction);
        Level { units, fraction }
    }

    /// Returns how long this level takes to drain, rounded up.
    #[inline]
    pub(super) fn drain_time_us(self, rate: Rate) -> u64 {
        let parts = self.units.checked_mul(rate.per_us.get());
        match parts.and_then(|parts| parts.checked_add(self.fraction)) {
            // Most rates are 1 unit per period in lowest terms, and need no division.
            Some(parts) if rate.units.get() == 1 => parts,
            Some(parts) => parts.div_ceil(rate.units.get()),
            None => self.drain_time_wide_us(rate),
        }
    }

    #[cold]
    fn drain_time_wide_us(self, rate: Rate) -> u64 {
        let (whole_us, parts) = muldiv(self.units, rate.per_us.get(), rate.units);
        let parts = parts.saturating_add(self.fraction);
        whole_us.saturating_add(parts.div_ceil(rate.units.get()))
    }

    /// The same amount at another rate, its fraction rounded up.
    pub(super) fn at_period(self, from_us: NonZeroU64, to_us: NonZeroU64) -> Level {
        let (fraction, part) = muldiv(self.fraction, to_us.get(), from_us);
        let fraction = fraction.saturating_add(u64::from(part > 0));
        if fraction < to_us.get() {
            Level { fraction, ..self }
        } else {
            Level::of(self.units.saturating_add(1))
        }
    }
}
