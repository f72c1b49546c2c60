//! What is sent to an algorithm and what is answered, as JSON.

use serde::{Deserialize, Serialize};
use tollgate::{Decision, Scope};
use utoipa::ToSchema;

use super::algorithm::Parameters;
use super::fields::{Whole, given, object};

/// What is sent with a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundRequest)]
pub struct RequestBody {
    /// The parameters, where they are not the usual ones.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<Parameters>,
}

/// What is sent with a burst.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundBurst)]
pub struct BurstBody {
    /// The parameters, where they are not the usual ones.
    #[serde(default, deserialize_with = "object")]
    pub(super) config: Option<Parameters>,
    /// How many requests.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 50, default = 10)]
    pub(super) count: Option<Whole>,
}

/// What an algorithm decided.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundDecision)]
pub struct AnswerJson {
    /// Whether the request may go.
    allowed: bool,
    /// How many more may go at this instant.
    #[schema(example = 9)]
    remaining: u64,
    /// The limit's size.
    #[schema(example = 10)]
    limit: u64,
    /// After how many seconds a refused request may go; null if it may.
    #[schema(required)]
    retry_after: Option<f64>,
    /// How many seconds an allowed request waits its turn; null unless requests are shaped.
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

/// That the counters are as they were at first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundReset)]
pub struct ResetJson {
    #[schema(example = true)]
    pub(super) ok: bool,
}
