//! A rate as a whole fraction.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

use super::LimitError;
use super::range::{MAX_FILL_US, MAX_UNITS, whole_us};
use super::time::{TimeUnit, write_duration};

/// Units per time, exact: 3 per 7 ms is 3 / 7000 us, never 0.000428….
///
/// Kept in lowest terms, so 60 a minute and 1 a second are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(crate) units: NonZeroU64,
    pub(crate) per_us: NonZeroU64,
}

impl Rate {
    /// `units` for every `per`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use tollgate_core::Rate;
    /// let rate = Rate::new(3, Duration::from_millis(7))?;
    /// assert_eq!(rate.to_string(), "3/7ms");
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn new(units: u64, per: Duration) -> Result<Rate, LimitError> {
        let per_us = whole_us("rate", per)?;
        Rate::reduced("rate", u128::from(units), u128::from(per_us.get()))
    }

    /// `units` every second: `per_second(10)` is ten a second, not one in ten.
    pub fn per_second(units: u64) -> Result<Rate, LimitError> {
        Rate::new(units, Duration::from_secs(1))
    }

    /// `units` every minute.
    pub fn per_minute(units: u64) -> Result<Rate, LimitError> {
        Rate::new(units, Duration::from_secs(60))
    }

    /// `units` every hour.
    pub fn per_hour(units: u64) -> Result<Rate, LimitError> {
        Rate::new(units, Duration::from_secs(3_600))
    }

    /// `units` every day of 24 hours.
    pub fn per_day(units: u64) -> Result<Rate, LimitError> {
        Rate::new(units, Duration::from_secs(86_400))
    }

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
        // OK because a divisor of both leaves at least 1 of each.
        let part = |number: NonZeroU64| {
            let part = u64::try_from(u128::from(number.get()) / divisor.max(1));
            part.ok().and_then(NonZeroU64::new).unwrap_or(number)
        };
        Rate { units: part(units), per_us: part(per_us) }
    }

    pub(super) fn reduced(
        parameter: &'static str,
        units: u128,
        per_us: u128,
    ) -> Result<Rate, LimitError> {
        let divisor = greatest_common_divisor(units, per_us).max(1);
        let narrow = |number: u128| u64::try_from(number / divisor).unwrap_or(u64::MAX);
        let units = NonZeroU64::new(narrow(units)).ok_or(LimitError::Zero { parameter })?;
        let per_us = NonZeroU64::new(narrow(per_us)).ok_or(LimitError::Zero { parameter })?;
        if units.get() > MAX_UNITS || per_us.get() > MAX_FILL_US {
            return Err(LimitError::RateOutOfRange { parameter });
        }
        Ok(Rate { units, per_us })
    }
}

impl fmt::Display for Rate {
    /// The usual unit in which it is a whole number, or the fraction itself: `100/m`, `3/7ms`.
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

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
