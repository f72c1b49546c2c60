//! A session's state under every algorithm, which the page draws.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate::store::KeyState;
use tollgate_core::{Cost, Fill, HoldTime, Limit};
use utoipa::ToSchema;

use super::algorithm::{AlgorithmParameters, PlaygroundAlgorithm};
use super::configs::AlgorithmConfigs;
use super::error::PlaygroundError;
use super::fields::object;
use super::play::Playground;
use super::session::Session;

/// The parameters of the algorithms.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundStateRequest)]
pub struct StateBody {
    /// The parameters of each algorithm that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    config: Option<AlgorithmConfigs>,
}

/// A session's state.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundState)]
pub struct StateJson {
    /// The store that has the counters: `memory` or `redis`.
    #[schema(example = "memory")]
    store: &'static str,
    /// The state under each algorithm, by the algorithm's name.
    algorithms: BTreeMap<&'static str, AlgorithmStateJson>,
}

/// A session's state under one algorithm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundStanding)]
struct AlgorithmStateJson {
    /// The limit: the algorithm with its parameters.
    #[schema(example = "token-bucket capacity=10 refill=1/s")]
    text: String,
    /// The limit that decides now. After a change of the parameters this is the old limit, until enough of the units that
    /// were spent under it have come back.
    decides: DecidingLimitJson,
    /// The limit's size.
    limit: u64,
    /// The number of requests that would be allowed at this instant.
    remaining: u64,
    /// The store's time of this state, in microseconds since the Unix epoch.
    now_us: u64,
    state: StoredStateJson,
    /// The open holds, the earliest expiry first. Their units are not in `state`.
    holds: Vec<PlaygroundHoldJson>,
}

/// Units that are set aside.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundOpenHold)]
struct PlaygroundHoldJson {
    /// The number of the hold in this session; null if another server reserved it.
    #[schema(required)]
    hold: Option<u64>,
    units: u64,
    /// When the hold expires, in microseconds since the Unix epoch.
    expires_us: u64,
}

/// The limit that decides on a session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundDecides)]
struct DecidingLimitJson {
    /// The limit: the algorithm with its parameters.
    #[schema(example = "token-bucket capacity=10 refill=1/s")]
    text: String,
    /// The length of a window or a log; null for the other algorithms.
    #[schema(required)]
    window_us: Option<u64>,
    /// The units that a bucket refills or leaks per second; null for the other algorithms.
    #[schema(required)]
    per_second: Option<f64>,
    /// The time after which a job loses its place under concurrency; null for the other algorithms.
    #[schema(required)]
    hold_us: Option<u64>,
    /// Whether requests are delayed.
    shaping: bool,
}

impl DecidingLimitJson {
    fn new(limit: &Limit) -> DecidingLimitJson {
        let (window_us, rate) = match limit {
            Limit::FixedWindow(own) => (Some(own.window_us()), None),
            Limit::SlidingWindowLog(own) => (Some(own.window_us()), None),
            Limit::SlidingWindowCounter(own) => (Some(own.window_us()), None),
            Limit::TokenBucket(own) => (None, Some(own.refill())),
            Limit::LeakyBucket(own) => (None, Some(own.leak())),
            Limit::Concurrency(_) => (None, None),
        };
        let per_second = rate.map(|rate| rate.units() as f64 * 1e6 / rate.per_us() as f64);
        DecidingLimitJson {
            text: limit.to_string(),
            window_us,
            per_second,
            hold_us: limit.hold_for().map(HoldTime::as_us),
            shaping: limit.is_shaping(),
        }
    }
}

/// The stored state of an algorithm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[schema(as = PlaygroundShownState)]
enum StoredStateJson {
    /// The start of the window, and the units spent in it.
    Window { start_us: u64, spent: u64 },
    /// When each request was charged.
    Entries(Vec<u64>),
    /// The start of the current window, and the units spent in it and in the previous one.
    Pair { start_us: u64, current: u64, previous: u64 },
    /// The level of the bucket now; for a token bucket, the spent tokens.
    Level(f64),
    /// Nothing: under concurrency, units are only ever held.
    HeldOnly,
}

impl Playground {
    /// Returns the session's state under every algorithm, without a charge.
    pub async fn state(
        &self,
        body: StateBody,
        session: &Session,
    ) -> Result<StateJson, PlaygroundError> {
        let config = body.config.unwrap_or_default();
        self.charge_shared_limit(self.algorithms().count() as u64)?;
        let mut algorithms = BTreeMap::new();
        for algorithm in self.algorithms() {
            let state = self.algorithm_state(algorithm, &config.of(algorithm), session).await?;
            algorithms.insert(algorithm.name(), state);
        }
        Ok(StateJson { store: self.store(), algorithms })
    }

    async fn algorithm_state(
        &self,
        algorithm: PlaygroundAlgorithm,
        parameters: &AlgorithmParameters,
        session: &Session,
    ) -> Result<AlgorithmStateJson, PlaygroundError> {
        let scope = self.scope(algorithm, parameters)?;
        let KeyState { limit, mut state, mut holds, now_us } = scope.state(session.key()).await?;
        // The charges of expired holds are stored by the next operation that changes the state.
        limit.charge_expired(&mut state, &mut holds, now_us);
        let decision = limit.peek_beside(&state, &holds, now_us, Cost::ONE.into());
        let stored = stored_state(&limit, &state, now_us);
        let numbers = self.hold_numbers(session.id());
        let holds = holds.iter().map(|own| PlaygroundHoldJson {
            hold: numbers.get(&own.id).copied(),
            units: own.units,
            expires_us: own.expires_us,
        });
        Ok(AlgorithmStateJson {
            text: scope.limit().to_string(),
            decides: DecidingLimitJson::new(&limit),
            limit: decision.limit,
            remaining: decision.remaining,
            now_us,
            state: stored,
            holds: holds.collect(),
        })
    }
}

fn stored_state(limit: &Limit, state: &tollgate_core::State, now_us: u64) -> StoredStateJson {
    match state {
        tollgate_core::State::Window(own) => {
            StoredStateJson::Window { start_us: own.start_us, spent: own.spent }
        }
        tollgate_core::State::WindowPair(own) => StoredStateJson::Pair {
            start_us: own.start_us,
            current: own.current,
            previous: own.previous,
        },
        tollgate_core::State::Log(_) => {
            let entries = limit.entries(state, now_us).into_iter().flatten();
            // A log that lacked memory has merged several charges into one entry, with the sum of their costs.
            let each = entries.flat_map(|own| (0..own.cost.units()).map(move |_| own.at_us));
            StoredStateJson::Entries(each.collect())
        }
        tollgate_core::State::Fill(fill) => StoredStateJson::Level(level(limit, fill, now_us)),
        tollgate_core::State::KeyClock(_) => StoredStateJson::HeldOnly,
    }
}

/// Returns the level of a bucket. It is drawn, so it need not be exact.
fn level(limit: &Limit, fill: &Fill, now_us: u64) -> f64 {
    let rate = match limit {
        Limit::TokenBucket(own) => own.refill(),
        Limit::LeakyBucket(own) => own.leak(),
        Limit::FixedWindow(_)
        | Limit::SlidingWindowLog(_)
        | Limit::SlidingWindowCounter(_)
        | Limit::Concurrency(_) => return 0.0,
    };
    let per_us = rate.per_us() as f64;
    let held = fill.level.units as f64 + fill.level.fraction as f64 / per_us;
    let left = now_us.saturating_sub(fill.as_of_us) as f64 * rate.units() as f64 / per_us;
    (held - left).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_800_000_000_000_000;

    /// Returns the state, as JSON, some time after a charge of this cost.
    fn after(limit: &str, cost: u64, elapsed_us: u64) -> serde_json::Value {
        let limit: Limit = limit.parse().unwrap();
        let mut state = limit.fresh();
        limit.check(&mut state, NOW_US, Cost::new(cost).unwrap().into());
        serde_json::to_value(stored_state(&limit, &state, NOW_US + elapsed_us)).unwrap()
    }

    #[test]
    fn log_entry_of_cost_3_is_returned_as_three_entries() {
        let log = after("sliding-window-log limit=10 window=10s", 3, 9_999_999);
        assert_eq!(log, serde_json::json!({"entries": [NOW_US, NOW_US, NOW_US]}));
        let log = after("sliding-window-log limit=10 window=10s", 3, 10_000_000);
        assert_eq!(log, serde_json::json!({"entries": []}));
    }

    #[test]
    fn level_decreases_to_zero() {
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
