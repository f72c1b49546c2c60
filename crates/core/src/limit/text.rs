//! Limits as text: `token-bucket capacity=10 refill=1/s`, and back.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::Limit;
use crate::algorithm::{
    Concurrency, FixedWindow, LeakyBucket, Mode, SlidingWindowCounter, SlidingWindowLog,
    TokenBucket,
};
use crate::parameter::{
    AlgorithmName, Excerpt, LimitError, MAX_TEXT_BYTES, ParameterText, duration, parse_rate, units,
    write_duration,
};

/// Parses a limit's text, so that a function that takes an `impl TryInto<Limit>` also accepts text.
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
            let (capacity, refill) = (capacity.required(name)?, refill.required(name)?);
            TokenBucket::new(units(capacity)?, parse_rate(refill)?)?.into()
        }
        AlgorithmName::LeakyBucket => {
            let [capacity, leak, mode] = values(name, ["capacity", "leak", "mode"], pairs)?;
            let (capacity, leak) = (capacity.required(name)?, leak.required(name)?);
            LeakyBucket::new(units(capacity)?, parse_rate(leak)?, self::mode(mode)?)?.into()
        }
        AlgorithmName::Concurrency => {
            let [limit, hold_for] = values(name, ["limit", "for"], pairs)?;
            let (limit, hold_for) = (limit.required(name)?, hold_for.required(name)?);
            Concurrency::new(units(limit)?, duration(hold_for)?)?.into()
        }
    })
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
            Limit::Concurrency(it) => {
                write!(f, "limit={} for=", it.limit())?;
                return write_duration(f, it.hold_for().as_us());
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

impl<'t> Parameter<'t> {
    /// Returns the name and the value, or an error if the value is missing.
    fn required(self, algorithm: AlgorithmName) -> Result<ParameterText<'t>, LimitError> {
        match self.value {
            Some(value) => Ok(ParameterText { name: self.name, value }),
            None => Err(LimitError::Missing { algorithm, parameter: self.name }),
        }
    }
}

/// Assigns the values to the parameters that the algorithm has.
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
    let (limit, window) = (limit.required(algorithm)?, window.required(algorithm)?);
    Ok((units(limit)?, duration(window)?))
}

fn mode(parameter: Parameter<'_>) -> Result<Mode, LimitError> {
    match parameter.value {
        None | Some("policing") => Ok(Mode::Policing),
        Some("shaping") => Ok(Mode::Shaping),
        Some(other) => Err(LimitError::UnknownMode { found: Excerpt::of(other) }),
    }
}
