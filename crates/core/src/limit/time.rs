//! Durations as text, and their units: `250ms`.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;

use super::LimitError;
use super::error::Excerpt;
use super::text::{Given, MAX_TEXT_BYTES, digits};

/// Reads `250ms`; a refusal names it as `parameter`.
///
/// ```
/// # use core::time::Duration;
/// # use tollgate_core::parse_duration;
/// assert_eq!(parse_duration("deadline", "10ms")?, Duration::from_millis(10));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub fn parse_duration(parameter: &'static str, text: &str) -> Result<Duration, LimitError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(LimitError::NotADuration { parameter, found: Excerpt::of(text) });
    }
    duration(Given { name: parameter, value: text })
}

pub(super) fn duration(given: Given<'_>) -> Result<Duration, LimitError> {
    let wrong =
        || LimitError::NotADuration { parameter: given.name, found: Excerpt::of(given.value) };
    let (count, unit) = split_unit(given.value);
    let count = digits(count).ok_or_else(wrong)?;
    let unit = TimeUnit::of(unit, given)?.ok_or_else(wrong)?;
    Ok(Duration::from_micros(count.saturating_mul(unit.us())))
}

/// Splits `250ms` into its digits and what follows them.
pub(super) fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

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
    const ALL: [TimeUnit; 6] = [
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

    const fn as_str(self) -> &'static str {
        match self {
            TimeUnit::Microsecond => "us",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Second => "s",
            TimeUnit::Minute => "m",
            TimeUnit::Hour => "h",
            TimeUnit::Day => "d",
        }
    }

    /// The unit at the end of a value; `None` when there is none or it is no word at all.
    pub(super) fn of(unit: &str, given: Given<'_>) -> Result<Option<TimeUnit>, LimitError> {
        if let Some(known) = TimeUnit::ALL.into_iter().find(|known| known.as_str() == unit) {
            return Ok(Some(known));
        }
        if unit.is_empty() || !unit.chars().all(char::is_alphabetic) {
            return Ok(None);
        }
        let before = &given.value[..given.value.len() - unit.len()];
        let suggestion = TimeUnit::meant_by(unit).map(|meant| format!("{before}{meant}"));
        Err(LimitError::UnknownUnit {
            parameter: given.name,
            found: Excerpt::of(given.value),
            unit: Excerpt::of(unit),
            suggestion,
        })
    }

    fn meant_by(unit: &str) -> Option<TimeUnit> {
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

/// A duration as limits have it, in the longest unit in which it is whole: `90s`, `1m`, `1500ms`.
pub fn duration_text(us: u64) -> String {
    struct Text(u64);
    impl fmt::Display for Text {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_duration(f, self.0)
        }
    }
    Text(us).to_string()
}

/// Writes a duration in the longest unit in which it is whole: `90s`, `1m`, `1500ms`.
pub(super) fn write_duration(f: &mut fmt::Formatter<'_>, us: u64) -> fmt::Result {
    let unit = TimeUnit::ALL.into_iter().find(|unit| us.is_multiple_of(unit.us()));
    let unit = unit.unwrap_or(TimeUnit::Microsecond);
    write!(f, "{}{unit}", us / unit.us())
}
