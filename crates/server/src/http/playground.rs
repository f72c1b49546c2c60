//! `/api/rate-limit`: the playground over HTTP.
//!
//! The paths and fields are those of a well-known tutorial, so that its clients work unchanged; `state` and
//! `compare` are the page's own.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::response::Response;
use hyper::header::SET_COOKIE;
use hyper::http::request::Parts;
use serde::Serialize;
use tollgate::http::{HeaderFamilies, Outcome};
use tollgate_playground::{
    Algorithm, AnswerJson, BurstBody, Comparison, Playground, PlaygroundError, RequestBody,
    ResetJson, Round, Session, StateBody, StateJson, Traffic,
};

use super::Problem;
use super::authorize::wall_us;
use super::body::OptionalJson;
use super::check::{append, json};
use super::openapi::{BodyProblems, PlaygroundProblems, StoreProblems};
use super::problem::shown;
use crate::budget::Budget;

/// Where all of it is. A browser sends a session's cookie there and nowhere else.
const PATH: &str = "/api/rate-limit";

/// The longest body; and the longest with traffic, which is longer than what is sent otherwise.
const MAX_BYTES: usize = 16 << 10;
const MAX_TRAFFIC_BYTES: usize = 64 << 10;

/// The playground, unless it is switched off.
///
/// Extracted before a body is read: while it is switched off, no body is looked at.
pub(super) struct SwitchedOn(Playground);

impl<S> FromRequestParts<S> for SwitchedOn
where
    S: Sync,
    Option<Playground>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<SwitchedOn, Problem> {
        Option::from_ref(state).map(SwitchedOn).ok_or_else(Problem::no_playground)
    }
}

/// The session of a request.
pub(super) struct Player(Session);

impl<S: Sync> FromRequestParts<S> for Player {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Player, Infallible> {
        Ok(Player(Session::of(&parts.headers)))
    }
}

impl From<PlaygroundError> for Problem {
    fn from(error: PlaygroundError) -> Problem {
        match error {
            PlaygroundError::Invalid(detail) => Problem::bad_request(detail),
            PlaygroundError::Busy { retry_after } => Problem::too_many_play(retry_after),
            PlaygroundError::Limiter(error) => error.into(),
        }
    }
}

/// Sends one request to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = Option<RequestBody>),
    responses((status = 200, description = "What it decided.", body = AnswerJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn request(
    SwitchedOn(playground): SwitchedOn,
    path: Result<Path<String>, PathRejection>,
    Player(session): Player,
    OptionalJson(asked): OptionalJson<RequestBody, MAX_BYTES>,
) -> Result<Response, Problem> {
    let round = playground.request(in_path(path)?, asked, &session).await?;
    let body = written(&round.answers().next());
    Ok(told(&round, answer(&session, body.into())))
}

/// Sends several requests at once to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}/burst",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = Option<BurstBody>),
    responses((status = 200, description = "What it decided, in order.", body = Vec<AnswerJson>), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn burst(
    SwitchedOn(playground): SwitchedOn,
    State(budget): State<Budget>,
    path: Result<Path<String>, PathRejection>,
    Player(session): Player,
    OptionalJson(asked): OptionalJson<BurstBody, MAX_BYTES>,
) -> Result<Response, Problem> {
    let round = playground.burst(in_path(path)?, asked, &session).await?;
    let body = written(&round.answers().collect::<Vec<_>>());
    Ok(told(&round, answer(&session, budget.body_anyway(body))))
}

/// Forgets what the session has spent, of all algorithms
#[utoipa::path(
    post,
    path = "/api/rate-limit/reset",
    tag = "playground",
    responses((status = 200, description = "It has spent nothing.", body = ResetJson), StoreProblems, PlaygroundProblems),
)]
pub(super) async fn reset(
    SwitchedOn(playground): SwitchedOn,
    Player(session): Player,
) -> Result<Response, Problem> {
    let body = written(&playground.reset(&session).await?);
    Ok(answer(&session, body.into()))
}

/// How the session stands with every algorithm. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/state",
    tag = "playground",
    request_body(content = Option<StateBody>),
    responses((status = 200, description = "How it stands.", body = StateJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn state(
    SwitchedOn(playground): SwitchedOn,
    State(budget): State<Budget>,
    Player(session): Player,
    OptionalJson(asked): OptionalJson<StateBody, MAX_BYTES>,
) -> Result<Response, Problem> {
    let body = written(&playground.state(asked, &session).await?);
    Ok(answer(&session, budget.body(body)?))
}

/// What all algorithms make of the same traffic, at times of its own. Charges nothing
#[utoipa::path(
    post,
    path = "/api/rate-limit/compare",
    tag = "playground",
    request_body(content = Option<Traffic>),
    responses((status = 200, description = "What each of them made of it.", body = Vec<Comparison>), BodyProblems, PlaygroundProblems),
)]
pub(super) async fn compare(
    _: SwitchedOn,
    State(budget): State<Budget>,
    OptionalJson(traffic): OptionalJson<Traffic, MAX_TRAFFIC_BYTES>,
) -> Result<Response, Problem> {
    let body = written(&tollgate_playground::compare(traffic)?);
    Ok(json(budget.body(body)?))
}

fn in_path(path: Result<Path<String>, PathRejection>) -> Result<Algorithm, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    Algorithm::from_name(&name).ok_or_else(|| {
        let (name, names) = (shown(&name), Algorithm::ALL.map(Algorithm::name).join(", "));
        Problem::bad_request(format!("no algorithm is called `{name}`; use one of {names}"))
    })
}

fn written(answer: &impl Serialize) -> Vec<u8> {
    let mut body = Vec::new();
    append(&mut body, answer);
    body
}

/// An answer of JSON, with the cookie of a session that is new.
fn answer(session: &Session, body: Body) -> Response {
    let mut response = json(body);
    if let Some(cookie) = session.cookie(PATH) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    response
}

/// The headers that a client of such a limit would see.
fn told(round: &Round, mut response: Response) -> Response {
    if let Some((scope, decision)) = round.last() {
        let outcome = Outcome::of_limit(scope, decision, 1);
        HeaderFamilies::ALL.add_headers(&outcome, wall_us(), response.headers_mut());
    }
    response
}
