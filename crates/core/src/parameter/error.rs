//! Why a limit was refused, and what to write instead.

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use super::Rate;
use super::name::AlgorithmName;
use crate::holds::MAX_HOLDS;
use crate::range::{MAX_LOG_UNITS, MAX_UNITS};

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
        /// The first word of the text.
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
        /// The parameter.
        parameter: &'static str,
    },
    /// A parameter is missing.
    Missing {
        /// The algorithm.
        algorithm: AlgorithmName,
        /// The parameter.
        parameter: &'static str,
    },
    /// A value is far longer than any limit.
    ValueTooLong {
        /// The parameter.
        parameter: &'static str,
        /// The value's length.
        bytes: usize,
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
    /// A concurrency limit is above the number of holds that a key can have.
    TooManyAtOnce {
        /// The limit.
        limit: u64,
    },
    /// A window is longer than 366 days.
    WindowTooLong,
    /// A hold time is longer than 366 days.
    HoldTooLong,
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
        /// The name of the rate's parameter: `refill` or `leak`.
        rate_parameter: &'static str,
    },
}

/// How a message writes a parameter and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notation {
    /// `window=60s`, as a limit's text has it.
    Text,
    /// `window: 60s`, as YAML has it.
    Yaml,
}

impl Notation {
    const fn equals(self) -> &'static str {
        match self {
            Notation::Text => "=",
            Notation::Yaml => ": ",
        }
    }

    fn example(self, algorithm: AlgorithmName) -> String {
        let example = algorithm.example();
        match self {
            Notation::Text => example.into(),
            Notation::Yaml => {
                let fields = example.replace(' ', ", ").replace('=', ": ");
                format!("{{ algorithm: {fields} }}")
            }
        }
    }
}

impl fmt::Display for LimitError {
    /// Writes the problem, a semicolon and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem(Notation::Text), self.remedy(Notation::Text))
    }
}

impl LimitError {
    /// Returns the name of the wrong parameter, if a single parameter is wrong.
    pub fn parameter(&self) -> Option<&'static str> {
        match *self {
            LimitError::Empty
            | LimitError::TooLong { .. }
            | LimitError::UnknownAlgorithm { .. }
            | LimitError::NotAPair { .. }
            | LimitError::UnknownParameter { .. } => None,
            LimitError::Repeated { parameter }
            | LimitError::Missing { parameter, .. }
            | LimitError::ValueTooLong { parameter, .. }
            | LimitError::NotANumber { parameter, .. }
            | LimitError::NotADuration { parameter, .. }
            | LimitError::NotARate { parameter, .. }
            | LimitError::UnknownUnit { parameter, .. }
            | LimitError::Zero { parameter }
            | LimitError::TooManyUnits { parameter }
            | LimitError::NotWholeMicroseconds { parameter, .. }
            | LimitError::RateOutOfRange { parameter } => Some(parameter),
            LimitError::UnknownMode { .. } => Some("mode"),
            LimitError::LogTooLarge { .. } | LimitError::TooManyAtOnce { .. } => Some("limit"),
            LimitError::WindowTooLong => Some("window"),
            LimitError::HoldTooLong => Some("for"),
            LimitError::FillsTooSlowly { rate_parameter, .. } => Some(rate_parameter),
        }
    }

    /// Describes the problem.
    pub fn problem(&self, notation: Notation) -> String {
        let is = notation.equals();
        match self {
            LimitError::Empty => "the limit is empty".into(),
            LimitError::TooLong { bytes } => format!("the limit is {bytes} bytes long"),
            LimitError::UnknownAlgorithm { found } => format!("unknown algorithm `{found}`"),
            LimitError::NotAPair { found } => format!("`{found}` is not a parameter"),
            LimitError::UnknownParameter { algorithm, found } => {
                format!("{algorithm} has no parameter `{found}`")
            }
            LimitError::Repeated { parameter } => format!("`{parameter}` is given twice"),
            LimitError::Missing { parameter, .. } => format!("`{parameter}` is missing"),
            LimitError::ValueTooLong { parameter, bytes } => {
                format!("`{parameter}` is {bytes} bytes long")
            }
            LimitError::NotANumber { parameter, found } => {
                format!("`{parameter}{is}{found}` is not a whole number")
            }
            LimitError::NotADuration { parameter, found } => {
                format!("`{parameter}{is}{found}` is not a duration")
            }
            LimitError::NotARate { parameter, found } => {
                format!("`{parameter}{is}{found}` is not a rate")
            }
            LimitError::UnknownUnit { parameter, found, unit, .. } => {
                format!("`{parameter}{is}{found}` has an unknown unit `{unit}`")
            }
            LimitError::UnknownMode { found } => format!("`mode{is}{found}` is unknown"),
            LimitError::Zero { parameter } => format!("`{parameter}` is zero"),
            LimitError::TooManyUnits { parameter } => format!("`{parameter}` is 2^53 or more"),
            LimitError::LogTooLarge { limit } => format!(
                "`limit{is}{limit}` is above the {MAX_LOG_UNITS} that a sliding-window-log keeps"
            ),
            LimitError::TooManyAtOnce { limit } => format!(
                "`limit{is}{limit}` is above the {MAX_HOLDS} that a concurrency limit can hold at once"
            ),
            LimitError::WindowTooLong => "`window` is above 366 days".into(),
            LimitError::HoldTooLong => "`for` is above 366 days".into(),
            LimitError::NotWholeMicroseconds { parameter, duration } => {
                format!("`{parameter}` of {duration:?} is not whole microseconds")
            }
            LimitError::RateOutOfRange { parameter } => format!(
                "`{parameter}` is out of range: in lowest terms, a rate has at most {MAX_UNITS} \
                 units and a period of at most 100 years"
            ),
            LimitError::FillsTooSlowly { capacity, rate, rate_parameter } => format!(
                "`capacity{is}{capacity}` at `{rate_parameter}{is}{rate}` takes over 100 years to fill"
            ),
        }
    }

    /// Describes how to fix the problem.
    pub fn remedy(&self, notation: Notation) -> String {
        let is = notation.equals();
        match self {
            LimitError::Empty | LimitError::TooLong { .. } => {
                format!("write one like `{}`", AlgorithmName::TokenBucket.example())
            }
            LimitError::UnknownAlgorithm { found } => match AlgorithmName::meant_by(&found.0) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("use one of {}", names()),
            },
            LimitError::NotAPair { .. } => "write it as `name=value`".into(),
            LimitError::UnknownParameter { algorithm, .. } => {
                format!("write it like `{}`", notation.example(*algorithm))
            }
            LimitError::Repeated { .. } => "keep one of them".into(),
            LimitError::Missing { algorithm, .. } => {
                format!("write the limit like `{}`", notation.example(*algorithm))
            }
            LimitError::ValueTooLong { .. } => "use a shorter one".into(),
            LimitError::NotANumber { .. } => "use digits alone".into(),
            LimitError::NotADuration { .. } => {
                "use one whole number and one unit, like `250ms`, `90m` or `24h`".into()
            }
            LimitError::NotARate { .. } => {
                "use a number and a time, like `10/s`, `0.1/s` or `3/7ms`".into()
            }
            LimitError::UnknownUnit { suggestion, .. } => match suggestion {
                Some(meant) => format!("use one of us, ms, s, m, h, d; did you mean `{meant}`?"),
                None => "use one of us, ms, s, m, h, d".into(),
            },
            LimitError::UnknownMode { .. } => {
                format!("use `mode{is}policing` or `mode{is}shaping`")
            }
            LimitError::Zero { .. } => "use a value above zero".into(),
            LimitError::TooManyUnits { .. } => format!("use at most {MAX_UNITS}"),
            LimitError::LogTooLarge { .. } => "use sliding-window-counter".into(),
            LimitError::TooManyAtOnce { .. } => format!("use at most {MAX_HOLDS}"),
            LimitError::WindowTooLong => "use a shorter window".into(),
            LimitError::HoldTooLong => {
                "use a shorter time, and extend holds that last longer".into()
            }
            LimitError::NotWholeMicroseconds { .. } => "round it".into(),
            LimitError::RateOutOfRange { .. } => "use a rounder or faster one".into(),
            LimitError::FillsTooSlowly { rate_parameter, .. } => {
                format!("raise `{rate_parameter}` or lower `capacity`")
            }
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

    /// The first 40 characters of `text`, with unprintable characters escaped.
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
