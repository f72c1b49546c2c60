//! The requests to an algorithm, and the answers, as JSON.

use serde::{Deserialize, Serialize};
use tollgate::{Decision, Scope};
use utoipa::ToSchema;

use super::algorithm::AlgorithmParameters;
use super::fields::{WholeNumber, object, present};

/// The body of a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundRequest)]
pub struct RequestBody {
    /// The parameters that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<AlgorithmParameters>,
}

/// The body of a burst.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundBurst)]
pub struct BurstBody {
    /// The parameters that differ from the defaults.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<AlgorithmParameters>,
    /// The number of requests.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 50, default = 10)]
    pub(super) count: Option<WholeNumber>,
}

/// The decision of an algorithm.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundDecision)]
pub struct AnswerJson {
    /// Whether the request is allowed.
    allowed: bool,
    /// The number of further requests that would be allowed at this instant.
    #[schema(example = 9)]
    remaining: u64,
    /// The limit's size.
    #[schema(example = 10)]
    limit: u64,
    /// The seconds after which a refused request would be allowed; null for an allowed request.
    #[schema(required)]
    retry_after: Option<f64>,
    /// The seconds by which an allowed request is delayed; null unless requests are shaped.
    #[schema(required)]
    delay: Option<f64>,
}

impl AnswerJson {
    pub(super) fn new(decision: &Decision, scope: &Scope) -> AnswerJson {
        let is_delayed = decision.is_allowed() && scope.limit().is_shaping();
        AnswerJson {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            limit: decision.limit(),
            retry_after: decision.retry_after().map(|wait| wait.as_secs_f64()),
            delay: is_delayed.then(|| decision.delay().as_secs_f64()),
        }
    }
}

/// The answer after the counters were reset.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundReset)]
pub struct ResetJson {
    /// Always true.
    #[schema(example = true)]
    pub(super) ok: bool,
}
