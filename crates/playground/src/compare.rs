//! Compares how all algorithms decide the same traffic.

use serde::{Deserialize, Serialize};
use tollgate_core::{Cost, Limit, Mode, Verdict};
use utoipa::ToSchema;

use super::algorithm::{Algorithm, Parameters};
use super::configs::Configs;
use super::error::PlaygroundError;
use super::fields::{WholeNumber, given, object};

/// The most requests of a pattern, and the latest time of one.
const MAX_REQUESTS: usize = 2_000;
const MAX_AT_MS: u64 = 3_600_000;

/// The default length of the window in which the most requests are searched for.
const USUAL_WINDOW_MS: u64 = 10_000;

/// The traffic begins at this time or a little before, at the start of a window of the limit.
const BEGINS_US: u64 = 1_800_000_000_000_000;

/// The traffic, and the parameters of the algorithms it is sent to.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompareRequest)]
pub struct Traffic {
    #[serde(default, deserialize_with = "object")]
    config: Option<Configs>,
    /// The times of the requests, in milliseconds from the beginning, in order.
    #[serde(default)]
    #[schema(value_type = Vec<u64>, max_items = 2000, required = false)]
    at_ms: Vec<WholeNumber>,
    /// The length, in milliseconds, of the window in which the most requests are searched for.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 3_600_000, default = 10_000)]
    window_ms: Option<WholeNumber>,
}

/// The decisions of an algorithm on the traffic.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Compared)]
pub struct Comparison {
    /// The algorithm. A leaky bucket is listed twice, once in each mode.
    algorithm: Algorithm,
    /// The algorithm with its numbers.
    limit: String,
    /// For each request, when it left, in milliseconds from the beginning; null if it was refused.
    goes_ms: Vec<Option<f64>>,
    /// The number of requests that were admitted.
    allowed: usize,
    /// The most requests that left within any `window_ms` of this traffic.
    worst: usize,
    /// When that window began.
    worst_from_ms: f64,
    /// The proven bound: the most requests that can leave within any `window_ms` of any traffic.
    bound: u64,
}

/// Sends the same traffic to every algorithm, at simulated times. Charges nothing to any session.
pub fn compare(traffic: Traffic) -> Result<Vec<Comparison>, PlaygroundError> {
    let window_ms = traffic.window_ms.map_or(USUAL_WINDOW_MS, |WholeNumber(window_ms)| window_ms);
    let at_ms: Vec<_> = traffic.at_ms.iter().map(|WholeNumber(at_ms)| *at_ms).collect();
    check(&at_ms, window_ms)?;
    let config = traffic.config.unwrap_or_default();
    let compared = |(algorithm, parameters): (Algorithm, Parameters)| {
        let limit = algorithm.limit(&parameters)?;
        Ok(Comparison::new(algorithm, &limit, &at_ms, window_ms))
    };
    let each = Algorithm::ALL.map(|algorithm| (algorithm, config.of(algorithm)));
    let leaky = Algorithm::LeakyBucket;
    let in_the_other_mode = (leaky, config.of(leaky).in_the_other_mode());
    let each = each.into_iter().chain([in_the_other_mode]);
    each.map(compared).collect()
}

fn check(at_ms: &[u64], window_ms: u64) -> Result<(), PlaygroundError> {
    let detail = match (at_ms.len(), at_ms.last().copied().unwrap_or(0)) {
        (count, _) if count > MAX_REQUESTS => {
            format!("at_ms: {count} requests are too many; send at most {MAX_REQUESTS}")
        }
        (_, last) if last > MAX_AT_MS => {
            format!("at_ms: {last} is too late; use at most {MAX_AT_MS}")
        }
        _ if !at_ms.is_sorted() => {
            "at_ms: a request comes before the one before it; sort them".to_owned()
        }
        _ if !(1..=MAX_AT_MS).contains(&window_ms) => {
            format!("window_ms: {window_ms} is out of range; use 1 to {MAX_AT_MS}")
        }
        _ => return Ok(()),
    };
    Err(PlaygroundError::Invalid(detail))
}

impl Comparison {
    fn new(algorithm: Algorithm, limit: &Limit, at_ms: &[u64], window_ms: u64) -> Comparison {
        let begins_us = match limit {
            Limit::FixedWindow(own) => BEGINS_US - BEGINS_US % own.window_us(),
            Limit::SlidingWindowCounter(own) => BEGINS_US - BEGINS_US % own.window_us(),
            _ => BEGINS_US,
        };
        let mut state = limit.fresh();
        let mut went_us = Vec::new();
        let goes = at_ms.iter().map(|at_ms| {
            // OK because a pattern is at most an hour long.
            let at_us = at_ms * 1_000;
            let checked = limit.check(&mut state, begins_us + at_us, Cost::ONE.into());
            let Verdict::Allowed { delay_us } = checked.decision.verdict else { return None };
            went_us.push(at_us.saturating_add(delay_us));
            Some(at_us.saturating_add(delay_us) as f64 / 1e3)
        });
        let goes_ms = goes.collect();
        went_us.sort_unstable();
        let window_us = window_ms * 1_000;
        let (worst, worst_from_us) = worst(&went_us, window_us);
        let (allowed, worst_from_ms) = (went_us.len(), worst_from_us as f64 / 1e3);
        let (limit, bound) = (limit.to_string(), bound(limit, window_us));
        Comparison { algorithm, limit, goes_ms, allowed, worst, worst_from_ms, bound }
    }
}

/// The most requests of cost 1 that can leave within a window, for any traffic.
fn bound(limit: &Limit, window_us: u64) -> u64 {
    match limit {
        // A shaping bucket admits a burst, and delays its requests so that they go 1/leak apart. Rounding up to whole
        // microseconds can move a request from just before the window to its beginning, so the bound is rounded up.
        Limit::LeakyBucket(own) if own.mode() == Mode::Shaping => {
            let (units, per_us) = (u128::from(own.leak().units()), u128::from(own.leak().per_us()));
            let most = (u128::from(window_us) * units).div_ceil(per_us);
            u64::try_from(most).unwrap_or(u64::MAX)
        }
        _ => limit.bound_over(window_us).max_units,
    }
}

/// Returns the most requests that left within a window, its end excluded, and when that window began.
fn worst(went_us: &[u64], window_us: u64) -> (usize, u64) {
    let mut worst = (0, 0);
    let mut first = 0;
    for (at, went) in went_us.iter().enumerate() {
        while went_us[first] + window_us <= *went {
            first += 1;
        }
        // OK because the first request is never after this one: a window is not empty.
        let count = at - first + 1;
        if count > worst.0 {
            worst = (count, went_us[first]);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(count: u64, window_ms: u64) -> [(Algorithm, Limit); 6] {
        let window = format!("limit={count} window={window_ms}ms");
        [
            (Algorithm::FixedWindow, format!("fixed-window {window}")),
            (Algorithm::SlidingWindowLog, format!("sliding-window-log {window}")),
            (Algorithm::SlidingWindowCounter, format!("sliding-window-counter {window}")),
            (
                Algorithm::TokenBucket,
                format!("token-bucket capacity={count} refill={count}/{window_ms}ms"),
            ),
            (
                Algorithm::LeakyBucket,
                format!("leaky-bucket capacity={count} leak={count}/{window_ms}ms mode=policing"),
            ),
            (
                Algorithm::LeakyBucket,
                format!("leaky-bucket capacity={count} leak={count}/{window_ms}ms mode=shaping"),
            ),
        ]
        .map(|(algorithm, text)| (algorithm, text.parse().unwrap()))
    }

    #[test]
    fn bounds_are_those_of_the_algorithms() {
        let bounds = limits(10, 10_000)
            .map(|(algorithm, limit)| Comparison::new(algorithm, &limit, &[], 10_000).bound);
        assert_eq!(bounds, [20, 10, 20, 19, 19, 10]);
    }

    proptest! {
        #[test]
        fn no_traffic_exceeds_the_bound(
            count in 1..20_u64,
            limit_ms in 1..2_000_u64,
            window_ms in 1..2_000_u64,
            mut at_ms in prop::collection::vec(0..5_000_u64, 0..200),
        ) {
            at_ms.sort_unstable();
            for (algorithm, limit) in limits(count, limit_ms) {
                let Comparison { worst, bound, .. } = Comparison::new(algorithm, &limit, &at_ms, window_ms);
                prop_assert!(worst as u64 <= bound, "{limit}: {worst} above {bound}");
            }
        }
    }
}
