//! `/v1/limits/{name}/keys/{key}`: how a key stands, and to forget it.
//!
//! A key comes percent-encoded: `/v1/limits/free/keys/tenant%2F7` is about `tenant/7`. The empty one has a path of
//! its own, as no router takes nothing for a part of a path.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use hyper::StatusCode;
use serde::Deserialize;
use tollgate::Scope;
use utoipa::IntoParams;

use super::Problem;
use super::decision::DecisionJson;
use super::openapi::{OperatorProblems, PathProblems, StoreProblems};
use super::operator::Operator;
use super::problem::told;
use crate::served::Served;

/// What to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Look {
    /// What the request would cost.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64, default = 1, nullable = false)]
    cost: Option<u64>,
    /// Whether to list the charges that count, if the limit is a log.
    #[param(default = false, nullable = false)]
    entries: Option<bool>,
}

/// How a key stands: what a request would come to. Charges nothing
///
/// For operators. The key is percent-encoded: a slash in it is `%2F`. Instead of a limit's name there can be a rule's,
/// with its domain: `api%2Fper-client`, whose keys are as in `ip=203.0.113.9`.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/{key}",
    tag = "keys",
    params(
        ("name" = String, Path, description = "The limit's name.", example = "free"),
        ("key" = String, Path, description = "Who is limited.", example = "user:42"),
        Look,
    ),
    responses(
        (status = 200, description = "What a request would come to.", body = DecisionJson),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek(
    _: Operator,
    State(served): State<Arc<Served>>,
    path: Result<Path<(String, String)>, PathRejection>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<DecisionJson>, Problem> {
    let Path((name, key)) = path.map_err(|_| Problem::bad_path())?;
    look_at(&scope(&served, &name)?, &key, look).await
}

/// Forgets a key: it has spent nothing
///
/// For operators. It may spend all of its limit again. Receipts from before stay good for as long as they were:
/// once each, and for no more than was spent since.
#[utoipa::path(
    delete,
    path = "/v1/limits/{name}/keys/{key}",
    tag = "keys",
    params(
        ("name" = String, Path, description = "The limit's name.", example = "free"),
        ("key" = String, Path, description = "Who is limited.", example = "user:42"),
    ),
    responses(
        (status = 204, description = "It is forgotten."),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn reset(
    operator: Operator,
    State(served): State<Arc<Served>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let Path((name, key)) = path.map_err(|_| Problem::bad_path())?;
    forget(&scope(&served, &name)?, &key, operator).await
}

/// How the empty key stands: what a request would come to. Charges nothing
///
/// For operators.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The limit's name.", example = "free"), Look),
    responses(
        (status = 200, description = "What a request would come to.", body = DecisionJson),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek_empty(
    _: Operator,
    State(served): State<Arc<Served>>,
    path: Result<Path<String>, PathRejection>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<DecisionJson>, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    look_at(&scope(&served, &name)?, "", look).await
}

/// Forgets the empty key: it has spent nothing
///
/// For operators. It may spend all of its limit again. Receipts from before stay good for as long as they were:
/// once each, and for no more than was spent since.
#[utoipa::path(
    delete,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The limit's name.", example = "free")),
    responses(
        (status = 204, description = "It is forgotten."),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn reset_empty(
    operator: Operator,
    State(served): State<Arc<Served>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    forget(&scope(&served, &name)?, "", operator).await
}

fn scope(served: &Served, name: &str) -> Result<Scope, Problem> {
    served.rules.scope(name).ok_or_else(|| Problem::unknown_limit(name))
}

/// Forgives what a key has spent, and says so: somebody may ask who it was. The key may be a secret.
async fn forget(scope: &Scope, key: &str, operator: Operator) -> Result<StatusCode, Problem> {
    scope.reset(key).await?;
    let (limit, peer) = (scope.name(), operator.peer());
    tracing::info!(limit, peer, "an operator reset a key");
    Ok(StatusCode::NO_CONTENT)
}

async fn look_at(
    scope: &Scope,
    key: &str,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<DecisionJson>, Problem> {
    let Query(look) = look.map_err(|error| {
        let problem = error.body_text();
        let problem = problem.split_once(": ").map_or(&*problem, |(_, problem)| problem);
        let detail = format!("{}; use such as ?cost=1&entries=true", told(problem));
        Problem::bad_request(detail)
    })?;
    let decision = scope.peek(key).cost(look.cost.unwrap_or(1)).await?;
    let answer = DecisionJson::from(&decision);
    Ok(Json(match look.entries {
        Some(true) => answer.with_entries(&scope.entries(key).await?),
        _ => answer,
    }))
}
