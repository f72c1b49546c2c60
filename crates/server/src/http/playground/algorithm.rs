//! The algorithms, and their parameters.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use serde::{Deserialize, Serialize};
use tollgate::Limit;
use utoipa::ToSchema;

use crate::http::Problem;
use crate::http::problem::shown;

/// The most requests, tokens or places.
const MAX_SIZE: f64 = 1_000.0;

/// Of a window, in seconds; and of what comes back or leaks, in units a second.
const WINDOWS: (f64, f64) = (0.1, 3_600.0);
const RATES: (f64, f64) = (0.01, 1_000.0);

/// An algorithm to play with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = PlaygroundAlgorithm)]
pub(super) enum Algorithm {
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
}

/// What can be changed of an algorithm; each has its own of these.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundConfig)]
pub(super) struct Parameters {
    /// Of a window or a log: how many requests.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    max_requests: Option<f64>,
    /// Of a window or a log: in how many seconds.
    #[schema(minimum = 0.1, maximum = 3600, default = 10)]
    window_seconds: Option<f64>,
    /// Of a token bucket: how many it holds.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    max_tokens: Option<f64>,
    /// Of a token bucket: how many come back a second.
    #[schema(minimum = 0.01, maximum = 1000, default = 1)]
    refill_rate: Option<f64>,
    /// Of a leaky bucket: how many it holds.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    capacity: Option<f64>,
    /// Of a leaky bucket: how many leave a second.
    #[schema(minimum = 0.01, maximum = 1000, default = 1)]
    leak_rate: Option<f64>,
    /// Of a leaky bucket: whether requests are refused, or wait their turn.
    mode: Option<Mode>,
}

/// What a leaky bucket does with a request that comes too soon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = PlaygroundMode)]
pub(super) enum Mode {
    #[default]
    Policing,
    Shaping,
}

impl Parameters {
    /// The same, of a leaky bucket that does the other thing with a request that comes too soon.
    pub(super) fn in_the_other_mode(self) -> Parameters {
        let mode = match self.mode.unwrap_or_default() {
            Mode::Policing => Mode::Shaping,
            Mode::Shaping => Mode::Policing,
        };
        Parameters { mode: Some(mode), ..self }
    }
}

impl Algorithm {
    pub(super) const ALL: [Algorithm; 5] = [
        Algorithm::FixedWindow,
        Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];

    /// As paths have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Algorithm::FixedWindow => "fixed-window",
            Algorithm::SlidingWindowLog => "sliding-window-log",
            Algorithm::SlidingWindowCounter => "sliding-window-counter",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::LeakyBucket => "leaky-bucket",
        }
    }

    pub(super) fn in_path(path: Result<Path<String>, PathRejection>) -> Result<Algorithm, Problem> {
        let Path(name) = path.map_err(|_| Problem::bad_path())?;
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| {
            let names = Algorithm::ALL.map(Algorithm::name).join(", ");
            Problem::bad_request(format!(
                "no algorithm is called `{}`; use one of {names}",
                shown(&name)
            ))
        })
    }

    /// The limit with these parameters.
    pub(super) fn limit(self, own: &Parameters) -> Result<Limit, Problem> {
        self.check_names(own)?;
        let text = match self {
            Algorithm::TokenBucket => {
                let (size, rate) =
                    (size("maxTokens", own.max_tokens)?, rate("refillRate", own.refill_rate)?);
                format!("token-bucket capacity={size} refill={rate}/s")
            }
            Algorithm::LeakyBucket => {
                let (size, rate) =
                    (size("capacity", own.capacity)?, rate("leakRate", own.leak_rate)?);
                let mode = match own.mode.unwrap_or_default() {
                    Mode::Policing => "policing",
                    Mode::Shaping => "shaping",
                };
                format!("leaky-bucket capacity={size} leak={rate}/s mode={mode}")
            }
            Algorithm::FixedWindow
            | Algorithm::SlidingWindowLog
            | Algorithm::SlidingWindowCounter => {
                let size = size("maxRequests", own.max_requests)?;
                let window_us =
                    (within("windowSeconds", own.window_seconds, 10.0, WINDOWS)? * 1e6).round();
                format!("{} limit={size} window={window_us}us", self.name())
            }
        };
        text.parse().map_err(|error: tollgate::LimitError| Problem::bad_request(error.to_string()))
    }

    /// A parameter of another algorithm is a mistake that should not go unnoticed.
    fn check_names(self, own: &Parameters) -> Result<(), Problem> {
        let given = [
            ("maxRequests", own.max_requests.is_some()),
            ("windowSeconds", own.window_seconds.is_some()),
            ("maxTokens", own.max_tokens.is_some()),
            ("refillRate", own.refill_rate.is_some()),
            ("capacity", own.capacity.is_some()),
            ("leakRate", own.leak_rate.is_some()),
            ("mode", own.mode.is_some()),
        ];
        let wanted = match self {
            Algorithm::TokenBucket => &["maxTokens", "refillRate"][..],
            Algorithm::LeakyBucket => &["capacity", "leakRate", "mode"],
            _ => &["maxRequests", "windowSeconds"],
        };
        match given.iter().find(|(name, is_given)| *is_given && !wanted.contains(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let (own, wanted) = (self.name(), wanted.join(", "));
                Err(Problem::bad_request(format!(
                    "config.{name}: {own} has no such parameter; use {wanted}"
                )))
            }
        }
    }
}

fn size(name: &str, given: Option<f64>) -> Result<f64, Problem> {
    let size = within(name, given, 10.0, (1.0, MAX_SIZE))?;
    match size.fract() == 0.0 {
        true => Ok(size),
        false => Err(Problem::bad_request(format!(
            "config.{name}: {size} is no whole number; use {}",
            size.round()
        ))),
    }
}

/// To a thousandth, as limits have it.
fn rate(name: &str, given: Option<f64>) -> Result<f64, Problem> {
    Ok((within(name, given, 1.0, RATES)? * 1e3).round() / 1e3)
}

fn within(
    name: &str,
    given: Option<f64>,
    usual: f64,
    (least, most): (f64, f64),
) -> Result<f64, Problem> {
    match given.unwrap_or(usual) {
        own if (least..=most).contains(&own) => Ok(own),
        own => Err(Problem::bad_request(format!(
            "config.{name}: {own} is too {}; use {least} to {most}",
            if own < least { "little" } else { "much" }
        ))),
    }
}
