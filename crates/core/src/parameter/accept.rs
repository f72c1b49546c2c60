//! The checks of a limit's numbers against their ranges, and rates made of such numbers.

use core::num::NonZeroU64;
use core::time::Duration;

use super::error::LimitError;
use super::rate::{Rate, greatest_common_divisor};
use crate::holds::{HoldTime, MAX_HOLDS};
use crate::range::{MAX_FILL_US, MAX_LOG_UNITS, MAX_UNITS, MAX_WINDOW_US};

pub(crate) fn limit_units(parameter: &'static str, units: u64) -> Result<u64, LimitError> {
    match units {
        0 => Err(LimitError::Zero { parameter }),
        1..=MAX_UNITS => Ok(units),
        _ => Err(LimitError::TooManyUnits { parameter }),
    }
}

pub(crate) fn log_units(limit: u64) -> Result<u64, LimitError> {
    let limit = limit_units("limit", limit)?;
    if limit > MAX_LOG_UNITS {
        return Err(LimitError::LogTooLarge { limit });
    }
    Ok(limit)
}

pub(crate) fn window_us(window: Duration) -> Result<NonZeroU64, LimitError> {
    let window_us = whole_us("window", window)?;
    if window_us.get() > MAX_WINDOW_US {
        return Err(LimitError::WindowTooLong);
    }
    Ok(window_us)
}

pub(crate) fn concurrent_units(limit: u64) -> Result<u64, LimitError> {
    let limit = limit_units("limit", limit)?;
    if limit > MAX_HOLDS as u64 {
        return Err(LimitError::TooManyAtOnce { limit });
    }
    Ok(limit)
}

pub(crate) fn hold_time(time: Duration) -> Result<HoldTime, LimitError> {
    // OK because `whole_us` has refused 0.
    HoldTime::from_us(whole_us("for", time)?.get()).map_err(|_| LimitError::HoldTooLong)
}

/// Converts a duration to microseconds; refuses it where that would round.
fn whole_us(parameter: &'static str, duration: Duration) -> Result<NonZeroU64, LimitError> {
    if !duration.subsec_nanos().is_multiple_of(1_000) {
        return Err(LimitError::NotWholeMicroseconds { parameter, duration });
    }
    let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    NonZeroU64::new(us).ok_or(LimitError::Zero { parameter })
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
