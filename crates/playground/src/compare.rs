//! Compares how all algorithms decide the same traffic.
//!
//! - `jobs`: the traffic as holds, where each request takes some time

mod jobs;

use serde::{Deserialize, Serialize};
use tollgate_core::{Cost, Limit, Mode, Verdict};
use utoipa::ToSchema;

use super::algorithm::{AlgorithmParameters, PlaygroundAlgorithm};
use super::configs::AlgorithmConfigs;
use super::error::PlaygroundError;
use super::fields::{WholeNumber, object, present};
use jobs::{JobTrace, RequestUnits, TracedCharge};

/// The maximum number of requests.
const MAX_REQUESTS: usize = 2_000;
/// The latest time of a request.
const MAX_AT_MS: u64 = 3_600_000;

/// The default length of the window for which the largest number of requests is found.
const DEFAULT_WINDOW_MS: u64 = 10_000;

/// The most units that a request can reserve or use.
const MAX_REQUEST_UNITS: u64 = 1_000;

/// The time that each request takes by default.
const DEFAULT_TAKES_MS: u64 = 2_000;

/// The time at which the traffic begins. If the limit has aligned windows, it begins at the start of the window that
/// contains this time.
const START_US: u64 = 1_800_000_000_000_000;

/// The traffic, and the parameters of the algorithms that decide it.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompareRequest)]
pub struct CompareBody {
    /// The parameters of each algorithm that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    config: Option<AlgorithmConfigs>,
    /// The times of the requests, in milliseconds from the beginning, in order.
    #[serde(default)]
    #[schema(value_type = Vec<u64>, max_items = 2000, required = false)]
    at_ms: Vec<WholeNumber>,
    /// The length, in milliseconds, of the window for which the largest number of requests is found.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 3_600_000, default = 10_000)]
    window_ms: Option<WholeNumber>,
    /// The time that each request takes, in milliseconds: how long it holds its place under concurrency, and its units if
    /// `reserve` is set.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 3_600_000, default = 2_000)]
    takes_ms: Option<WholeNumber>,
    /// The units that each request reserves. Without it, each request spends one unit at once. Under concurrency a request
    /// holds one place in both cases.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 1_000)]
    reserve: Option<WholeNumber>,
    /// The units that each request has used when it ends, and settles; by default the units that it reserves.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 0, maximum = 1_000)]
    settle: Option<WholeNumber>,
}

/// The decisions of an algorithm on the traffic.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Compared)]
pub struct Comparison {
    /// The algorithm. A leaky bucket is listed twice, once in each mode; if requests reserve units, only with the mode
    /// policing, because shaping buckets cannot have holds.
    algorithm: PlaygroundAlgorithm,
    /// The limit: the algorithm with its parameters.
    limit: String,
    /// When each request left, or was started if it holds units, in milliseconds from the beginning; null if it was refused.
    goes_ms: Vec<Option<f64>>,
    /// The number of allowed requests.
    allowed: usize,
    /// The largest number of requests that left within any `window_ms` of this traffic; if requests reserve units, the most
    /// units that were charged within any `window_ms`. Under concurrency: the largest number of requests that held a place
    /// at the same time.
    worst: u64,
    /// When that window began; under concurrency, when that number was reached.
    worst_from_ms: f64,
    /// The proven bound of `worst` for any traffic, without the `excess`.
    bound: u64,
    /// The units that were charged beyond the holds.
    excess: u64,
    /// How long an allowed request holds its place under concurrency, or its units; null if it spends a unit at once.
    #[schema(required)]
    holds_ms: Option<f64>,
}

/// Sends the same traffic to every algorithm, at simulated times. No session is charged.
pub fn compare(traffic: CompareBody) -> Result<Vec<Comparison>, PlaygroundError> {
    let window_ms = traffic.window_ms.map_or(DEFAULT_WINDOW_MS, |WholeNumber(window_ms)| window_ms);
    let at_ms: Vec<_> = traffic.at_ms.iter().map(|WholeNumber(at_ms)| *at_ms).collect();
    let takes_ms = traffic.takes_ms.map_or(DEFAULT_TAKES_MS, |WholeNumber(takes_ms)| takes_ms);
    check_ranges(&at_ms, window_ms, takes_ms)?;
    let units = traffic.units()?;
    let config = traffic.config.unwrap_or_default();
    let comparison = |(algorithm, parameters): (PlaygroundAlgorithm, AlgorithmParameters)| {
        let limit = algorithm.limit(&parameters)?;
        Ok(match units {
            None => Some(Comparison::new(algorithm, &limit, &at_ms, window_ms)),
            Some(_) if limit.can_hold().is_err() => None,
            Some(units) => {
                Some(Comparison::with_holds(algorithm, &limit, &at_ms, window_ms, takes_ms, units))
            }
        })
    };
    let each = PlaygroundAlgorithm::OF_REQUESTS.map(|algorithm| (algorithm, config.of(algorithm)));
    let leaky = PlaygroundAlgorithm::LeakyBucket;
    let with_other_mode = (leaky, config.of(leaky).with_other_mode());
    let each = each.into_iter().chain([with_other_mode]);
    let rows = each.map(comparison).collect::<Result<Vec<_>, PlaygroundError>>()?;
    let mut rows: Vec<_> = rows.into_iter().flatten().collect();
    let concurrency = PlaygroundAlgorithm::Concurrency;
    let limit = concurrency.limit(&config.of(concurrency))?;
    rows.push(Comparison::with_jobs(&limit, &at_ms, takes_ms));
    Ok(rows)
}

impl CompareBody {
    /// Returns the units that each request reserves and uses; `None` if requests reserve nothing.
    fn units(&self) -> Result<Option<RequestUnits>, PlaygroundError> {
        let invalid = |detail: String| Err(PlaygroundError::Invalid(detail));
        let (reserved, used) = match (&self.reserve, &self.settle) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                return invalid("settle: requests reserve nothing; send `reserve` too".to_owned());
            }
            (Some(WholeNumber(reserved)), used) => {
                (*reserved, used.as_ref().map_or(*reserved, |WholeNumber(used)| *used))
            }
        };
        let most = MAX_REQUEST_UNITS;
        match Cost::new(reserved) {
            Ok(cost) if reserved <= most && used <= most => {
                Ok(Some(RequestUnits { reserved: cost, used }))
            }
            Ok(_) if reserved <= most => {
                invalid(format!("settle: {used} is out of range; use 0 to {most}"))
            }
            _ => invalid(format!("reserve: {reserved} is out of range; use 1 to {most}")),
        }
    }
}

/// Fails if the traffic or the window is out of range.
fn check_ranges(at_ms: &[u64], window_ms: u64, takes_ms: u64) -> Result<(), PlaygroundError> {
    let detail = match (at_ms.len(), at_ms.last().copied().unwrap_or(0)) {
        (count, _) if count > MAX_REQUESTS => {
            format!("at_ms: {count} requests are too many; send at most {MAX_REQUESTS}")
        }
        (_, last) if last > MAX_AT_MS => {
            format!("at_ms: {last} is too late; use at most {MAX_AT_MS}")
        }
        _ if !at_ms.is_sorted() => {
            "at_ms: the times are not in ascending order; sort them".to_owned()
        }
        _ if !(1..=MAX_AT_MS).contains(&window_ms) => {
            format!("window_ms: {window_ms} is out of range; use 1 to {MAX_AT_MS}")
        }
        _ if !(1..=MAX_AT_MS).contains(&takes_ms) => {
            format!("takes_ms: {takes_ms} is out of range; use 1 to {MAX_AT_MS}")
        }
        _ => return Ok(()),
    };
    Err(PlaygroundError::Invalid(detail))
}

impl Comparison {
    fn new(
        algorithm: PlaygroundAlgorithm,
        limit: &Limit,
        at_ms: &[u64],
        window_ms: u64,
    ) -> Comparison {
        let start_us = start_us(limit);
        let mut state = limit.fresh();
        let mut left = Vec::new();
        let goes = at_ms.iter().map(|at_ms| {
            // OK because the traffic is at most an hour long.
            let at_us = at_ms * 1_000;
            let checked = limit.check(&mut state, start_us + at_us, Cost::ONE.into());
            let Verdict::Allowed { delay_us } = checked.decision.verdict else { return None };
            let leaves_us = at_us.saturating_add(delay_us);
            left.push(TracedCharge { at_us: leaves_us, units: 1 });
            Some(at_us.saturating_add(delay_us) as f64 / 1e3)
        });
        let goes_ms = goes.collect();
        left.sort_unstable_by_key(|left| left.at_us);
        let window_us = window_ms * 1_000;
        let (worst, worst_from_us) = worst(&left, window_us);
        Comparison {
            algorithm,
            limit: limit.to_string(),
            goes_ms,
            allowed: left.len(),
            worst,
            worst_from_ms: worst_from_us as f64 / 1e3,
            bound: bound(limit, window_us),
            excess: 0,
            holds_ms: None,
        }
    }

    /// Sends the traffic as requests that reserve units, and settle them after some time.
    fn with_holds(
        algorithm: PlaygroundAlgorithm,
        limit: &Limit,
        at_ms: &[u64],
        window_ms: u64,
        takes_ms: u64,
        units: RequestUnits,
    ) -> Comparison {
        let (takes_us, window_us) = (takes_ms * 1_000, window_ms * 1_000);
        let jobs = jobs::run(limit, start_us(limit), at_ms, takes_us, units);
        let (worst, worst_from_us) = worst(&jobs.charges, window_us);
        let own = Comparison::from_jobs(algorithm, limit, at_ms, &jobs, takes_us);
        let (worst_from_ms, bound) = (worst_from_us as f64 / 1e3, bound(limit, window_us));
        Comparison { worst, worst_from_ms, bound, ..own }
    }

    /// Sends the traffic to a concurrency limit, as jobs.
    fn with_jobs(limit: &Limit, at_ms: &[u64], takes_ms: u64) -> Comparison {
        let takes_us = takes_ms * 1_000;
        let holds_us = limit.hold_for().map_or(takes_us, |own| own.as_us().min(takes_us));
        let jobs = jobs::run(limit, START_US, at_ms, holds_us, RequestUnits::PLACE);
        Comparison::from_jobs(PlaygroundAlgorithm::Concurrency, limit, at_ms, &jobs, holds_us)
    }

    fn from_jobs(
        algorithm: PlaygroundAlgorithm,
        limit: &Limit,
        at_ms: &[u64],
        jobs: &JobTrace,
        holds_us: u64,
    ) -> Comparison {
        let started = at_ms.iter().zip(&jobs.is_started);
        Comparison {
            algorithm,
            limit: limit.to_string(),
            goes_ms: started
                .map(|(at_ms, is_started)| is_started.then_some(*at_ms as f64))
                .collect(),
            allowed: jobs.is_started.iter().filter(|is_started| **is_started).count(),
            worst: jobs.most as u64,
            worst_from_ms: jobs.most_at_ms as f64,
            bound: limit.bound().max_units,
            excess: jobs.excess_units,
            holds_ms: Some(holds_us as f64 / 1e3),
        }
    }
}

/// Returns the time at which the traffic begins under a limit.
fn start_us(limit: &Limit) -> u64 {
    match limit {
        Limit::FixedWindow(own) => START_US - START_US % own.window_us(),
        Limit::SlidingWindowCounter(own) => START_US - START_US % own.window_us(),
        _ => START_US,
    }
}

/// Returns the largest number of requests of cost 1 that can leave within a window, for any traffic.
fn bound(limit: &Limit, window_us: u64) -> u64 {
    match limit {
        // A shaping bucket admits a burst, and delays its requests so that they leave 1/leak apart. Rounding to whole
        // microseconds can move a request from just before the window to its beginning, so the bound is rounded up.
        Limit::LeakyBucket(own) if own.mode() == Mode::Shaping => {
            let (units, per_us) = (u128::from(own.leak().units()), u128::from(own.leak().per_us()));
            let most = (u128::from(window_us) * units).div_ceil(per_us);
            u64::try_from(most).unwrap_or(u64::MAX)
        }
        _ => limit.bound_over(window_us).max_units,
    }
}

/// Returns the most units that were charged within a window, its end excluded, and when that window began.
fn worst(charges: &[TracedCharge], window_us: u64) -> (u64, u64) {
    let mut worst = (0, 0);
    let (mut first, mut units) = (0, 0);
    for charge in charges {
        units += charge.units;
        // OK because the first charge of the window is this one or an earlier one.
        while charges[first].at_us + window_us <= charge.at_us {
            units -= charges[first].units;
            first += 1;
        }
        if units > worst.0 {
            worst = (units, charges[first].at_us);
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(count: u64, window_ms: u64) -> [(PlaygroundAlgorithm, Limit); 6] {
        let window = format!("limit={count} window={window_ms}ms");
        [
            (PlaygroundAlgorithm::FixedWindow, format!("fixed-window {window}")),
            (PlaygroundAlgorithm::SlidingWindowLog, format!("sliding-window-log {window}")),
            (PlaygroundAlgorithm::SlidingWindowCounter, format!("sliding-window-counter {window}")),
            (
                PlaygroundAlgorithm::TokenBucket,
                format!("token-bucket capacity={count} refill={count}/{window_ms}ms"),
            ),
            (
                PlaygroundAlgorithm::LeakyBucket,
                format!("leaky-bucket capacity={count} leak={count}/{window_ms}ms mode=policing"),
            ),
            (
                PlaygroundAlgorithm::LeakyBucket,
                format!("leaky-bucket capacity={count} leak={count}/{window_ms}ms mode=shaping"),
            ),
        ]
        .map(|(algorithm, text)| (algorithm, text.parse().unwrap()))
    }

    #[test]
    fn bounds_equal_the_bounds_of_the_algorithms() {
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
                prop_assert!(worst <= bound, "{limit}: {worst} exceeds {bound}");
            }
            let limit = format!("concurrency limit={count} for={limit_ms}ms").parse().unwrap();
            let Comparison { worst, bound, .. } = Comparison::with_jobs(&limit, &at_ms, window_ms);
            prop_assert!(worst <= bound, "{limit}: {worst} exceeds {bound}");
        }

        #[test]
        fn no_traffic_that_reserves_exceeds_the_bound_and_the_excess(
            (count, limit_ms) in (1..20_u64, 1..2_000_u64),
            (window_ms, takes_ms) in (1..2_000_u64, 1..2_000_u64),
            (reserved, used) in (1..8_u64, 0..12_u64),
            mut at_ms in prop::collection::vec(0..5_000_u64, 0..200),
        ) {
            at_ms.sort_unstable();
            let units = RequestUnits { reserved: Cost::new(reserved).unwrap(), used };
            for (algorithm, limit) in limits(count, limit_ms).into_iter().take(5) {
                let Comparison { worst, bound, excess, .. } =
                    Comparison::with_holds(algorithm, &limit, &at_ms, window_ms, takes_ms, units);
                prop_assert!(excess == 0 || used > reserved);
                prop_assert!(worst <= bound + excess, "{limit}: {worst} exceeds {bound}");
            }
        }
    }
}
