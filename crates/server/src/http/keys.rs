//! `/v1/limits/{name}/keys/{key}`: shows the state of a key, and resets it.
//!
//! The key is percent-encoded: `/v1/limits/free/keys/tenant%2F7` is the key `tenant/7`. The empty key has a route of
//! its own, because the router does not match an empty part of a path.

use std::future::IntoFuture;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::rules::{RuleInfo, Rules};
use tollgate::{Decision, OnFailure, Scope};
use utoipa::{IntoParams, ToSchema};

use super::ApiProblem;
use super::decision::DecisionJson;
use super::openapi::{OperatorProblems, PathProblems, StoreProblems};
use super::operator::Operator;
use super::problem::message_excerpt;
use crate::logs::ShownKey;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;

const NO_STATE: &str = "the rule spends no limit, so its keys have no state to reset";

const NOT_SPENT: &str = "limit: no request with this key spends this limit; leave `limit` out to see the limits that \
                         requests with this key may spend";

/// The most limits in one answer about a rule's key.
const MAX_LIMITS: usize = 64;

/// The query of a peek.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyQuery {
    /// The cost of the request.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64, default = 1, nullable = false)]
    cost: Option<u64>,
    /// Whether to list the charges that count, if the limit is a sliding window log. If a rule's key may spend several
    /// limits, `limit` must choose one.
    #[param(default = false, nullable = false)]
    entries: Option<bool>,
    /// Shows a rule's key only under the limit of this name. The name may also be `allow` or `block`.
    #[param(nullable = false, example = "free")]
    limit: Option<String>,
}

/// The state of a rule's key, under every limit that the rule may spend for it.
///
/// A key with an override has one limit. Other keys have the default and the limit of each tier, because the tier is an
/// attribute of each request. Spent units count under all of these limits.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleKey)]
pub(super) struct RuleKeyJson {
    /// The rule, with its domain.
    #[schema(example = "api/per-client")]
    rule: String,
    /// The limit under which this server last refused the key; `block` if a rule blocked it; null if the key is not one
    /// of the most refused keys.
    #[schema(required, example = "free")]
    last_refused_under: Option<String>,
    limits: Vec<KeyUnderJson>,
}

/// The state of a key under one limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyUnder)]
struct KeyUnderJson {
    /// The limit's name, `allow` or `block`.
    #[schema(example = "free")]
    limit_name: String,
    /// Whether requests without a tier of the rule spend it.
    default: bool,
    /// The tiers whose requests spend it.
    tiers: Vec<String>,
    /// Whether an override for this key chooses this limit.
    r#override: bool,
    /// The decision that a request would get, without a charge; null for `allow` and `block`.
    #[schema(required)]
    decision: Option<DecisionJson>,
}

/// The state of a key under a limit, or under all limits of a rule.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum KeyAnswer {
    Limit(DecisionJson),
    Rule(RuleKeyJson),
}

/// The decision that a request with this key would get. Charges nothing
///
/// For operators. The key is percent-encoded: a slash in it is `%2F`. The name is a limit's, or a rule's with its
/// domain: `api%2Fper-client`. A rule's keys look like `ip=203.0.113.9`. A rule's key is shown under every limit
/// that the rule may spend for it.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/{key}",
    tag = "keys",
    params(
        ("name" = String, Path, description = "The name of a limit or a rule.", example = "free"),
        ("key" = String, Path, description = "The key.", example = "user:42"),
        KeyQuery,
    ),
    responses(
        (status = 200, description = "The decision that a request would get.", body = KeyAnswer),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(refused): State<Arc<Refusals>>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Result<Query<KeyQuery>, QueryRejection>,
) -> Result<Json<KeyAnswer>, ApiProblem> {
    let Path((name, key)) = path.map_err(|_| ApiProblem::bad_path())?;
    peek_key(rules.rules(), &refused, &name, &key, query).await
}

/// Resets a key, which has then spent nothing
///
/// For operators. The key may spend its whole limit again. A receipt from before the reset still works once, for
/// as long as it would work without the reset. It refunds at most what was spent since the reset.
#[utoipa::path(
    delete,
    path = "/v1/limits/{name}/keys/{key}",
    tag = "keys",
    params(
        ("name" = String, Path, description = "The name of a limit or a rule.", example = "free"),
        ("key" = String, Path, description = "The key.", example = "user:42"),
    ),
    responses(
        (status = 204, description = "The key is reset."),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn reset(
    operator: Operator,
    State(rules): State<Arc<RuleSet>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, ApiProblem> {
    let Path((name, key)) = path.map_err(|_| ApiProblem::bad_path())?;
    reset_key(&reset_scope(rules.rules(), &name, &key)?, &key, operator).await
}

/// The decision that a request with the empty key would get. Charges nothing
///
/// For operators.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The name of a limit or a rule.", example = "free"), KeyQuery),
    responses(
        (status = 200, description = "The decision that a request would get.", body = KeyAnswer),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek_empty(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(refused): State<Arc<Refusals>>,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<KeyQuery>, QueryRejection>,
) -> Result<Json<KeyAnswer>, ApiProblem> {
    let Path(name) = path.map_err(|_| ApiProblem::bad_path())?;
    peek_key(rules.rules(), &refused, &name, "", query).await
}

/// Resets the empty key, which has then spent nothing
///
/// For operators. The key may spend its whole limit again. A receipt from before the reset still works once, for
/// as long as it would work without the reset. It refunds at most what was spent since the reset.
#[utoipa::path(
    delete,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The name of a limit or a rule.", example = "free")),
    responses(
        (status = 204, description = "The key is reset."),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn reset_empty(
    operator: Operator,
    State(rules): State<Arc<RuleSet>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiProblem> {
    let Path(name) = path.map_err(|_| ApiProblem::bad_path())?;
    reset_key(&reset_scope(rules.rules(), &name, "")?, "", operator).await
}

/// Returns the scope in which a key is reset. A rule's key has one state under all of its limits.
fn reset_scope(rules: &Rules, name: &str, key: &str) -> Result<Scope, ApiProblem> {
    if let (None, Some(rule)) = (rules.limit(name), rules.rule(name)) {
        check_form(&rule, key)?;
    }
    rules.scope(name).ok_or_else(|| match rules.rule(name) {
        Some(_) => ApiProblem::new(StatusCode::NOT_FOUND, NO_STATE),
        None => ApiProblem::unknown_limit(name),
    })
}

/// Refuses a key that no request can have under the rule. A peek would show its whole quota, and a reset would change
/// nothing.
fn check_form(rule: &RuleInfo, key: &str) -> Result<(), ApiProblem> {
    if rule.is_key(key.as_bytes()) {
        return Ok(());
    }
    Err(ApiProblem::bad_request(match &*rule.key_form() {
        "" => "key: the rule has one key for all requests; use the empty key".to_owned(),
        form => {
            format!("key: no request has such a key under this rule; use {}", message_excerpt(form))
        }
    }))
}

/// Resets a key, and logs which one.
async fn reset_key(scope: &Scope, key: &str, operator: Operator) -> Result<StatusCode, ApiProblem> {
    scope.reset(key).await?;
    let (limit, peer) = (scope.name(), operator.peer());
    let key = ShownKey(key.as_bytes()).to_string();
    tracing::info!(limit, key, peer, "an operator reset a key");
    Ok(StatusCode::NO_CONTENT)
}

/// Peeks at a key under a limit, or under the limits of a rule.
async fn peek_key(
    rules: &Rules,
    refused: &Refusals,
    name: &str,
    key: &str,
    query: Result<Query<KeyQuery>, QueryRejection>,
) -> Result<Json<KeyAnswer>, ApiProblem> {
    let Query(query) = query.map_err(|error| {
        let problem = error.body_text();
        let problem = problem.split_once(": ").map_or(&*problem, |(_, problem)| problem);
        let detail =
            format!("{}; use a query such as ?cost=1&entries=true", message_excerpt(problem));
        ApiProblem::bad_request(detail)
    })?;
    let scope = match (rules.limit(name), rules.rule(name)) {
        (Some(scope), _) => scope,
        (None, Some(rule)) => {
            return Ok(Json(KeyAnswer::Rule(peek_rule_key(refused, &rule, key, &query).await?)));
        }
        (None, None) => return Err(ApiProblem::unknown_limit(name)),
    };
    if query.limit.as_deref().is_some_and(|chosen| chosen != name) {
        return Err(ApiProblem::new(StatusCode::NOT_FOUND, NOT_SPENT));
    }
    let scope = scope.on_failure(OnFailure::Closed);
    let decision = scope.peek(key).cost(query.cost.unwrap_or(1)).await?;
    Ok(Json(KeyAnswer::Limit(with_entries(&scope, key, &query, &decision).await?)))
}

/// Peeks at a key under every limit that the rule may spend for it, or under the one that the query chooses.
async fn peek_rule_key(
    refused: &Refusals,
    rule: &RuleInfo,
    key: &str,
    query: &KeyQuery,
) -> Result<RuleKeyJson, ApiProblem> {
    check_form(rule, key)?;
    let mut limits = rule.limits_of(key.as_bytes());
    // With the failure policy `closed`, because a decision without the store would show an unspent quota.
    for own in &mut limits {
        own.scope = own.scope.take().map(|scope| scope.on_failure(OnFailure::Closed));
    }
    let is_override = rule.has_override(key.as_bytes());
    if let Some(chosen) = &query.limit {
        limits.retain(|own| own.spends.name() == chosen);
    }
    let count = limits.len();
    if count == 0 {
        return Err(ApiProblem::new(StatusCode::NOT_FOUND, NOT_SPENT));
    }
    if count > MAX_LIMITS || (count > 1 && query.entries == Some(true)) {
        let detail =
            format!("the rule may spend {count} limits for this key; choose one: ?limit=NAME");
        return Err(ApiProblem::bad_request(detail));
    }
    // Send all peeks before waiting for the first.
    let cost = query.cost.unwrap_or(1);
    let peeks: Vec<_> = limits
        .iter()
        .map(|own| own.scope.as_ref().map(|scope| scope.peek(key).cost(cost).into_future()))
        .collect();
    let mut states = Vec::with_capacity(count);
    for (own, peek) in limits.into_iter().zip(peeks) {
        let decision = match (&own.scope, peek) {
            (Some(scope), Some(peek)) => Some(with_entries(scope, key, query, &peek.await?).await?),
            _ => None,
        };
        let (limit_name, r#override) = (own.spends.name().to_owned(), is_override);
        let (default, tiers) = (own.is_default, own.tiers);
        states.push(KeyUnderJson { limit_name, default, tiers, r#override, decision });
    }
    let last_refused_under = refused.last_limit(rule.name(), key.as_bytes());
    Ok(RuleKeyJson {
        rule: rule.name().to_string(),
        last_refused_under: last_refused_under.map(String::from),
        limits: states,
    })
}

/// Writes a decision, with the entries of the log if the query asks for them.
async fn with_entries(
    scope: &Scope,
    key: &str,
    query: &KeyQuery,
    decision: &Decision,
) -> Result<DecisionJson, ApiProblem> {
    let answer = DecisionJson::from(decision);
    Ok(match query.entries {
        Some(true) => answer.with_entries(&scope.entries(key).await?),
        _ => answer,
    })
}
