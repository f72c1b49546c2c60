//! `POST /v1/check`: decides a request.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tollgate::Decision;

use super::Problem;
use crate::served::Served;
use crate::traces;

/// A request to be decided.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest<'a> {
    #[serde(borrow)]
    limit: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    cost: Option<u64>,
}

/// What was decided.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionJson {
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
    /// With which it can be given back; null if nothing was charged, or if the key is very long.
    receipt: Option<String>,
}

impl From<&Decision> for DecisionJson {
    fn from(decision: &Decision) -> DecisionJson {
        let decided = decision.decided();
        DecisionJson {
            allowed: decided.is_allowed(),
            limit: decided.limit,
            remaining: decided.remaining,
            retry_after_us: decided.retry_after_us(),
            reset_after_us: decided.reset_after_us,
            delay_us: decided.delay_us(),
            receipt: None,
        }
    }
}

/// Decides a request, and charges it if it is allowed.
pub(super) async fn check(
    State(served): State<Arc<Served>>,
    body: Bytes,
) -> Result<Json<DecisionJson>, Problem> {
    let asked: CheckRequest<'_> =
        serde_json::from_slice(&body).map_err(|error| Problem::bad_request(error.to_string()))?;
    let limit = served.limit(&asked.limit).ok_or_else(|| Problem::unknown_limit(&asked.limit))?;
    let check = limit.scope.check(asked.key.as_bytes()).cost(asked.cost.unwrap_or(1));
    let decided = served.metrics.store_call(traces::store(&served, check)).await;
    let decision = decided.inspect_err(|_| limit.tally.count_failure())?;
    limit.tally.count(&decision);
    traces::decided(&asked.limit, &decision);
    let receipt = served.receipts.of_limit(&limit.scope, asked.key.as_bytes(), &decision);
    Ok(Json(DecisionJson { receipt, ..DecisionJson::from(&decision) }))
}
