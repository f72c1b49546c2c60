//! Limits as text: `token-bucket capacity=10 refill=1/s`, and back.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::error::Excerpt;
use super::time::{TimeUnit, duration, split_unit, write_duration};
use super::{Limit, LimitError, Rate};
use crate::algorithm::{
    FixedWindow, LeakyBucket, Mode, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};

/// Longer than any limit can be written, with room for spaces.
pub(super) const MAX_TEXT_BYTES: usize = 1_024;

/// An algorithm's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// `fixed-window`
    FixedWindow,
    /// `sliding-window-log`
    SlidingWindowLog,
    /// `sliding-window-counter`
    SlidingWindowCounter,
    /// `token-bucket`
    TokenBucket,
    /// `leaky-bucket`
    LeakyBucket,
}

impl AlgorithmName {
    /// Every algorithm.
    pub const ALL: [AlgorithmName; 5] = [
        AlgorithmName::FixedWindow,
        AlgorithmName::SlidingWindowLog,
        AlgorithmName::SlidingWindowCounter,
        AlgorithmName::TokenBucket,
        AlgorithmName::LeakyBucket,
    ];

    /// The name as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            AlgorithmName::FixedWindow => "fixed-window",
            AlgorithmName::SlidingWindowLog => "sliding-window-log",
            AlgorithmName::SlidingWindowCounter => "sliding-window-counter",
            AlgorithmName::TokenBucket => "token-bucket",
            AlgorithmName::LeakyBucket => "leaky-bucket",
        }
    }

    /// The names of its parameters. All are required but a leaky bucket's mode.
    pub const fn parameters(self) -> &'static [&'static str] {
        match self {
            AlgorithmName::FixedWindow
            | AlgorithmName::SlidingWindowLog
            | AlgorithmName::SlidingWindowCounter => &["limit", "window"],
            AlgorithmName::TokenBucket => &["capacity", "refill"],
            AlgorithmName::LeakyBucket => &["capacity", "leak", "mode"],
        }
    }

    pub(super) const fn example(self) -> &'static str {
        match self {
            AlgorithmName::FixedWindow => "fixed-window limit=100 window=60s",
            AlgorithmName::SlidingWindowLog => "sliding-window-log limit=5 window=15m",
            AlgorithmName::SlidingWindowCounter => "sliding-window-counter limit=100 window=60s",
            AlgorithmName::TokenBucket => "token-bucket capacity=10 refill=1/s",
            AlgorithmName::LeakyBucket => "leaky-bucket capacity=10 leak=1/s mode=policing",
        }
    }

    /// The name someone meant who wrote `TokenBucket`, `token_bucket` or `leaky`.
    pub(super) fn meant_by(text: &str) -> Option<AlgorithmName> {
        let letters = |text: &str| {
            let letters = text.chars().filter(char::is_ascii_alphanumeric);
            letters.map(|letter| letter.to_ascii_lowercase()).collect::<alloc::string::String>()
        };
        let meant = letters(text);
        if meant.len() < 4 {
            return None;
        }
        AlgorithmName::ALL.into_iter().find(|name| letters(name.as_str()).starts_with(&meant))
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AlgorithmName {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<AlgorithmName, LimitError> {
        let name = AlgorithmName::ALL.into_iter().find(|name| name.as_str() == text);
        name.ok_or_else(|| LimitError::UnknownAlgorithm { found: Excerpt::of(text) })
    }
}

/// The same as parsing it: where a limit is wanted, its text will do.
impl TryFrom<&str> for Limit {
    type Error = LimitError;

    fn try_from(text: &str) -> Result<Limit, LimitError> {
        text.parse()
    }
}

impl TryFrom<&String> for Limit {
    type Error = LimitError;

    fn try_from(text: &String) -> Result<Limit, LimitError> {
        text.parse()
    }
}

impl TryFrom<String> for Limit {
    type Error = LimitError;

    fn try_from(text: String) -> Result<Limit, LimitError> {
        text.parse()
    }
}

impl FromStr for Limit {
    type Err = LimitError;

    /// Reads the text form: the algorithm, then its parameters in any order.
    fn from_str(text: &str) -> Result<Limit, LimitError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(LimitError::TooLong { bytes: text.len() });
        }
        let mut words = text.split_whitespace();
        let algorithm = words.next().ok_or(LimitError::Empty)?;
        read(
            algorithm.parse()?,
            words.map(|word| match word.split_once('=') {
                Some(pair) => Ok(pair),
                None => Err(LimitError::NotAPair { found: Excerpt::of(word) }),
            }),
        )
    }
}

impl Limit {
    /// Reads an algorithm's parameters, each a name and a value as the text form has them, in any order.
    ///
    /// ```
    /// # use tollgate_core::{AlgorithmName, Limit};
    /// let parameters = [("refill", "1/s"), ("capacity", "10")];
    /// let limit = Limit::from_parameters(AlgorithmName::TokenBucket, parameters)?;
    /// assert_eq!(limit.to_string(), "token-bucket capacity=10 refill=1/s");
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    pub fn from_parameters<'t>(
        algorithm: AlgorithmName,
        parameters: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Limit, LimitError> {
        read(algorithm, parameters.into_iter().map(Ok))
    }
}

fn read<'t>(
    name: AlgorithmName,
    pairs: impl Iterator<Item = Result<(&'t str, &'t str), LimitError>>,
) -> Result<Limit, LimitError> {
    Ok(match name {
        AlgorithmName::FixedWindow => {
            let (limit, window) = limit_and_window(name, pairs)?;
            FixedWindow::new(limit, window)?.into()
        }
        AlgorithmName::SlidingWindowLog => {
            let (limit, window) = limit_and_window(name, pairs)?;
            SlidingWindowLog::new(limit, window)?.into()
        }
        AlgorithmName::SlidingWindowCounter => {
            let (limit, window) = limit_and_window(name, pairs)?;
            SlidingWindowCounter::new(limit, window)?.into()
        }
        AlgorithmName::TokenBucket => {
            let [capacity, refill] = values(name, ["capacity", "refill"], pairs)?;
            let (capacity, refill) = (capacity.given(name)?, refill.given(name)?);
            TokenBucket::new(units(capacity)?, rate(refill)?)?.into()
        }
        AlgorithmName::LeakyBucket => {
            let [capacity, leak, mode] = values(name, ["capacity", "leak", "mode"], pairs)?;
            let (capacity, leak) = (capacity.given(name)?, leak.given(name)?);
            LeakyBucket::new(units(capacity)?, rate(leak)?, self::mode(mode)?)?.into()
        }
    })
}

impl FromStr for Rate {
    type Err = LimitError;

    /// Reads `10/s`, `0.1/s` or `3/7ms`.
    fn from_str(text: &str) -> Result<Rate, LimitError> {
        rate(Given { name: "rate", value: text })
    }
}

impl fmt::Display for Limit {
    /// The text form, which parses back to an equal limit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.name())?;
        let (limit, window_us) = match self {
            Limit::FixedWindow(it) => (it.limit(), it.window_us()),
            Limit::SlidingWindowLog(it) => (it.limit(), it.window_us()),
            Limit::SlidingWindowCounter(it) => (it.limit(), it.window_us()),
            Limit::TokenBucket(it) => {
                return write!(f, "capacity={} refill={}", it.capacity(), it.refill());
            }
            Limit::LeakyBucket(it) => {
                let (capacity, leak, mode) = (it.capacity(), it.leak(), it.mode());
                return write!(f, "capacity={capacity} leak={leak} mode={mode}");
            }
        };
        write!(f, "limit={limit} window=")?;
        write_duration(f, window_us)
    }
}

/// A parameter's name, and its value if it was given.
#[derive(Clone, Copy)]
struct Parameter<'t> {
    name: &'static str,
    value: Option<&'t str>,
}

/// A parameter that was given.
#[derive(Clone, Copy)]
pub(super) struct Given<'t> {
    pub(super) name: &'static str,
    pub(super) value: &'t str,
}

impl<'t> Parameter<'t> {
    fn given(self, algorithm: AlgorithmName) -> Result<Given<'t>, LimitError> {
        match self.value {
            Some(value) => Ok(Given { name: self.name, value }),
            None => Err(LimitError::Missing { algorithm, parameter: self.name }),
        }
    }
}

/// Sorts names and values into the parameters an algorithm has.
fn values<'t, const N: usize>(
    algorithm: AlgorithmName,
    names: [&'static str; N],
    pairs: impl Iterator<Item = Result<(&'t str, &'t str), LimitError>>,
) -> Result<[Parameter<'t>; N], LimitError> {
    let mut parameters = names.map(|name| Parameter { name, value: None });
    for pair in pairs {
        let (name, value) = pair?;
        let Some(parameter) = parameters.iter_mut().find(|parameter| parameter.name == name) else {
            return Err(LimitError::UnknownParameter { algorithm, found: Excerpt::of(name) });
        };
        if value.len() > MAX_TEXT_BYTES {
            let (parameter, bytes) = (parameter.name, value.len());
            return Err(LimitError::ValueTooLong { parameter, bytes });
        }
        if parameter.value.replace(value).is_some() {
            return Err(LimitError::Repeated { parameter: parameter.name });
        }
    }
    Ok(parameters)
}

fn limit_and_window<'t>(
    algorithm: AlgorithmName,
    pairs: impl Iterator<Item = Result<(&'t str, &'t str), LimitError>>,
) -> Result<(u64, Duration), LimitError> {
    let [limit, window] = values(algorithm, ["limit", "window"], pairs)?;
    let (limit, window) = (limit.given(algorithm)?, window.given(algorithm)?);
    Ok((units(limit)?, duration(window)?))
}

fn units(Given { name, value }: Given<'_>) -> Result<u64, LimitError> {
    digits(value)
        .ok_or_else(|| LimitError::NotANumber { parameter: name, found: Excerpt::of(value) })
}

/// A number of digits alone: `parse` would take a sign as well. One too large for 64 bits becomes
/// the largest, for the ranges to refuse.
pub(super) fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn mode(parameter: Parameter<'_>) -> Result<Mode, LimitError> {
    match parameter.value {
        None | Some("policing") => Ok(Mode::Policing),
        Some("shaping") => Ok(Mode::Shaping),
        Some(other) => Err(LimitError::UnknownMode { found: Excerpt::of(other) }),
    }
}

/// `10/s`, `0.1/s`, `3/7ms`: the decimal and the time both become parts of one fraction.
fn rate(given: Given<'_>) -> Result<Rate, LimitError> {
    let wrong = || LimitError::NotARate { parameter: given.name, found: Excerpt::of(given.value) };
    let (units, time) = given.value.split_once('/').ok_or_else(wrong)?;
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
    let unit = TimeUnit::of(unit, given)?.ok_or_else(wrong)?;
    // 15 decimals: a unit in a billion days. OK because 10^15 times 2^64 fits u128.
    if decimals.len() > 15 {
        return Err(LimitError::RateOutOfRange { parameter: given.name });
    }
    let scale = 10_u128.pow(decimals.len() as u32);
    let units = u128::from(whole) * scale + u128::from(part);
    let per_us = u128::from(count.saturating_mul(unit.us())) * scale;
    Rate::reduced(given.name, units, per_us)
}
