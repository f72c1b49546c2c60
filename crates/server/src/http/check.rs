//! `POST /v1/check`: decides a request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::body::JsonBody;
use super::decision::{DecisionJson, RulingJson};
use super::openapi::{BodyProblems, CheckAnswer, CheckRequestSchema, StoreProblems};
use super::{ApiProblem, check_body};
use crate::budget::Budget;
use crate::pipeline::{DecideError, Pipeline, PipelineAnswer};

/// Shows how to name a domain in a body, for error messages.
pub(super) const DOMAIN_IN_BODY: &str = r#"{"domain":"api", …}"#;

/// The longest body of a check.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// The typical length of an answer.
pub(super) const TYPICAL_ANSWER_BYTES: usize = 256;

/// Decides a request, and charges it if it is allowed
///
/// By the named limit, or by all rules of a domain that apply to the request: either all of them are charged, or none.
/// `domain` may be left out if the rules have only one domain. A refusal has the status 200 too, and charges nothing.
/// A body has at most 64 KiB.
#[utoipa::path(
    post,
    path = "/v1/check",
    tag = "decisions",
    request_body(content = CheckRequestSchema, examples(
        ("a limit" = (value = json!({"limit": "free", "key": "user:42", "cost": 1}))),
        ("rules" = (value = json!({
            "domain": "api",
            "attributes": {"method": "GET", "path": "/reports", "ip": "203.0.113.9", "api_key": "k_123"}
        }))),
        ("rules of the only domain" = (value = json!({"attributes": {"ip": "203.0.113.9"}}))),
    )),
    responses(
        (status = 200, description = "The decision: allowed or refused.", body = CheckAnswer, example = json!({
            "allowed": true, "limit": 60, "remaining": 59,
            "retry_after_us": null, "reset_after_us": 1_000_000, "delay_us": 0,
            "receipt": "AQb2…"
        })),
        (
            status = 404, description = "There is no such limit, or the domain has no rules.",
            body = ApiProblem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn check(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    decide(&pipeline, &budget, &body).await
}

/// Decides the request in a body, and makes the response.
pub(super) async fn decide(
    pipeline: &Pipeline,
    budget: &Budget,
    body: &[u8],
) -> Result<Response, ApiProblem> {
    let answer = pipeline.decide(check_body::decode(body)?).await?;
    let mut json_answer = Vec::with_capacity(TYPICAL_ANSWER_BYTES);
    write(answer, &mut json_answer);
    Ok(json(budget.body_anyway(json_answer)))
}

/// Appends an answer as JSON.
pub(super) fn write(answer: PipelineAnswer, to: &mut Vec<u8>) {
    match answer {
        PipelineAnswer::Limit { decision, receipt } => {
            DecisionJson::from(&decision).with_receipt(receipt).write(to);
        }
        PipelineAnswer::Rules { ruling, receipt } => {
            RulingJson::from(&ruling).with_receipt(receipt).write(to);
        }
    }
}

impl From<DecideError<'_>> for ApiProblem {
    fn from(error: DecideError<'_>) -> ApiProblem {
        match error {
            DecideError::UnknownTarget(target) => {
                ApiProblem::unknown_target(&target, DOMAIN_IN_BODY)
            }
            DecideError::Failed(error) => ApiProblem::from(error),
        }
    }
}

/// Makes a response with a JSON body.
pub(super) fn json(body: Body) -> Response {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
