//! What all algorithms make of the same traffic.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tollgate_core::{Cost, Limit, Mode, Verdict};
use utoipa::ToSchema;

use super::algorithm::{Algorithm, Parameters, object};
use super::state::Configs;
use crate::budget::Budget;
use crate::http::asked::{Whole, given};
use crate::http::body::OptionalJson;
use crate::http::check::{append, json};
use crate::http::openapi::{BodyProblems, PlaygroundProblems};
use crate::http::{Playground, Problem};

/// The longest body: a pattern is longer than what is sent otherwise.
const MAX_BYTES: usize = 64 << 10;

/// The most requests of a pattern, and the latest.
const MAX_REQUESTS: usize = 2_000;
const MAX_AT_MS: u64 = 3_600_000;

/// Over which the worst is sought, unless said.
const USUAL_WINDOW_MS: u64 = 10_000;

/// The traffic begins then, or a little before: as a window of the limit does.
const BEGINS_US: u64 = 1_800_000_000_000_000;

/// The traffic, and what it is sent to.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CompareRequest)]
pub(in crate::http) struct Traffic {
    #[serde(default, deserialize_with = "object")]
    config: Option<Configs>,
    /// When requests come, in milliseconds from the beginning, in order.
    #[serde(default)]
    #[schema(value_type = Vec<u64>, max_items = 2000, required = false)]
    at_ms: Vec<Whole>,
    /// Over how many milliseconds the worst is sought.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 3_600_000, default = 10_000)]
    window_ms: Option<Whole>,
}

/// What an algorithm made of the traffic.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Compared)]
pub(in crate::http) struct Compared {
    /// A leaky bucket comes twice, once in each mode.
    algorithm: Algorithm,
    /// The algorithm with its numbers.
    limit: String,
    /// Of each request, after how many milliseconds from the beginning it went; null if it was refused.
    goes_ms: Vec<Option<f64>>,
    /// How many went.
    allowed: usize,
    /// The most that went within any `window_ms` of this traffic.
    worst: usize,
    /// When those milliseconds began.
    worst_from_ms: f64,
    /// The proven bound: the most that can go within any `window_ms`, whatever the traffic is.
    bound: u64,
}

/// What all algorithms make of the same traffic, at times of its own. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/compare",
    tag = "playground",
    request_body(content = Option<Traffic>),
    responses((status = 200, description = "What each of them made of it.", body = Vec<Compared>), BodyProblems, PlaygroundProblems),
)]
pub(in crate::http) async fn compare(
    _: Playground,
    State(budget): State<Budget>,
    OptionalJson(traffic): OptionalJson<Traffic, MAX_BYTES>,
) -> Result<Response, Problem> {
    let window_ms = traffic.window_ms.map_or(USUAL_WINDOW_MS, |Whole(window_ms)| window_ms);
    let at_ms: Vec<_> = traffic.at_ms.iter().map(|Whole(at_ms)| *at_ms).collect();
    check(&at_ms, window_ms)?;
    let config = traffic.config.unwrap_or_default();
    let compared = |(algorithm, parameters): (Algorithm, Parameters)| {
        let limit = algorithm.limit(&parameters)?;
        Ok(Compared::new(algorithm, &limit, &at_ms, window_ms))
    };
    let each = Algorithm::ALL.map(|algorithm| (algorithm, config.of(algorithm)));
    let leaky = Algorithm::LeakyBucket;
    let in_the_other_mode = (leaky, config.of(leaky).in_the_other_mode());
    let each = each.into_iter().chain([in_the_other_mode]);
    let all = each.map(compared).collect::<Result<Vec<_>, Problem>>()?;
    let mut body = Vec::new();
    append(&mut body, &all);
    Ok(json(budget.body(body)?))
}

fn check(at_ms: &[u64], window_ms: u64) -> Result<(), Problem> {
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
    Err(Problem::bad_request(detail))
}

impl Compared {
    fn new(algorithm: Algorithm, limit: &Limit, at_ms: &[u64], window_ms: u64) -> Compared {
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
        Compared { algorithm, limit, goes_ms, allowed, worst, worst_from_ms, bound }
    }
}

/// The most requests of cost 1 that can go within a window, whatever the traffic is.
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

/// The most that went within a window, the end excluded, and when that began.
fn worst(went_us: &[u64], window_us: u64) -> (usize, u64) {
    let mut worst = (0, 0);
    let mut first = 0;
    for (at, went) in went_us.iter().enumerate() {
        while went_us[first] + window_us <= *went {
            first += 1;
        }
        // OK because the first is never after this one: a window is not empty.
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
            .map(|(algorithm, limit)| Compared::new(algorithm, &limit, &[], 10_000).bound);
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
                let Compared { worst, bound, .. } = Compared::new(algorithm, &limit, &at_ms, window_ms);
                prop_assert!(worst as u64 <= bound, "{limit}: {worst} above {bound}");
            }
        }
    }
}
