//! Durations as text, and their units: `250ms`.

use alloc::string::{String, ToString};
use core::fmt;

/// A unit of time, as written after a number.
#[derive(Clone, Copy)]
pub(super) enum TimeUnit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
}

impl TimeUnit {
    /// Longest first.
    pub(super) const ALL: [TimeUnit; 6] = [
        TimeUnit::Day,
        TimeUnit::Hour,
        TimeUnit::Minute,
        TimeUnit::Second,
        TimeUnit::Millisecond,
        TimeUnit::Microsecond,
    ];

    pub(super) const fn us(self) -> u64 {
        match self {
            TimeUnit::Microsecond => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Second => 1_000_000,
            TimeUnit::Minute => 60_000_000,
            TimeUnit::Hour => 3_600_000_000,
            TimeUnit::Day => 86_400_000_000,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            TimeUnit::Microsecond => "us",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Second => "s",
            TimeUnit::Minute => "m",
            TimeUnit::Hour => "h",
            TimeUnit::Day => "d",
        }
    }

    pub(super) fn meant_by(unit: &str) -> Option<TimeUnit> {
        const BEGINNINGS: [(&str, TimeUnit); 11] = [
            ("milli", TimeUnit::Millisecond),
            ("msec", TimeUnit::Millisecond),
            ("micro", TimeUnit::Microsecond),
            ("usec", TimeUnit::Microsecond),
            ("µ", TimeUnit::Microsecond),
            ("μ", TimeUnit::Microsecond),
            ("sec", TimeUnit::Second),
            ("min", TimeUnit::Minute),
            ("hour", TimeUnit::Hour),
            ("hr", TimeUnit::Hour),
            ("day", TimeUnit::Day),
        ];
        let unit = unit.to_lowercase();
        let begins = |&&(beginning, _): &&(&str, TimeUnit)| unit.starts_with(beginning);
        if let Some((_, meant)) = BEGINNINGS.iter().find(begins) {
            return Some(*meant);
        }
        TimeUnit::ALL.into_iter().find(|known| known.as_str() == unit)
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns a duration as a limit's text writes it, in the longest unit in which it is whole: `90s`, `1m`, `1500ms`.
pub fn duration_text(us: u64) -> String {
    struct DurationText(u64);
    impl fmt::Display for DurationText {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_duration(f, self.0)
        }
    }
    DurationText(us).to_string()
}

/// Writes a duration in the longest unit in which it is whole: `90s`, `1m`, `1500ms`.
pub(crate) fn write_duration(f: &mut fmt::Formatter<'_>, us: u64) -> fmt::Result {
    let unit = TimeUnit::ALL.into_iter().find(|unit| us.is_multiple_of(unit.us()));
    let unit = unit.unwrap_or(TimeUnit::Microsecond);
    write!(f, "{}{unit}", us / unit.us())
}
