//! The algorithms, and their parameters.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use tollgate::{Limit, LimitError};
use utoipa::ToSchema;

use super::error::PlaygroundError;
use super::fields::{given, number};

/// The lowest and the highest accepted value.
type Range = (f64, f64);

/// The ranges of sizes, in requests or tokens; of windows, in seconds; and of refill and leak rates, in units a second.
const SIZES: Range = (1.0, 1_000.0);
const WINDOWS: Range = (0.1, 3_600.0);
const RATES: Range = (0.01, 1_000.0);

/// The longest period of a rate, in seconds.
const MAX_RATE_S: f64 = 1e6;

/// An algorithm to play with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = PlaygroundAlgorithm)]
pub enum Algorithm {
    /// Counts requests in windows that follow each other.
    FixedWindow,
    /// Remembers when each request was charged.
    SlidingWindowLog,
    /// Estimates a sliding window from two fixed ones.
    SlidingWindowCounter,
    /// Spends tokens, which come back at a rate.
    TokenBucket,
    /// Fills a bucket, which leaks at a rate.
    LeakyBucket,
}

/// The parameters of an algorithm. Parameters of other algorithms are accepted and ignored, so that a client may send
/// the same parameters to all.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundConfig)]
pub(crate) struct Parameters {
    /// The most requests in a window or a log.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 10)]
    max_requests: Option<f64>,
    /// The length of a window or a log, in seconds.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.1, maximum = 3600, default = 10)]
    window_seconds: Option<f64>,
    /// The capacity of a token bucket.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 10)]
    max_tokens: Option<f64>,
    /// The tokens that come back to a token bucket per second.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.01, maximum = 1000, default = 1)]
    refill_rate: Option<f64>,
    /// The capacity of a leaky bucket.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 10)]
    capacity: Option<f64>,
    /// The requests that leave a leaky bucket per second.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.01, maximum = 1000, default = 1)]
    leak_rate: Option<f64>,
    /// Whether a leaky bucket refuses requests that come too soon, or delays them.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Mode, required = false, default = "policing")]
    mode: Option<Mode>,
}

/// How a leaky bucket treats a request that comes too soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase")]
#[schema(as = PlaygroundMode)]
pub(super) enum Mode {
    #[default]
    Policing,
    Shaping,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Mode::Policing => "policing",
            Mode::Shaping => "shaping",
        }
    }
}

/// Reads a string first: for any other value, the message of serde's derived code would call it invalid JSON.
impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Mode, D::Error> {
        let text = String::deserialize(json)?;
        let mode = [Mode::Policing, Mode::Shaping].into_iter().find(|mode| mode.name() == text);
        mode.ok_or_else(|| D::Error::unknown_variant(&text, &["policing", "shaping"]))
    }
}

impl Parameters {
    /// Returns the same parameters with the other mode of a leaky bucket.
    pub(super) fn in_the_other_mode(self) -> Parameters {
        let mode = match self.mode.unwrap_or_default() {
            Mode::Policing => Mode::Shaping,
            Mode::Shaping => Mode::Policing,
        };
        Parameters { mode: Some(mode), ..self }
    }
}

impl Algorithm {
    /// All algorithms, in the order of the page.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];

    /// Returns the algorithm's name, as in a path: `token-bucket`.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindowLog => "sliding-window-log",
            Algorithm::SlidingWindowCounter => "sliding-window-counter",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::LeakyBucket => "leaky-bucket",
        }
    }

    /// Returns the algorithm of this name, as in a path.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Returns the limit with these parameters. Also checks the parameters of the other algorithms, so that a wrong value
    /// is refused by all of them.
    pub(super) fn limit(self, own: &Parameters) -> Result<Limit, PlaygroundError> {
        let requests = size("maxRequests", own.max_requests)?;
        let window_us = (within("windowSeconds", own.window_seconds, 10.0, WINDOWS)? * 1e6).round();
        let tokens = size("maxTokens", own.max_tokens)?;
        let refill = rate("refillRate", own.refill_rate)?;
        let capacity = size("capacity", own.capacity)?;
        let leak = rate("leakRate", own.leak_rate)?;
        let mode = own.mode.unwrap_or_default().name();
        let text = match self {
            Algorithm::TokenBucket => format!("token-bucket capacity={tokens} refill={refill}s"),
            Algorithm::LeakyBucket => {
                format!("leaky-bucket capacity={capacity} leak={leak}s mode={mode}")
            }
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => {
                format!("{} limit={requests} window={window_us}us", self.name())
            }
        };
        text.parse().map_err(|error: LimitError| PlaygroundError::Invalid(error.to_string()))
    }
}

fn size(name: &str, given: Option<f64>) -> Result<f64, PlaygroundError> {
    match within(name, given, 10.0, SIZES)? {
        size if size.fract() == 0.0 => Ok(size),
        _ => Err(out_of(name, "is no whole number", SIZES)),
    }
}

/// Writes a rate as a fraction: `1/6` for 0.16666666666666666 a second, so that ten a minute are ten and not eleven.
fn rate(name: &str, given: Option<f64>) -> Result<String, PlaygroundError> {
    let rate = within(name, given, 1.0, RATES)?;
    let (mut above, mut before) = ((1.0, 0.0), (0.0, 1.0));
    let mut rest = rate;
    loop {
        let whole = rest.floor();
        let next = (whole * above.0 + before.0, whole * above.1 + before.1);
        // Stops when the fraction is as near as a typed number is to the value meant, or the period is the longest.
        if next.1 > MAX_RATE_S {
            return Ok(format!("{}/{}", above.0, above.1));
        }
        if (next.0 / next.1 - rate).abs() <= rate * 1e-9 {
            return Ok(format!("{}/{}", next.0, next.1));
        }
        (before, above) = (above, next);
        rest = (rest - whole).recip();
    }
}

fn within(
    name: &str,
    given: Option<f64>,
    usual: f64,
    range: Range,
) -> Result<f64, PlaygroundError> {
    match given.unwrap_or(usual) {
        own if own < range.0 => Err(out_of(name, "is too little", range)),
        own if own > range.1 => Err(out_of(name, "is too much", range)),
        own => Ok(own),
    }
}

fn out_of(name: &str, problem: &str, (least, most): Range) -> PlaygroundError {
    PlaygroundError::Invalid(format!("config.{name}: it {problem}; use {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_was_meant() {
        for (given, want) in [
            (1.0, "1/1"),
            (0.01, "1/100"),
            (1_000.0, "1000/1"),
            (2.5, "5/2"),
            (0.333, "333/1000"),
            (1.0 / 3.0, "1/3"),
            (10.0 / 60.0, "1/6"),
            (100.0 / 7.0, "100/7"),
            (0.1 + 0.2, "3/10"),
        ] {
            assert_eq!(rate("leakRate", Some(given)).unwrap(), want, "{given}");
        }
        for own in 1..2_000 {
            let given = 0.01 + f64::from(own) * std::f64::consts::PI / 7.0;
            let text = rate("leakRate", Some(given)).unwrap();
            let (units, seconds) = text.split_once('/').unwrap();
            let told = units.parse::<f64>().unwrap() / seconds.parse::<f64>().unwrap();
            assert!((told - given).abs() < 1e-6, "{given} is not {text}");
        }
    }

    #[test]
    fn any_rate_in_range_makes_a_limit() {
        for own in 0..10_000 {
            let rate = 0.01 + f64::from(own) * 0.099_998_7;
            let parameters = Parameters {
                refill_rate: Some(rate),
                leak_rate: Some(rate),
                ..Parameters::default()
            };
            for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
                assert!(algorithm.limit(&parameters).is_ok(), "{rate}");
            }
        }
    }
}
