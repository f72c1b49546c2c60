//! A rate as a whole fraction.

use core::fmt;
use core::num::NonZeroU64;

use super::time::{TimeUnit, write_duration};
use crate::range::MAX_UNITS;

/// Units per time, exact: 3 per 7 ms is 3 / 7000 us, never 0.000428….
///
/// Kept in lowest terms, so 60 a minute and 1 a second are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(crate) units: NonZeroU64,
    pub(crate) per_us: NonZeroU64,
}

impl Rate {
    /// The fraction's numerator, in lowest terms.
    pub const fn units(&self) -> u64 {
        self.units.get()
    }

    /// The fraction's denominator, in lowest terms.
    pub const fn per_us(&self) -> u64 {
        self.per_us.get()
    }

    /// `units` for every `per_us`.
    pub(crate) fn in_lowest_terms(units: NonZeroU64, per_us: NonZeroU64) -> Rate {
        let divisor = greatest_common_divisor(units.get().into(), per_us.get().into());
        // OK because dividing both by a common divisor leaves at least 1 of each.
        let part = |number: NonZeroU64| {
            let part = u64::try_from(u128::from(number.get()) / divisor.max(1));
            part.ok().and_then(NonZeroU64::new).unwrap_or(number)
        };
        Rate { units: part(units), per_us: part(per_us) }
    }
}

impl fmt::Display for Rate {
    /// Writes a whole number of units per one unit of time, such as `100/m`, if the rate has that form; otherwise the
    /// fraction, such as `3/7ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TimeUnit::{Day, Hour, Microsecond, Millisecond, Minute, Second};
        for unit in [Second, Minute, Hour, Day, Millisecond, Microsecond] {
            let times = unit.us() / self.per_us;
            let units = self.units.get().saturating_mul(times);
            if unit.us() % self.per_us == 0 && units <= MAX_UNITS {
                return write!(f, "{units}/{unit}");
            }
        }
        write!(f, "{}/", self.units)?;
        write_duration(f, self.per_us.get())
    }
}

pub(super) fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
