//! Why a limit was refused, and what to write instead.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use super::range::{MAX_LOG_UNITS, MAX_UNITS};
use super::rate::Rate;
use super::text::{Name, write_duration};

/// Why a limit was refused. The message names the parameter and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// The text is empty.
    Empty,
    /// The text is far longer than any limit.
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The text does not begin with an algorithm's name.
    UnknownAlgorithm {
        /// What it begins with.
        found: Excerpt,
    },
    /// A word is not of the form `name=value`.
    NotAPair {
        /// The word.
        found: Excerpt,
    },
    /// The algorithm has no such parameter.
    UnknownParameter {
        /// The algorithm.
        algorithm: Name,
        /// The parameter.
        found: Excerpt,
    },
    /// A parameter is given twice.
    Repeated {
        /// Which.
        parameter: &'static str,
    },
    /// A parameter is missing.
    Missing {
        /// The algorithm.
        algorithm: Name,
        /// Which.
        parameter: &'static str,
    },
    /// A value is not a whole number below 2^64.
    NotANumber {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        found: Excerpt,
    },
    /// A value is not a duration.
    NotADuration {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        found: Excerpt,
    },
    /// A value is not a rate.
    NotARate {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        found: Excerpt,
    },
    /// A duration or rate has an unknown unit of time.
    UnknownUnit {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        found: Excerpt,
        /// The unit.
        unit: Excerpt,
        /// The value with the unit that was probably meant.
        suggestion: Option<String>,
    },
    /// A leaky bucket's mode is neither policing nor shaping.
    UnknownMode {
        /// The mode.
        found: Excerpt,
    },
    /// A number, duration or rate is zero.
    Zero {
        /// The parameter.
        parameter: &'static str,
    },
    /// A limit or capacity is 2^53 or more.
    TooManyUnits {
        /// The parameter.
        parameter: &'static str,
        /// Its value.
        units: u64,
    },
    /// A sliding window log would keep too many entries.
    LogTooLarge {
        /// The limit.
        limit: u64,
    },
    /// A window is longer than 366 days.
    WindowTooLong {
        /// The window.
        window_us: u64,
    },
    /// A duration is not a whole number of microseconds.
    NotWholeMicroseconds {
        /// The parameter.
        parameter: &'static str,
        /// The duration.
        duration: Duration,
    },
    /// A rate's fraction, in lowest terms, needs numbers that are too large.
    RateOutOfRange {
        /// The parameter.
        parameter: &'static str,
    },
    /// A bucket takes over 100 years to fill.
    FillsTooSlowly {
        /// The capacity.
        capacity: u64,
        /// The rate.
        rate: Rate,
        /// What the rate is called: `refill` or `leak`.
        rate_parameter: &'static str,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LimitError::*;
        match self {
            Empty => {
                write!(f, "the limit is empty; write one like `{}`", Name::TokenBucket.example())
            }
            TooLong { bytes } => {
                write!(
                    f,
                    "the limit is {bytes} bytes long; write one like `{}`",
                    Name::TokenBucket.example()
                )
            }
            UnknownAlgorithm { found } => {
                write!(f, "unknown algorithm `{found}`; ")?;
                match Name::meant_by(&found.0) {
                    Some(name) => write!(f, "did you mean `{name}`?"),
                    None => write!(f, "use one of {}", Name::LIST),
                }
            }
            NotAPair { found } => {
                write!(f, "`{found}` is not a parameter; write it as `name=value`")
            }
            UnknownParameter { algorithm, found } => {
                write!(
                    f,
                    "{algorithm} has no parameter `{found}`; write it like `{}`",
                    algorithm.example()
                )
            }
            Repeated { parameter } => write!(f, "`{parameter}` is given twice; keep one of them"),
            Missing { algorithm, parameter } => {
                write!(
                    f,
                    "`{parameter}` is missing; write the limit like `{}`",
                    algorithm.example()
                )
            }
            NotANumber { parameter, found } => {
                write!(
                    f,
                    "`{parameter}={found}` is not a whole number from 1 to {MAX_UNITS}; use digits alone"
                )
            }
            NotADuration { parameter, found } => {
                write!(
                    f,
                    "`{parameter}={found}` is not a duration; use one whole number and one unit, like `250ms`, `90m` or `24h`"
                )
            }
            NotARate { parameter, found } => {
                write!(
                    f,
                    "`{parameter}={found}` is not a rate; use a number and a time, like `10/s`, `0.1/s` or `3/7ms`"
                )
            }
            UnknownUnit { parameter, found, unit, suggestion } => {
                write!(
                    f,
                    "`{parameter}={found}` has an unknown unit `{unit}`; use one of us, ms, s, m, h, d"
                )?;
                match suggestion {
                    Some(suggestion) => write!(f, "; did you mean `{suggestion}`?"),
                    None => Ok(()),
                }
            }
            UnknownMode { found } => {
                write!(f, "`mode={found}` is unknown; use `mode=policing` or `mode=shaping`")
            }
            Zero { parameter } => {
                write!(f, "`{parameter}` is zero; use a value above zero")
            }
            TooManyUnits { parameter, units } => {
                write!(f, "`{parameter}={units}` is 2^53 or more; use at most {MAX_UNITS}")
            }
            LogTooLarge { limit } => {
                write!(
                    f,
                    "`limit={limit}` is above the {MAX_LOG_UNITS} that a sliding-window-log keeps; use sliding-window-counter"
                )
            }
            WindowTooLong { window_us } => {
                write!(f, "`window=")?;
                write_duration(f, *window_us)?;
                write!(f, "` is above 366 days; use a shorter window")
            }
            NotWholeMicroseconds { parameter, duration } => {
                write!(
                    f,
                    "`{parameter}` of {duration:?} is not a whole number of microseconds; round it"
                )
            }
            RateOutOfRange { parameter } => {
                write!(
                    f,
                    "`{parameter}` is out of range: in lowest terms, a rate has at most {MAX_UNITS} units and a period of at most 100 years; use a rounder or faster one"
                )
            }
            FillsTooSlowly { capacity, rate, rate_parameter } => {
                write!(
                    f,
                    "`capacity={capacity}` at `{rate_parameter}={rate}` takes over 100 years to fill; raise `{rate_parameter}` or lower `capacity`"
                )
            }
        }
    }
}

impl core::error::Error for LimitError {}

/// The part of an offending text that an error shows: short, and safe to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt(String);

impl Excerpt {
    const MAX_CHARS: usize = 40;

    /// The first 40 characters of `text`, escaped.
    pub fn of(text: &str) -> Excerpt {
        let mut excerpt: String =
            text.chars().take(Excerpt::MAX_CHARS).flat_map(char::escape_debug).collect();
        if text.chars().nth(Excerpt::MAX_CHARS).is_some() {
            excerpt.push('…');
        }
        Excerpt(excerpt)
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
