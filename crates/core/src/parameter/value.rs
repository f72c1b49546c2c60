//! The values of parameters as text: `10`, `250ms`, `3/7ms`.

use alloc::format;
use core::str::FromStr;
use core::time::Duration;

use super::error::{Excerpt, LimitError};
use super::name::AlgorithmName;
use super::rate::Rate;
use super::time::TimeUnit;

/// The longest text that is read: longer than any limit in text form, with room for spaces.
pub(crate) const MAX_TEXT_BYTES: usize = 1_024;

/// A parameter's name and the text of its value.
#[derive(Clone, Copy)]
pub(crate) struct ParameterText<'t> {
    pub(crate) name: &'static str,
    pub(crate) value: &'t str,
}

impl FromStr for AlgorithmName {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<AlgorithmName, LimitError> {
        let name = AlgorithmName::ALL.into_iter().find(|name| name.as_str() == text);
        name.ok_or_else(|| LimitError::UnknownAlgorithm { found: Excerpt::of(text) })
    }
}

impl FromStr for Rate {
    type Err = LimitError;

    /// Reads `10/s`, `0.1/s` or `3/7ms`.
    fn from_str(text: &str) -> Result<Rate, LimitError> {
        parse_rate(ParameterText { name: "rate", value: text })
    }
}

/// Parses a duration such as `250ms`. An error names it as `parameter`.
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
    duration(ParameterText { name: parameter, value: text })
}

pub(crate) fn duration(text: ParameterText<'_>) -> Result<Duration, LimitError> {
    let wrong =
        || LimitError::NotADuration { parameter: text.name, found: Excerpt::of(text.value) };
    let (count, unit) = split_unit(text.value);
    let count = digits(count).ok_or_else(wrong)?;
    let unit = time_unit(unit, text)?.ok_or_else(wrong)?;
    Ok(Duration::from_micros(count.saturating_mul(unit.us())))
}

/// Splits `250ms` into its digits and what follows them.
fn split_unit(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// Parses the unit at the end of a value; `None` if it is empty or has characters other than letters.
fn time_unit(unit: &str, text: ParameterText<'_>) -> Result<Option<TimeUnit>, LimitError> {
    if let Some(known) = TimeUnit::ALL.into_iter().find(|known| known.as_str() == unit) {
        return Ok(Some(known));
    }
    if unit.is_empty() || !unit.chars().all(char::is_alphabetic) {
        return Ok(None);
    }
    let before = &text.value[..text.value.len() - unit.len()];
    let suggestion = TimeUnit::meant_by(unit).map(|meant| format!("{before}{meant}"));
    Err(LimitError::UnknownUnit {
        parameter: text.name,
        found: Excerpt::of(text.value),
        unit: Excerpt::of(unit),
        suggestion,
    })
}

pub(crate) fn units(ParameterText { name, value }: ParameterText<'_>) -> Result<u64, LimitError> {
    digits(value)
        .ok_or_else(|| LimitError::NotANumber { parameter: name, found: Excerpt::of(value) })
}

/// Parses a number of digits only; `parse` would accept a sign as well. A number that does not fit 64 bits becomes
/// `u64::MAX`, which the range checks refuse.
fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Parses `10/s`, `0.1/s` or `3/7ms`. The decimals and the time both become part of one fraction.
pub(crate) fn parse_rate(text: ParameterText<'_>) -> Result<Rate, LimitError> {
    let wrong = || LimitError::NotARate { parameter: text.name, found: Excerpt::of(text.value) };
    let (units, time) = text.value.split_once('/').ok_or_else(wrong)?;
    let (whole, decimals) = match units.split_once('.') {
        Some((_, "")) => return Err(wrong()),
        Some(parts) => parts,
        None => (units, ""),
    };
    let whole = digits(whole).ok_or_else(wrong)?;
    let part = if decimals.is_empty() { 0 } else { digits(decimals).ok_or_else(wrong)? };
    let (count, unit) = split_unit(time);
    let count = if count.is_empty() { Some(1) } else { digits(count) };
    let count = count.filter(|&count| count > 0).ok_or_else(wrong)?;
    let unit = time_unit(unit, text)?.ok_or_else(wrong)?;
    // At most 15 decimals: 10^-15 units a second are one unit in 11 billion days. OK because 10^15 times 2^64 fits
    // u128.
    if decimals.len() > 15 {
        return Err(LimitError::RateOutOfRange { parameter: text.name });
    }
    let scale = 10_u128.pow(decimals.len() as u32);
    let units = u128::from(whole) * scale + u128::from(part);
    let per_us = u128::from(count.saturating_mul(unit.us())) * scale;
    Rate::reduced(text.name, units, per_us)
}
