//! The numbers a limit accepts. Within them all arithmetic is exact, in integers here and in
//! doubles on Redis.

use core::num::NonZeroU64;
use core::time::Duration;

use super::LimitError;

/// The largest limit, capacity or cost: 2^53 - 1, the last whole number before doubles skip one.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The most units a sliding window log keeps.
pub const MAX_LOG_UNITS: u64 = 65_536;

/// The longest window: 366 days.
pub const MAX_WINDOW_US: u64 = 366 * DAY_US;

/// The longest a bucket may take to fill: 100 years of 365.25 days.
pub const MAX_FILL_US: u64 = 36_525 * DAY_US;

pub(super) const DAY_US: u64 = 86_400_000_000;

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

/// A duration as microseconds, refused rather than rounded.
pub(super) fn whole_us(
    parameter: &'static str,
    duration: Duration,
) -> Result<NonZeroU64, LimitError> {
    if !duration.subsec_nanos().is_multiple_of(1_000) {
        return Err(LimitError::NotWholeMicroseconds { parameter, duration });
    }
    let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    NonZeroU64::new(us).ok_or(LimitError::Zero { parameter })
}
