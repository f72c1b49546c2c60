//! Why a limit was refused, and what to write instead.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use super::range::{MAX_LOG_UNITS, MAX_UNITS};
use super::rate::Rate;
use super::text::AlgorithmName;

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
        algorithm: AlgorithmName,
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
        algorithm: AlgorithmName,
        /// Which.
        parameter: &'static str,
    },
    /// A value is not a whole number.
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
    },
    /// A sliding window log would keep too many entries.
    LogTooLarge {
        /// The limit.
        limit: u64,
    },
    /// A window is longer than 366 days.
    WindowTooLong,
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
        match self {
            LimitError::Zero { .. }
            | LimitError::TooManyUnits { .. }
            | LimitError::LogTooLarge { .. }
            | LimitError::WindowTooLong
            | LimitError::NotWholeMicroseconds { .. }
            | LimitError::RateOutOfRange { .. }
            | LimitError::FillsTooSlowly { .. } => self.write_out_of_range(f),
            _ => self.write_misread(f),
        }
    }
}

impl LimitError {
    /// What is wrong with a text that cannot be read.
    fn write_misread(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let example = AlgorithmName::TokenBucket.example();
        match self {
            LimitError::Empty => write!(f, "the limit is empty; write one like `{example}`"),
            LimitError::TooLong { bytes } => {
                write!(f, "the limit is {bytes} bytes long; write one like `{example}`")
            }
            LimitError::UnknownAlgorithm { found } => {
                write!(f, "unknown algorithm `{found}`; ")?;
                match AlgorithmName::meant_by(&found.0) {
                    Some(name) => write!(f, "did you mean `{name}`?"),
                    None => write!(f, "use one of {}", names()),
                }
            }
            LimitError::NotAPair { found } => {
                write!(f, "`{found}` is not a parameter; write it as `name=value`")
            }
            LimitError::UnknownParameter { algorithm, found } => {
                let example = algorithm.example();
                write!(f, "{algorithm} has no parameter `{found}`; write it like `{example}`")
            }
            LimitError::Repeated { parameter } => {
                write!(f, "`{parameter}` is given twice; keep one of them")
            }
            LimitError::Missing { algorithm, parameter } => {
                let example = algorithm.example();
                write!(f, "`{parameter}` is missing; write the limit like `{example}`")
            }
            LimitError::NotANumber { parameter, found } => {
                write!(f, "`{parameter}={found}` is not a whole number; use digits alone")
            }
            LimitError::NotADuration { parameter, found } => {
                write!(f, "`{parameter}={found}` is not a duration; ")?;
                write!(f, "use one whole number and one unit, like `250ms`, `90m` or `24h`")
            }
            LimitError::NotARate { parameter, found } => {
                write!(f, "`{parameter}={found}` is not a rate; ")?;
                write!(f, "use a number and a time, like `10/s`, `0.1/s` or `3/7ms`")
            }
            LimitError::UnknownUnit { parameter, found, unit, suggestion } => {
                write!(f, "`{parameter}={found}` has an unknown unit `{unit}`; ")?;
                write!(f, "use one of us, ms, s, m, h, d")?;
                match suggestion {
                    Some(suggestion) => write!(f, "; did you mean `{suggestion}`?"),
                    None => Ok(()),
                }
            }
            LimitError::UnknownMode { found } => {
                write!(f, "`mode={found}` is unknown; use `mode=policing` or `mode=shaping`")
            }
            _ => Ok(()),
        }
    }

    /// What is wrong with numbers that would not be exact.
    fn write_out_of_range(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitError::Zero { parameter } => {
                write!(f, "`{parameter}` is zero; use a value above zero")
            }
            LimitError::TooManyUnits { parameter } => {
                write!(f, "`{parameter}` is 2^53 or more; use at most {MAX_UNITS}")
            }
            LimitError::LogTooLarge { limit } => {
                write!(f, "`limit={limit}` is above the {MAX_LOG_UNITS} ")?;
                write!(f, "that a sliding-window-log keeps; use sliding-window-counter")
            }
            LimitError::WindowTooLong => {
                write!(f, "`window` is above 366 days; use a shorter window")
            }
            LimitError::NotWholeMicroseconds { parameter, duration } => {
                write!(f, "`{parameter}` of {duration:?} is not whole microseconds; round it")
            }
            LimitError::RateOutOfRange { parameter } => {
                write!(f, "`{parameter}` is out of range: in lowest terms, a rate has at most ")?;
                write!(f, "{MAX_UNITS} units and a period of at most 100 years; ")?;
                write!(f, "use a rounder or faster one")
            }
            LimitError::FillsTooSlowly { capacity, rate, rate_parameter } => {
                write!(f, "`capacity={capacity}` at `{rate_parameter}={rate}` takes over ")?;
                write!(f, "100 years to fill; raise `{rate_parameter}` or lower `capacity`")
            }
            _ => Ok(()),
        }
    }
}

fn names() -> String {
    AlgorithmName::ALL.map(AlgorithmName::as_str).join(", ")
}

impl core::error::Error for LimitError {}

/// The part of an offending text that an error shows: short, and safe to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt(String);

impl Excerpt {
    const MAX_CHARS: usize = 40;

    /// The first 40 characters of `text`, with what does not print escaped.
    pub fn of(text: &str) -> Excerpt {
        let mut excerpt = String::new();
        for letter in text.chars().take(Excerpt::MAX_CHARS) {
            match letter {
                '"' | '\'' | '\\' => excerpt.push(letter),
                _ => excerpt.extend(letter.escape_debug()),
            }
        }
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
