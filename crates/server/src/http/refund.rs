//! `POST /v1/refund`: gives back what a receipt is for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Problem;
use super::asked::is_object;
use super::body::JsonBody;
use super::openapi::{BodyProblems, StoreProblems};
use crate::receipt::{Receipts, Unrefunded};
use crate::ruleset::RuleSet;

/// The longest body of a refund: a receipt has at most 4 KiB.
const MAX_BYTES: usize = 8 << 10;

/// A receipt to be given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    /// As a decision had it.
    #[schema(max_length = 4096)]
    receipt: String,
}

/// What came back.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Refunded {
    /// How many more units remain now, over all limits of the receipt; 0 if they had come back by themselves.
    refunded: u64,
}

/// Gives back what a decision charged, once.
///
/// Nothing comes back of units that have left by themselves, so a refund never admits more than if the
/// request had not been made. A receipt is good at every server that shares the store and the secret of
/// receipts, for as long as the limit it was charged to counts it, and until the store loses its state: then
/// all is back already (409).
///
/// If the store fails before anything came back, the receipt is as good as before, and the answer says so.
/// If it is not known how much came back, the receipt may be spent (409 from then on): to ask again is safe,
/// everything comes back once at most.
#[utoipa::path(
    post,
    path = "/v1/refund",
    tag = "decisions",
    request_body = RefundRequest,
    responses(
        (status = 200, description = "What came back", body = Refunded),
        (
            status = 404, description = "Its limit is no longer there.",
            body = Problem, content_type = "application/problem+json"
        ),
        (
            status = 409,
            description = "It was refunded before; or the store has lost its state since, or is another.",
            body = Problem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn refund(
    State(receipts): State<Arc<Receipts>>,
    State(rules): State<Arc<RuleSet>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Json<Refunded>, Problem> {
    if !is_object(&body) {
        return Err(Problem::bad_request("a refund is an object; send {\"receipt\":\"…\"}"));
    }
    let asked: RefundRequest =
        serde_json::from_slice(&body).map_err(|error| Problem::in_json(&error))?;
    // On its own: a client that hangs up would otherwise leave a receipt half taken.
    let refunding = async move { receipts.refund(rules.rules(), &asked.receipt).await };
    match tokio::spawn(refunding).await {
        Ok(refunded) => Ok(Json(Refunded { refunded: refunded? })),
        Err(_) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops")),
    }
}

impl From<Unrefunded> for Problem {
    fn from(why: Unrefunded) -> Problem {
        let detail = why.to_string();
        let status = match why {
            Unrefunded::NotOurs => StatusCode::BAD_REQUEST,
            Unrefunded::NoLimit => StatusCode::NOT_FOUND,
            Unrefunded::Before | Unrefunded::AnotherLife => StatusCode::CONFLICT,
            Unrefunded::NoRoom => StatusCode::SERVICE_UNAVAILABLE,
            Unrefunded::Failed(error) | Unrefunded::Unsure(error) => {
                return Problem::from(error).saying(detail);
            }
        };
        Problem::new(status, detail)
    }
}
