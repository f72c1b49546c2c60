//! The parameters of all algorithms.

use serde::Deserialize;
use utoipa::ToSchema;

use super::algorithm::{Algorithm, Parameters};
use super::fields::object;

/// The parameters of each algorithm that differ from the defaults.
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
