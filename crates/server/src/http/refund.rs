//! `POST /v1/refund`: refunds the charge of a receipt.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiProblem;
use super::body::JsonBody;
use super::check_body::is_object;
use super::openapi::{BodyProblems, StoreProblems};
use crate::receipt::{Receipts, RefundError, RefundedUnits};
use crate::ruleset::RuleSet;

/// The longest body of a refund: a receipt has at most 4 KiB.
const MAX_BYTES: usize = 8 << 10;

/// A refund of the charge of a receipt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    /// The receipt of a decision.
    #[schema(max_length = 4096)]
    receipt: String,
}

/// The result of a refund.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Refunded)]
pub(crate) struct RefundJson {
    /// How many more units remain after the refund, over all limits of the receipt; 0 if the charge had already
    /// expired.
    refunded: u64,
    /// Why less was refunded than was charged, if a charge was made with a lease that can no longer take it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<&'static str>,
}

const AFTER_LEASE: &str = "a charge was made with leased units, which are settled by now, or are of another server; it was not \
    refunded";

impl From<RefundedUnits> for RefundJson {
    fn from(refunded: RefundedUnits) -> RefundJson {
        let detail = refunded.is_after_lease.then_some(AFTER_LEASE);
        RefundJson { refunded: refunded.units, detail }
    }
}

/// Refunds the charge of a decision, once.
///
/// Units that no longer count are not refunded, so a refund never admits more than if the request had not been made. A
/// receipt is good at every server that shares the store and the secret of receipts. It is good for as long as its
/// limit counts the charge, and until the store loses its state: then all units are available again anyway (409). The
/// receipt of a decision that is `leased` is good at the server that gave it, until that server tells the store of the
/// charge, which takes less than the time of a lease: afterwards the answer is 0 units, and says why.
///
/// If the store fails before anything was refunded, the receipt stays good, and the answer says so. If it is not known
/// how much was refunded, the receipt may be spent (409 from then on). Trying again is safe, because nothing is
/// refunded twice.
#[utoipa::path(
    post,
    path = "/v1/refund",
    tag = "decisions",
    request_body = RefundRequest,
    responses(
        (status = 200, description = "The refund", body = RefundJson),
        (
            status = 404, description = "The limit of the receipt is no longer there.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        (
            status = 409,
            description = "The receipt was refunded before; or the store has lost its state since, or is another store.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn refund(
    State(receipts): State<Arc<Receipts>>,
    State(rules): State<Arc<RuleSet>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Json<RefundJson>, ApiProblem> {
    if !is_object(&body) {
        return Err(ApiProblem::bad_request(
            "a refund must be a JSON object; send {\"receipt\":\"…\"}",
        ));
    }
    let request: RefundRequest =
        serde_json::from_slice(&body).map_err(|error| ApiProblem::in_json(&error))?;
    // In a task of its own, so that a client that disconnects does not interrupt the refund.
    let refunding = async move { receipts.refund(rules.rules(), &request.receipt).await };
    match tokio::spawn(refunding).await {
        Ok(refunded) => Ok(Json(RefundJson::from(refunded?))),
        Err(_) => Err(ApiProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server stops, and it is not known how much was refunded; try again",
        )),
    }
}

impl From<RefundError> for ApiProblem {
    fn from(why: RefundError) -> ApiProblem {
        let detail = why.to_string();
        let status = match why {
            RefundError::Invalid => StatusCode::BAD_REQUEST,
            RefundError::NoLimit => StatusCode::NOT_FOUND,
            RefundError::AlreadyRefunded | RefundError::OtherLifetime => StatusCode::CONFLICT,
            RefundError::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
            RefundError::Failed(error) | RefundError::OutcomeUnknown(error) => {
                return ApiProblem::from(error).with_detail(detail);
            }
        };
        ApiProblem::new(status, detail)
    }
}
