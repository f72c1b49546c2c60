//! The algorithms, and their parameters.

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use tollgate::{Limit, LimitError};
use utoipa::openapi::schema::{Schema, Type};
use utoipa::openapi::{ObjectBuilder, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::error::PlaygroundError;
use super::fields::{number, present};

/// The lowest and the highest accepted value.
type Range = (f64, f64);

/// The range of sizes, in requests or tokens.
pub(super) const SIZES: Range = (1.0, 1_000.0);
/// The range of windows, in seconds.
const WINDOWS: Range = (0.1, 3_600.0);
/// The range of hold times, in seconds.
pub(super) const HOLD_TIMES: Range = (0.1, 3_600.0);
/// The range of refill and leak rates, in units per second.
const RATES: Range = (0.01, 1_000.0);

/// The longest period of a rate, in seconds.
const MAX_RATE_S: f64 = 1e6;

/// An algorithm of the playground.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlaygroundAlgorithm {
    /// Counts requests in windows, one after the other.
    FixedWindow,
    /// Stores when each request was charged.
    SlidingWindowLog,
    /// Estimates a sliding window from two fixed ones.
    SlidingWindowCounter,
    /// Spends tokens, which are refilled at a rate.
    TokenBucket,
    /// Fills a bucket, which leaks at a rate.
    LeakyBucket,
    /// Bounds the jobs that run at the same time. Jobs reserve and settle; there are no requests.
    Concurrency,
}

/// The algorithms that decide requests, for the OpenAPI document: all but concurrency.
#[derive(Clone, Copy, Debug)]
pub struct RequestAlgorithm;

impl PartialSchema for RequestAlgorithm {
    fn schema() -> RefOr<Schema> {
        let names = PlaygroundAlgorithm::OF_REQUESTS.map(PlaygroundAlgorithm::name);
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).into()
    }
}

impl ToSchema for RequestAlgorithm {}

/// The parameters of an algorithm. Parameters of other algorithms are accepted and ignored, so that a client can send the
/// same parameters to all algorithms.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundConfig)]
pub(crate) struct AlgorithmParameters {
    /// The maximum number of requests in a window or a log.
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
    /// The number of tokens that are refilled per second.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.01, maximum = 1000, default = 1)]
    refill_rate: Option<f64>,
    /// The capacity of a leaky bucket.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 10)]
    capacity: Option<f64>,
    /// The number of requests that leave a leaky bucket per second.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.01, maximum = 1000, default = 1)]
    leak_rate: Option<f64>,
    /// Whether a leaky bucket refuses requests above its rate, or delays them.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = PlaygroundMode, required = false, default = "policing")]
    mode: Option<PlaygroundMode>,
    /// The maximum number of jobs at the same time.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1000, default = 10)]
    max_concurrent: Option<f64>,
    /// The time after which a job that has not ended loses its place, in seconds.
    #[serde(default, deserialize_with = "number")]
    #[schema(value_type = f64, required = false, minimum = 0.1, maximum = 3600, default = 10)]
    hold_seconds: Option<f64>,
}

/// How a leaky bucket treats requests above its rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum PlaygroundMode {
    #[default]
    /// It refuses them when the bucket is full.
    Policing,
    /// It delays them.
    Shaping,
}

impl PlaygroundMode {
    const fn name(self) -> &'static str {
        match self {
            PlaygroundMode::Policing => "policing",
            PlaygroundMode::Shaping => "shaping",
        }
    }
}

/// Written by hand, because the derived code reports any value but a string as invalid JSON.
impl<'de> Deserialize<'de> for PlaygroundMode {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<PlaygroundMode, D::Error> {
        let text = String::deserialize(json)?;
        let mode = [PlaygroundMode::Policing, PlaygroundMode::Shaping]
            .into_iter()
            .find(|mode| mode.name() == text);
        mode.ok_or_else(|| D::Error::unknown_variant(&text, &["policing", "shaping"]))
    }
}

impl AlgorithmParameters {
    /// Returns these parameters with the other mode of a leaky bucket.
    pub(super) fn with_other_mode(self) -> AlgorithmParameters {
        let mode = match self.mode.unwrap_or_default() {
            PlaygroundMode::Policing => PlaygroundMode::Shaping,
            PlaygroundMode::Shaping => PlaygroundMode::Policing,
        };
        AlgorithmParameters { mode: Some(mode), ..self }
    }
}

impl PlaygroundAlgorithm {
    /// All algorithms, in the order of the page.
    pub const ALL: [PlaygroundAlgorithm; 6] = [
        PlaygroundAlgorithm::FixedWindow,
        PlaygroundAlgorithm::SlidingWindowLog,
        PlaygroundAlgorithm::SlidingWindowCounter,
        PlaygroundAlgorithm::TokenBucket,
        PlaygroundAlgorithm::LeakyBucket,
        PlaygroundAlgorithm::Concurrency,
    ];

    /// The algorithms that decide requests, in the order of the page.
    pub const OF_REQUESTS: [PlaygroundAlgorithm; 5] = [
        PlaygroundAlgorithm::FixedWindow,
        PlaygroundAlgorithm::SlidingWindowLog,
        PlaygroundAlgorithm::SlidingWindowCounter,
        PlaygroundAlgorithm::TokenBucket,
        PlaygroundAlgorithm::LeakyBucket,
    ];

    /// Returns the algorithm's name, as in a path: `token-bucket`.
    pub const fn name(self) -> &'static str {
        match self {
            PlaygroundAlgorithm::FixedWindow => "fixed-window",
            PlaygroundAlgorithm::SlidingWindowLog => "sliding-window-log",
            PlaygroundAlgorithm::SlidingWindowCounter => "sliding-window-counter",
            PlaygroundAlgorithm::TokenBucket => "token-bucket",
            PlaygroundAlgorithm::LeakyBucket => "leaky-bucket",
            PlaygroundAlgorithm::Concurrency => "concurrency",
        }
    }

    /// Returns the algorithm of this name, as in a path.
    pub fn from_name(name: &str) -> Option<PlaygroundAlgorithm> {
        PlaygroundAlgorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Returns the limit with these parameters. Also checks the parameters of the other algorithms, so that all
    /// algorithms refuse the same values.
    pub(super) fn limit(self, parameters: &AlgorithmParameters) -> Result<Limit, PlaygroundError> {
        let requests = size("maxRequests", parameters.max_requests)?;
        let window_us =
            (within("windowSeconds", parameters.window_seconds, 10.0, WINDOWS)? * 1e6).round();
        let tokens = size("maxTokens", parameters.max_tokens)?;
        let refill = rate("refillRate", parameters.refill_rate)?;
        let capacity = size("capacity", parameters.capacity)?;
        let leak = rate("leakRate", parameters.leak_rate)?;
        let mode = parameters.mode.unwrap_or_default().name();
        let concurrent = size("maxConcurrent", parameters.max_concurrent)?;
        let hold = within("holdSeconds", parameters.hold_seconds, 10.0, HOLD_TIMES)?;
        let text = match self {
            PlaygroundAlgorithm::TokenBucket => {
                format!("token-bucket capacity={tokens} refill={refill}s")
            }
            PlaygroundAlgorithm::LeakyBucket => {
                format!("leaky-bucket capacity={capacity} leak={leak}s mode={mode}")
            }
            PlaygroundAlgorithm::FixedWindow
            | PlaygroundAlgorithm::SlidingWindowLog
            | PlaygroundAlgorithm::SlidingWindowCounter => {
                format!("{} limit={requests} window={window_us}us", self.name())
            }
            PlaygroundAlgorithm::Concurrency => {
                format!("concurrency limit={concurrent} for={}us", (hold * 1e6).round())
            }
        };
        text.parse().map_err(|error: LimitError| PlaygroundError::Invalid(error.to_string()))
    }
}

/// Returns a size, which must be a whole number; 10 by default.
fn size(name: &str, given: Option<f64>) -> Result<f64, PlaygroundError> {
    match within(name, given, 10.0, SIZES)? {
        size if size.fract() == 0.0 => Ok(size),
        _ => Err(out_of_range(name, "not a whole number", SIZES)),
    }
}

/// Writes a rate as a fraction: `1/6` for 0.16666666666666666 per second. Rounding errors of the number then do not turn
/// ten per minute into eleven.
fn rate(name: &str, given: Option<f64>) -> Result<String, PlaygroundError> {
    let rate = within(name, given, 1.0, RATES)?;
    let (mut above, mut before) = ((1.0, 0.0), (0.0, 1.0));
    let mut rest = rate;
    loop {
        let whole = rest.floor();
        let next = (whole * above.0 + before.0, whole * above.1 + before.1);
        // Stops when the fraction is within rounding errors of the number, or when the period would be too long.
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

/// Returns the given value if it is in range, or the default.
fn within(
    name: &str,
    given: Option<f64>,
    default: f64,
    range: Range,
) -> Result<f64, PlaygroundError> {
    match given.unwrap_or(default) {
        own if own < range.0 => Err(out_of_range(name, "too small", range)),
        own if own > range.1 => Err(out_of_range(name, "too large", range)),
        own => Ok(own),
    }
}

fn out_of_range(name: &str, problem: &str, (min, max): Range) -> PlaygroundError {
    PlaygroundError::Invalid(format!("config.{name}: {problem}; use {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_written_as_the_fraction_that_was_meant() {
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
            let written = units.parse::<f64>().unwrap() / seconds.parse::<f64>().unwrap();
            assert!((written - given).abs() < 1e-6, "{given} was written as {text}");
        }
    }

    #[test]
    fn every_rate_in_range_gives_a_limit() {
        for own in 0..10_000 {
            let rate = 0.01 + f64::from(own) * 0.099_998_7;
            let parameters = AlgorithmParameters {
                refill_rate: Some(rate),
                leak_rate: Some(rate),
                ..AlgorithmParameters::default()
            };
            for algorithm in [PlaygroundAlgorithm::TokenBucket, PlaygroundAlgorithm::LeakyBucket] {
                assert!(algorithm.limit(&parameters).is_ok(), "{rate}");
            }
        }
    }
}
