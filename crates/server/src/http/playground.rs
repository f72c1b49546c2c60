//! `/api/rate-limit`: the playground over HTTP.
//!
//! The paths and fields are the same as in a well-known tutorial, so that its clients work unchanged. The tutorial does
//! not have `reserve`, `settle`, `state` and `compare`.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::response::Response;
use hyper::header::SET_COOKIE;
use hyper::http::request::Parts;
use serde::Serialize;
use tollgate::http::{HeaderFamilies, Outcome};
use tollgate::{Decision, Scope};
use tollgate_playground::{
    AnswerJson, BurstBody, CompareBody as Traffic, Comparison, Playground,
    PlaygroundAlgorithm as Algorithm, PlaygroundError, PlaygroundReservationJson,
    PlaygroundReserveBody, PlaygroundSettleBody, PlaygroundSettlementJson, RequestAlgorithm,
    RequestBody, ResetJson, Session, StateBody, StateJson,
};

use super::ApiProblem;
use super::authorize::wall_us;
use super::body::OptionalJson;
use super::check::json;
use super::json_object::append;
use super::openapi::{BodyProblems, PlaygroundProblems, StoreProblems};
use super::problem::excerpt;
use crate::budget::Budget;

/// The path of the playground. A browser sends the cookie of a session only to this path and paths below it.
const PATH: &str = "/api/rate-limit";

/// The longest body of most requests, and the longest body of a request with traffic.
const MAX_BYTES: usize = 16 << 10;
const MAX_TRAFFIC_BYTES: usize = 64 << 10;

/// The playground, unless it is switched off.
///
/// Extracted before the body, so that no body is read while the playground is switched off.
pub(super) struct EnabledPlayground(Playground);

impl<S> FromRequestParts<S> for EnabledPlayground
where
    S: Sync,
    Option<Playground>: FromRef<S>,
{
    type Rejection = ApiProblem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<EnabledPlayground, ApiProblem> {
        Option::from_ref(state).map(EnabledPlayground).ok_or_else(ApiProblem::playground_off)
    }
}

/// The session of a request.
pub(super) struct PlaygroundSession(Session);

impl<S: Sync> FromRequestParts<S> for PlaygroundSession {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<PlaygroundSession, Infallible> {
        Ok(PlaygroundSession(Session::of(&parts.headers)))
    }
}

impl From<PlaygroundError> for ApiProblem {
    fn from(error: PlaygroundError) -> ApiProblem {
        match error {
            PlaygroundError::Invalid(detail) => ApiProblem::bad_request(detail),
            PlaygroundError::Busy { retry_after } => ApiProblem::playground_busy(retry_after),
            PlaygroundError::TooManyHolds { retry_after, .. } => {
                ApiProblem::playground_busy(Some(retry_after)).with_detail(error.to_string())
            }
            PlaygroundError::Limiter(error) => error.into(),
        }
    }
}

/// Sends one request to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}",
    tag = "playground",
    params(("algorithm" = inline(RequestAlgorithm), Path, description = "The algorithm.")),
    request_body(content = Option<RequestBody>),
    responses((status = 200, description = "The decision.", body = AnswerJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn request(
    EnabledPlayground(playground): EnabledPlayground,
    path: Result<Path<String>, PathRejection>,
    PlaygroundSession(session): PlaygroundSession,
    OptionalJson(body): OptionalJson<RequestBody, MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let decisions = playground.request(algorithm_in(path)?, body, &session).await?;
    let body = to_json(&decisions.answers().next());
    let response = answer(&session, body.into());
    Ok(match decisions.last() {
        Some((scope, last)) => with_limit_headers(scope, last, 1, response),
        None => response,
    })
}

/// Sends several requests at once to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}/burst",
    tag = "playground",
    params(("algorithm" = inline(RequestAlgorithm), Path, description = "The algorithm.")),
    request_body(content = Option<BurstBody>),
    responses((status = 200, description = "The decisions, in order.", body = Vec<AnswerJson>), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn burst(
    EnabledPlayground(playground): EnabledPlayground,
    State(budget): State<Budget>,
    path: Result<Path<String>, PathRejection>,
    PlaygroundSession(session): PlaygroundSession,
    OptionalJson(body): OptionalJson<BurstBody, MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let decisions = playground.burst(algorithm_in(path)?, body, &session).await?;
    let body = to_json(&decisions.answers().collect::<Vec<_>>());
    let response = answer(&session, budget.body_anyway(body));
    Ok(match decisions.last() {
        Some((scope, last)) => with_limit_headers(scope, last, 1, response),
        None => response,
    })
}

/// Sets units aside until they are settled or expire. Not for shaping; under concurrency this starts a job
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}/reserve",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = Option<PlaygroundReserveBody>),
    responses((status = 200, description = "The decision, and the hold.", body = PlaygroundReservationJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn reserve(
    EnabledPlayground(playground): EnabledPlayground,
    path: Result<Path<String>, PathRejection>,
    PlaygroundSession(session): PlaygroundSession,
    OptionalJson(body): OptionalJson<PlaygroundReserveBody, MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let reservation = playground.reserve(algorithm_in(path)?, body, &session).await?;
    let response = answer(&session, to_json(&reservation.answer()).into());
    let (scope, decision, units) = reservation.decided();
    Ok(with_limit_headers(scope, decision, units, response))
}

/// Ends a hold of the session: charges the units that were used, and frees the rest. Under concurrency this ends the job
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}/settle",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = PlaygroundSettleBody),
    responses((status = 200, description = "What was charged.", body = PlaygroundSettlementJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn settle(
    EnabledPlayground(playground): EnabledPlayground,
    path: Result<Path<String>, PathRejection>,
    PlaygroundSession(session): PlaygroundSession,
    OptionalJson(body): OptionalJson<PlaygroundSettleBody, MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let settlement = playground.settle(algorithm_in(path)?, body, &session).await?;
    Ok(answer(&session, to_json(&settlement).into()))
}

/// Resets the session, which has then spent nothing under any algorithm, and has no holds
#[utoipa::path(
    post,
    path = "/api/rate-limit/reset",
    tag = "playground",
    responses((status = 200, description = "The session has spent nothing.", body = ResetJson), StoreProblems, PlaygroundProblems),
)]
pub(super) async fn reset(
    EnabledPlayground(playground): EnabledPlayground,
    PlaygroundSession(session): PlaygroundSession,
) -> Result<Response, ApiProblem> {
    let body = to_json(&playground.reset(&session).await?);
    Ok(answer(&session, body.into()))
}

/// The state of the session under every algorithm. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/state",
    tag = "playground",
    request_body(content = Option<StateBody>),
    responses((status = 200, description = "The state under every algorithm.", body = StateJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn state(
    EnabledPlayground(playground): EnabledPlayground,
    State(budget): State<Budget>,
    PlaygroundSession(session): PlaygroundSession,
    OptionalJson(body): OptionalJson<StateBody, MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    let body = to_json(&playground.state(body, &session).await?);
    Ok(answer(&session, budget.body(body)?))
}

/// The decisions of all algorithms on the same traffic, at the times in the traffic. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/compare",
    tag = "playground",
    request_body(content = Option<Traffic>),
    responses((status = 200, description = "The decisions of each algorithm.", body = Vec<Comparison>), BodyProblems, PlaygroundProblems),
)]
pub(super) async fn compare(
    _: EnabledPlayground,
    State(budget): State<Budget>,
    OptionalJson(traffic): OptionalJson<Traffic, MAX_TRAFFIC_BYTES>,
) -> Result<Response, ApiProblem> {
    let body = to_json(&tollgate_playground::compare(traffic)?);
    Ok(json(budget.body(body)?))
}

/// Returns the algorithm that a path names.
fn algorithm_in(path: Result<Path<String>, PathRejection>) -> Result<Algorithm, ApiProblem> {
    let Path(name) = path.map_err(|_| ApiProblem::bad_path())?;
    Algorithm::from_name(&name).ok_or_else(|| {
        let (name, names) = (excerpt(&name), Algorithm::ALL.map(Algorithm::name).join(", "));
        ApiProblem::bad_request(format!("there is no algorithm `{name}`; use one of {names}"))
    })
}

/// Writes an answer as JSON.
fn to_json(answer: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::new();
    append(&mut body, answer);
    body
}

/// Makes a response with a JSON body, and with a cookie if the session is new.
fn answer(session: &Session, body: Body) -> Response {
    let mut response = json(body);
    if let Some(cookie) = session.cookie(PATH) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// Adds the headers that a client of such a limit would get.
fn with_limit_headers(
    scope: &Scope,
    decision: &Decision,
    cost: u64,
    mut response: Response,
) -> Response {
    let outcome = Outcome::of_limit(scope, decision, cost);
    HeaderFamilies::ALL.add_headers(&outcome, wall_us(), response.headers_mut());
    response
}
