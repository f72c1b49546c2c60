//! The largest numbers that a limit accepts. Within them all arithmetic is exact, in integers here and in doubles on
//! Redis.

/// The largest limit, capacity or cost: 2^53 - 1. Doubles hold every whole number up to 2^53 exactly.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The most units a sliding window log keeps.
pub const MAX_LOG_UNITS: u64 = 65_536;

/// The longest window: 366 days.
pub const MAX_WINDOW_US: u64 = 366 * DAY_US;

/// The longest a bucket may take to fill: 100 years of 365.25 days.
pub const MAX_FILL_US: u64 = 36_525 * DAY_US;

const DAY_US: u64 = 86_400_000_000;
