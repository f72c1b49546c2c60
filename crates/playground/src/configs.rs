//! The parameters of all algorithms.

use serde::Deserialize;
use utoipa::ToSchema;

use super::algorithm::{AlgorithmParameters, PlaygroundAlgorithm};
use super::fields::object;

/// The parameters of each algorithm that differ from the defaults.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schema(as = PlaygroundConfigs)]
pub(super) struct AlgorithmConfigs {
    #[serde(default, deserialize_with = "object")]
    fixed_window: Option<AlgorithmParameters>,
    #[serde(default, deserialize_with = "object")]
    sliding_window_log: Option<AlgorithmParameters>,
    #[serde(default, deserialize_with = "object")]
    sliding_window_counter: Option<AlgorithmParameters>,
    #[serde(default, deserialize_with = "object")]
    token_bucket: Option<AlgorithmParameters>,
    #[serde(default, deserialize_with = "object")]
    leaky_bucket: Option<AlgorithmParameters>,
    #[serde(default, deserialize_with = "object")]
    concurrency: Option<AlgorithmParameters>,
}

impl AlgorithmConfigs {
    /// Returns the parameters of an algorithm.
    pub(super) fn of(&self, algorithm: PlaygroundAlgorithm) -> AlgorithmParameters {
        let parameters = match algorithm {
            PlaygroundAlgorithm::FixedWindow => &self.fixed_window,
            PlaygroundAlgorithm::SlidingWindowLog => &self.sliding_window_log,
            PlaygroundAlgorithm::SlidingWindowCounter => &self.sliding_window_counter,
            PlaygroundAlgorithm::TokenBucket => &self.token_bucket,
            PlaygroundAlgorithm::LeakyBucket => &self.leaky_bucket,
            PlaygroundAlgorithm::Concurrency => &self.concurrency,
        };
        parameters.clone().unwrap_or_default()
    }
}
