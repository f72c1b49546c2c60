//! `POST /v1/reserve`, `/v1/settle` and `/v1/extend`, and a batch of each.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;

use super::ApiProblem;
use super::batch::{self, BatchKind, answer_each};
use super::body::JsonBody;
use super::check::{DOMAIN_IN_BODY, MAX_BYTES, TYPICAL_ANSWER_BYTES, json};
use super::hold_answers::{ExtendAnswerJson, SettleAnswerJson, write_reserved};
use super::hold_body::{decode_extend, decode_reserve, decode_settle};
use super::openapi::{
    BodyProblems, ExtendAnswers, ExtendRequestSchema, ExtendRequests, ReserveAnswerSchema,
    ReserveAnswers, ReserveRequestSchema, ReserveRequests, SettleAnswers, SettleRequestSchema,
    SettleRequests, StoreProblems,
};
use super::problem::excerpt;
use crate::budget::Budget;
use crate::pipeline::{HoldProblem, Pipeline};

/// Sets units aside, for a cost that is known only afterwards
///
/// The named limit decides, or all rules of a domain that apply to the request. Rules with `reserve` in their cost and
/// rules with a concurrency limit set units aside, and the other rules are charged at once: all of them, or none.
///
/// The reservation is decided as a check of that cost would be. The units count as spent until the hold is settled or
/// expires. At its expiry it is charged in full, because the units may have been used. A refusal has the status 200 too,
/// and holds nothing. A body has at most 64 KiB.
#[utoipa::path(
    post,
    path = "/v1/reserve",
    tag = "holds",
    request_body(content = ReserveRequestSchema, examples(
        ("a limit" = (value = json!({"limit": "partner", "key": "team:7", "cost": 1000, "for": "30s"}))),
        ("rules" = (value = json!({
            "domain": "api",
            "attributes": {"method": "POST", "path": "/chat", "ip": "203.0.113.9"},
            "cost": 1000, "for": "30s"
        }))),
    )),
    responses(
        (status = 200, description = "The decision: allowed or refused.", body = ReserveAnswerSchema, example = json!({
            "allowed": true, "limit": 10_000, "remaining": 9_000,
            "retry_after_us": null, "reset_after_us": 35_000_000, "delay_us": 0,
            "hold": "AgNs…", "hold_expires_after_us": 30_000_000
        })),
        (
            status = 404, description = "There is no such limit, or the domain has no rules.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn reserve(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let sent = pipeline.send_reservation(decode_reserve(&body)?)?;
    let answering = pipeline.in_store_span(pipeline.reserved(sent));
    let reserved = Box::pin(answering).await?;
    let mut answer = Vec::with_capacity(TYPICAL_ANSWER_BYTES);
    write_reserved(reserved, &mut answer);
    Ok(json(budget.body_anyway(answer)))
}

/// Charges what was used of a hold
///
/// `costs` has what was used under single rules, by their names, if it differs from `cost`. A place of a concurrency
/// limit is free at the end, and costs nothing: it may not be in `costs`, and a hold of places alone needs no `cost`.
///
/// `cost` is the sum of the units that were used since the reservation, and may be 0. The hold ends, and the rest of its
/// units is free at once; with `"keep": true` the rest stays held until the same expiry. A settlement is never refused:
/// units that were used beyond the hold are charged too, at most one whole limit of them.
///
/// Sending a settlement again is safe: a hold is settled once, on whatever server, and with `keep` only the units are
/// charged that earlier settlements have not charged.
#[utoipa::path(
    post,
    path = "/v1/settle",
    tag = "holds",
    request_body(content = SettleRequestSchema, example = json!({"hold": "AgNs…", "cost": 812})),
    responses(
        (status = 200, description = "The effect: also if the hold had ended.", body = SettleAnswerJson, example = json!({
            "allowed": true, "limit": 10_000, "remaining": 9_188,
            "retry_after_us": null, "reset_after_us": 4_060_000, "delay_us": 0,
            "charged": 812, "excess": 0, "cut": 0, "receipt": "AQb2…"
        })),
        (
            status = 404, description = "The limit of the hold is no longer there.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        (
            status = 421,
            description = "The hold is on another server's share of the limit, because the store failed at its reservation.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn settle(
    State(pipeline): State<Arc<Pipeline>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Json<SettleAnswerJson>, ApiProblem> {
    let sent = pipeline.send_settlement(&decode_settle(&body)?)?;
    let answering = pipeline.in_store_span(pipeline.settled(sent));
    Ok(Json(Box::pin(answering).await?.into()))
}

/// Adds units to a hold, and moves its expiry
///
/// The additional units are decided as a check of them would be. If they are refused, the hold stays as it was. With a
/// `cost` of 0, the default, only the expiry moves, which is never refused. The hold then expires after the time `for`,
/// counted from now.
#[utoipa::path(
    post,
    path = "/v1/extend",
    tag = "holds",
    request_body(content = ExtendRequestSchema, example = json!({"hold": "AgNs…", "cost": 500, "for": "30s"})),
    responses(
        (status = 200, description = "The decision: also if the hold had ended.", body = ExtendAnswerJson, example = json!({
            "allowed": true, "limit": 10_000, "remaining": 8_500,
            "retry_after_us": null, "reset_after_us": 37_500_000, "delay_us": 0,
            "hold": "AgNs…", "hold_expires_after_us": 30_000_000
        })),
        (
            status = 404, description = "The limit of the hold is no longer there.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        (
            status = 421,
            description = "The hold is on another server's share of the limit, because the store failed at its reservation.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn extend(
    State(pipeline): State<Arc<Pipeline>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Json<ExtendAnswerJson>, ApiProblem> {
    let sent = pipeline.send_extension(&decode_extend(&body)?)?;
    let answering = pipeline.in_store_span(pipeline.extended(sent));
    Ok(Json(Box::pin(answering).await?.into()))
}

/// Decides many reservations, each by itself, in order
///
/// As `/v1/check/batch` does.
#[utoipa::path(
    post,
    path = "/v1/reserve/batch",
    tag = "holds",
    request_body(content = ReserveRequests, example = json!([
        {"limit": "partner", "key": "team:7", "cost": 1000, "for": "30s"}, {"limit": "free", "key": "user:42"}
    ])),
    responses(
        (status = 200, description = "One answer for each request, in the same order.", body = ReserveAnswers),
        BodyProblems,
    ),
)]
pub(super) async fn reserve_batch(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<{ batch::MAX_BYTES }>,
) -> Result<Response, ApiProblem> {
    answer_each(BatchKind::Reservations, &pipeline, &budget, &body).await
}

/// Settles many holds, each by itself, in order
///
/// As `/v1/check/batch` does.
#[utoipa::path(
    post,
    path = "/v1/settle/batch",
    tag = "holds",
    request_body(content = SettleRequests, example = json!([{"hold": "AgNs…", "cost": 812}])),
    responses(
        (status = 200, description = "One answer for each request, in the same order.", body = SettleAnswers),
        BodyProblems,
    ),
)]
pub(super) async fn settle_batch(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<{ batch::MAX_BYTES }>,
) -> Result<Response, ApiProblem> {
    answer_each(BatchKind::Settlements, &pipeline, &budget, &body).await
}

/// Extends many holds, each by itself, in order
///
/// As `/v1/check/batch` does.
#[utoipa::path(
    post,
    path = "/v1/extend/batch",
    tag = "holds",
    request_body(content = ExtendRequests, example = json!([{"hold": "AgNs…", "cost": 500, "for": "30s"}])),
    responses(
        (status = 200, description = "One answer for each request, in the same order.", body = ExtendAnswers),
        BodyProblems,
    ),
)]
pub(super) async fn extend_batch(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<{ batch::MAX_BYTES }>,
) -> Result<Response, ApiProblem> {
    answer_each(BatchKind::Extensions, &pipeline, &budget, &body).await
}

impl From<HoldProblem<'_>> for ApiProblem {
    fn from(problem: HoldProblem<'_>) -> ApiProblem {
        match problem {
            HoldProblem::UnknownTarget(target) => {
                ApiProblem::unknown_target(&target, DOMAIN_IN_BODY)
            }
            HoldProblem::KeyTooLong { bytes, most } => ApiProblem::bad_request(format!(
                "the key has {bytes} bytes, and the key of a hold may have at most {most}; use for example a hash of it"
            )),
            HoldProblem::NotAToken => ApiProblem::bad_request(
                "not a hold of this server; send the token unchanged, to a server with the secret that signed it \
                 (TOLLGATE_RECEIPT_SECRET); on a server in memory a token is valid until the process ends",
            ),
            HoldProblem::OnOtherServer => ApiProblem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "the store failed when this hold was reserved, and its units are held in the memory of another server, on \
                 that server's share of the limit; send the request to that server, or leave the hold to expire",
            ),
            HoldProblem::NoLimit => ApiProblem::new(
                StatusCode::NOT_FOUND,
                "the limit of the hold no longer exists, and the hold is left to expire; to settle it, put the limit back \
                     into the rules file",
            ),
            HoldProblem::TokenTooLong => ApiProblem::bad_request(
                "the rules that apply have too many or too long keys for the token of a hold, which has at most 4096 \
                 characters, and nothing is held; send shorter attributes",
            ),
            HoldProblem::CostNotGiven => ApiProblem::bad_request(
                "`cost` is missing; send the units that were used since the reservation, which may be 0",
            ),
            HoldProblem::UseNotGiven { name } => ApiProblem::bad_request(format!(
                "no cost is given for the rule `{name}`; add it to `costs`, or send `cost` for all rules"
            )),
            HoldProblem::NotHeld { name } => ApiProblem::bad_request(format!(
                "costs: this hold has no units of a rule `{}`; the answer to the reservation lists its rules",
                excerpt(&name)
            )),
            HoldProblem::CostOfPlace { name } => ApiProblem::bad_request(format!(
                "costs: the rule `{}` holds a place of a concurrency limit, which costs nothing and is free when the hold \
                 ends; leave this rule out of `costs`",
                excerpt(&name)
            )),
            HoldProblem::Failed(error) => ApiProblem::from(error),
        }
    }
}
