//! `GET /v1/limits`: what limits there are.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use tollgate::Limit;
use utoipa::ToSchema;

use super::Problem;
use super::check::{append, json};
use super::openapi::PathProblems;
use crate::served::Served;

/// The limits that can be asked for by their names.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Limits)]
pub(super) struct LimitsJson {
    /// In alphabetical order of their names.
    limits: Vec<LimitJson>,
}

/// A limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Limit)]
pub(super) struct LimitJson {
    /// The name.
    #[schema(example = "free")]
    name: String,
    /// The algorithm with its numbers.
    #[schema(example = "token-bucket capacity=60 refill=1/s")]
    limit: String,
    /// The algorithm.
    #[schema(example = "token-bucket")]
    algorithm: &'static str,
    bound: BoundJson,
}

/// The most that a key is admitted over one window, or over the time that a spent bucket takes to be whole again.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bound)]
struct BoundJson {
    /// How long that is.
    #[schema(example = 60_000_000)]
    interval_us: u64,
    /// The most units, if the store loses nothing; each loss adds one full burst at most.
    #[schema(example = 119)]
    max: u64,
    /// How that comes about, with t the interval in microseconds.
    #[schema(example = "capacity + floor(rate * (t - 1))")]
    formula: &'static str,
}

impl LimitJson {
    fn new(name: &str, limit: &Limit) -> LimitJson {
        let tollgate_core::Bound { interval_us, max_units, formula } = limit.bound();
        let bound = BoundJson { interval_us, max: max_units, formula };
        let (name, algorithm) = (name.to_owned(), limit.name().as_str());
        LimitJson { name, limit: limit.to_string(), algorithm, bound }
    }
}

/// Every limit that can be asked for by its name
#[utoipa::path(
    get,
    path = "/v1/limits",
    tag = "limits",
    responses((status = 200, description = "The limits.", body = LimitsJson)),
)]
pub(super) async fn limits(State(served): State<Arc<Served>>) -> Result<Response, Problem> {
    let each = served.limits().into_iter();
    let limits = each.map(|(name, named)| LimitJson::new(&name, named.scope.limit()));
    let mut answer = Vec::new();
    append(&mut answer, &LimitsJson { limits: limits.collect() });
    Ok(json(served.page_budget.body(answer)?))
}

/// A limit, and the most that it admits
#[utoipa::path(
    get,
    path = "/v1/limits/{name}",
    tag = "limits",
    params(("name" = String, Path, description = "The limit's name.", example = "free")),
    responses((status = 200, description = "The limit.", body = LimitJson), PathProblems),
)]
pub(super) async fn limit(
    State(served): State<Arc<Served>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<LimitJson>, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    let named = served.limit(&name).ok_or_else(|| Problem::unknown_limit(&name))?;
    Ok(Json(LimitJson::new(&name, named.scope.limit())))
}
