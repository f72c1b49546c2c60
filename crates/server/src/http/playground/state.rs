//! How a session stands: what the page draws.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tollgate_core::{Cost, Fill, Limit};
use utoipa::ToSchema;

use super::algorithm::{Algorithm, Parameters, object};
use super::session::Session;
use super::{MAX_BYTES, Playground};
use crate::budget::Budget;
use crate::http::Problem;
use crate::http::body::OptionalJson;
use crate::http::check::{append, json};
use crate::http::openapi::{BodyProblems, PlaygroundProblems, StoreProblems};
use crate::store::StoreKind;

/// The parameters of each algorithm, where they are not the usual ones.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schema(as = PlaygroundConfigs)]
pub(super) struct Configs {
    #[serde(default, deserialize_with = "object")]
    fixed_window: Option<Parameters>,
    #[serde(default, deserialize_with = "object")]
    sliding_window_log: Option<Parameters>,
    #[serde(default, deserialize_with = "object")]
    sliding_window_counter: Option<Parameters>,
    #[serde(default, deserialize_with = "object")]
    token_bucket: Option<Parameters>,
    #[serde(default, deserialize_with = "object")]
    leaky_bucket: Option<Parameters>,
}

impl Configs {
    pub(super) fn of(&self, algorithm: Algorithm) -> Parameters {
        let own = match algorithm {
            Algorithm::FixedWindow => &self.fixed_window,
            Algorithm::SlidingWindowLog => &self.sliding_window_log,
            Algorithm::SlidingWindowCounter => &self.sliding_window_counter,
            Algorithm::TokenBucket => &self.token_bucket,
            Algorithm::LeakyBucket => &self.leaky_bucket,
        };
        own.clone().unwrap_or_default()
    }
}

/// Which parameters the algorithms have.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundStateRequest)]
pub(in crate::http) struct AskedState {
    #[serde(default, deserialize_with = "object")]
    config: Option<Configs>,
}

/// How a session stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundState)]
pub(in crate::http) struct StateJson {
    /// Where the counters are: `memory` or `redis`.
    #[schema(example = "memory")]
    store: &'static str,
    /// By algorithm.
    algorithms: BTreeMap<&'static str, StandingJson>,
}

/// How a session stands with an algorithm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundStanding)]
struct StandingJson {
    /// The algorithm with its numbers.
    #[schema(example = "token-bucket capacity=10 refill=1/s")]
    text: String,
    /// What decides now. Other numbers than those until what was spent under them has left.
    decides: DecidesJson,
    /// The limit's size.
    limit: u64,
    /// How many requests may go at this instant.
    remaining: u64,
    /// The store's time as of which this is so, in microseconds since the Unix epoch.
    now_us: u64,
    state: ShownState,
}

/// The limit that decides on a session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundDecides)]
struct DecidesJson {
    /// The algorithm with its numbers.
    #[schema(example = "token-bucket capacity=10 refill=1/s")]
    text: String,
    /// Of a window or a log, how long it is.
    #[schema(required)]
    window_us: Option<u64>,
    /// Of a bucket, how many come back or leave a second.
    #[schema(required)]
    per_second: Option<f64>,
    /// Whether requests wait their turn.
    shaping: bool,
}

impl DecidesJson {
    fn new(limit: &Limit) -> DecidesJson {
        let (window_us, rate) = match limit {
            Limit::FixedWindow(own) => (Some(own.window_us()), None),
            Limit::SlidingWindowLog(own) => (Some(own.window_us()), None),
            Limit::SlidingWindowCounter(own) => (Some(own.window_us()), None),
            Limit::TokenBucket(own) => (None, Some(own.refill())),
            Limit::LeakyBucket(own) => (None, Some(own.leak())),
        };
        let per_second = rate.map(|rate| rate.units() as f64 * 1e6 / rate.per_us() as f64);
        DecidesJson { text: limit.to_string(), window_us, per_second, shaping: limit.is_shaping() }
    }
}

/// What an algorithm remembers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[schema(as = PlaygroundShownState)]
enum ShownState {
    /// Since when, and how much.
    Window { start_us: u64, spent: u64 },
    /// When each request was charged.
    Entries(Vec<u64>),
    /// Since when, and how much in this window and in the one before.
    Pair { start_us: u64, current: u64, previous: u64 },
    /// How much is in the bucket as of now: of a token bucket, what is spent.
    Level(f64),
}

/// How the session stands with every algorithm. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/state",
    tag = "playground",
    request_body(content = Option<AskedState>),
    responses((status = 200, description = "How it stands.", body = StateJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(in crate::http) async fn state(
    playground: Playground,
    State(store): State<StoreKind>,
    State(budget): State<Budget>,
    session: Session,
    OptionalJson(asked): OptionalJson<AskedState, MAX_BYTES>,
) -> Result<Response, Problem> {
    let config = asked.config.unwrap_or_default();
    playground.spend(Algorithm::ALL.len() as u64)?;
    let mut algorithms = BTreeMap::new();
    for algorithm in Algorithm::ALL {
        let standing = standing(&playground, algorithm, &config.of(algorithm), &session).await?;
        algorithms.insert(algorithm.name(), standing);
    }
    let mut body = Vec::new();
    append(&mut body, &StateJson { store: store.name(), algorithms });
    Ok(session.started(json(budget.body(body)?)))
}

async fn standing(
    playground: &Playground,
    algorithm: Algorithm,
    parameters: &Parameters,
    session: &Session,
) -> Result<StandingJson, Problem> {
    let scope = playground.scope(algorithm, parameters)?;
    let (limit, state, now_us) = scope.state(session.key()).await?;
    let decision = limit.peek(&state, now_us, Cost::ONE.into());
    let shown = shown(&limit, &state, now_us);
    Ok(StandingJson {
        text: scope.limit().to_string(),
        decides: DecidesJson::new(&limit),
        limit: decision.limit,
        remaining: decision.remaining,
        now_us,
        state: shown,
    })
}

fn shown(limit: &Limit, state: &tollgate_core::State, now_us: u64) -> ShownState {
    match state {
        tollgate_core::State::Window(own) => {
            ShownState::Window { start_us: own.start_us, spent: own.spent }
        }
        tollgate_core::State::WindowPair(own) => ShownState::Pair {
            start_us: own.start_us,
            current: own.current,
            previous: own.previous,
        },
        tollgate_core::State::Log(_) => {
            let entries = limit.entries(state, now_us).into_iter().flatten();
            // A log that was short of memory has several charges as one.
            let each = entries.flat_map(|own| (0..own.cost.units()).map(move |_| own.at_us));
            ShownState::Entries(each.collect())
        }
        tollgate_core::State::Fill(fill) => ShownState::Level(level(limit, fill, now_us)),
    }
}

/// What is in a bucket: for a picture, so that it need not be exact.
fn level(limit: &Limit, fill: &Fill, now_us: u64) -> f64 {
    let rate = match limit {
        Limit::TokenBucket(own) => own.refill(),
        Limit::LeakyBucket(own) => own.leak(),
        Limit::FixedWindow(_) | Limit::SlidingWindowLog(_) | Limit::SlidingWindowCounter(_) => {
            return 0.0;
        }
    };
    let per_us = rate.per_us() as f64;
    let held = fill.level.units as f64 + fill.level.fraction as f64 / per_us;
    let gone = now_us.saturating_sub(fill.as_of_us) as f64 * rate.units() as f64 / per_us;
    (held - gone).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_800_000_000_000_000;

    /// After a charge of so much, and some time.
    fn after(limit: &str, cost: u64, elapsed_us: u64) -> serde_json::Value {
        let limit: Limit = limit.parse().unwrap();
        let mut state = limit.fresh();
        limit.check(&mut state, NOW_US, Cost::new(cost).unwrap().into());
        serde_json::to_value(shown(&limit, &state, NOW_US + elapsed_us)).unwrap()
    }

    #[test]
    fn requests_that_a_log_has_as_one_are_told_each() {
        let log = after("sliding-window-log limit=10 window=10s", 3, 9_999_999);
        assert_eq!(log, serde_json::json!({"entries": [NOW_US, NOW_US, NOW_US]}));
        let log = after("sliding-window-log limit=10 window=10s", 3, 10_000_000);
        assert_eq!(log, serde_json::json!({"entries": []}));
    }

    #[test]
    fn a_level_goes_down_until_nothing_is_left() {
        for limit in
            ["token-bucket capacity=10 refill=0.5/s", "leaky-bucket capacity=10 leak=0.5/s"]
        {
            for (elapsed_us, level) in
                [(0, 4.0), (3_000_000, 2.5), (8_000_000, 0.0), (9_000_000, 0.0)]
            {
                assert_eq!(
                    after(limit, 4, elapsed_us),
                    serde_json::json!({"level": level}),
                    "{limit}"
                );
            }
        }
    }
}
