//! `POST /v1/check`: decides a request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;

use super::body::JsonBody;
use super::decision::{DecisionJson, RulingJson};
use super::openapi::{BodyProblems, CheckAnswer, CheckRequest, StoreProblems};
use super::{Problem, asked};
use crate::budget::Budget;
use crate::pipeline::{DecideError, Pipeline, PipelineAnswer};

/// How a domain is named in a body.
pub(super) const DOMAIN_IN_BODY: &str = r#"{"domain":"api", …}"#;

/// The longest body of a check.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// What a decision takes, as a rule.
const ANSWER_BYTES: usize = 256;

/// Decides a request, and charges it if it is allowed
///
/// By a limit that is named, or by all rules of a domain that apply to the request: those are charged together,
/// or none is. `domain` may be left out if all rules are of one domain. A refusal is an answer too, and costs nothing.
/// At most 64 KiB.
#[utoipa::path(
    post,
    path = "/v1/check",
    tag = "decisions",
    request_body(content = CheckRequest, examples(
        ("a limit" = (value = json!({"limit": "free", "key": "user:42", "cost": 1}))),
        ("rules" = (value = json!({
            "domain": "api",
            "attributes": {"method": "GET", "path": "/reports", "ip": "203.0.113.9", "api_key": "k_123"}
        }))),
        ("rules of the only domain" = (value = json!({"attributes": {"ip": "203.0.113.9"}}))),
    )),
    responses(
        (status = 200, description = "Allowed, or not.", body = CheckAnswer, example = json!({
            "allowed": true, "limit": 60, "remaining": 59,
            "retry_after_us": null, "reset_after_us": 1_000_000, "delay_us": 0,
            "receipt": "AQb2…"
        })),
        (
            status = 404, description = "There is no such limit, or no rule of that domain.",
            body = Problem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn check(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, Problem> {
    decide(&pipeline, &budget, &body).await
}

/// Decides the request of a body.
pub(super) async fn decide(
    pipeline: &Pipeline,
    budget: &Budget,
    body: &[u8],
) -> Result<Response, Problem> {
    let answer = pipeline.decide(asked::decode(body)?).await?;
    let mut json_answer = Vec::with_capacity(ANSWER_BYTES);
    write(answer, &mut json_answer);
    Ok(json(budget.body_anyway(json_answer)))
}

/// Appends what was decided.
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

impl From<DecideError<'_>> for Problem {
    fn from(error: DecideError<'_>) -> Problem {
        match error {
            DecideError::UnknownTarget(target) => Problem::unknown_target(&target, DOMAIN_IN_BODY),
            DecideError::Failed(error) => Problem::from(error),
        }
    }
}

/// Appends JSON.
pub(super) fn append(to: &mut Vec<u8>, answer: &impl Serialize) {
    // OK because memory takes all of it, and structs of texts and numbers have a JSON.
    let _ = serde_json::to_writer(to, answer);
}

/// An answer of JSON.
pub(super) fn json(body: Body) -> Response {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
