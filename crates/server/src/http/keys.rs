//! `/v1/limits/{name}/keys/{key}`: how a key stands, and to forget it.
//!
//! A key comes percent-encoded: `/v1/limits/free/keys/tenant%2F7` is about `tenant/7`. The empty one has a path of
//! its own, as no router takes nothing for a part of a path.

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

use super::Problem;
use super::decision::DecisionJson;
use super::openapi::{OperatorProblems, PathProblems, StoreProblems};
use super::operator::Operator;
use super::problem::told;
use crate::logs::ShownKey;
use crate::refused::Refused;
use crate::ruleset::RuleSet;

const NO_STATE: &str = "the rule spends no limit: its keys have no state to reset";

const NOT_SPENT: &str =
    "limit: no request with this key spends it; leave it out to see the limits that one may spend";

/// The most limits under which a key of a rule is shown at once.
const MAX_LIMITS: usize = 64;

/// What to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Look {
    /// What the request would cost.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991_u64, default = 1, nullable = false)]
    cost: Option<u64>,
    /// Whether to list the charges that count, if the limit is a log. If a rule's key may spend several limits, `limit`
    /// must choose one.
    #[param(default = false, nullable = false)]
    entries: Option<bool>,
    /// Shows a rule's key under the limit of this name only; also `allow` or `block`.
    #[param(nullable = false, example = "free")]
    limit: Option<String>,
}

/// How a key of a rule stands, under every limit that the rule may spend for it.
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
    /// The limit under which this server last refused the key, `block` if it was blocked; null if the key is not one of
    /// the most refused keys.
    #[schema(required, example = "free")]
    last_refused_under: Option<String>,
    limits: Vec<KeyUnderJson>,
}

/// How a key stands under one limit.
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
    /// Whether an override for this key says so.
    r#override: bool,
    /// The decision about a request, which is not charged; null for `allow` and `block`.
    #[schema(required)]
    decision: Option<DecisionJson>,
}

/// How a key stands: under a limit, or by a rule.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum KeyAnswer {
    Limit(DecisionJson),
    Rule(RuleKeyJson),
}

/// How a key stands: what a request would come to. Charges nothing
///
/// For operators. The key is percent-encoded: a slash in it is `%2F`. Instead of a limit's name there can be a rule's,
/// with its domain: `api%2Fper-client`, whose keys are as in `ip=203.0.113.9`. A rule's key is shown under every limit
/// that the rule may spend for it.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/{key}",
    tag = "keys",
    params(
        ("name" = String, Path, description = "The name of a limit or a rule.", example = "free"),
        ("key" = String, Path, description = "Who is limited.", example = "user:42"),
        Look,
    ),
    responses(
        (status = 200, description = "What a request would come to.", body = KeyAnswer),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(refused): State<Arc<Refused>>,
    path: Result<Path<(String, String)>, PathRejection>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<KeyAnswer>, Problem> {
    let Path((name, key)) = path.map_err(|_| Problem::bad_path())?;
    look_at(rules.rules(), &refused, &name, &key, look).await
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
        ("name" = String, Path, description = "The name of a limit or a rule.", example = "free"),
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
    State(rules): State<Arc<RuleSet>>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let Path((name, key)) = path.map_err(|_| Problem::bad_path())?;
    forget(&scope(rules.rules(), &name, &key)?, &key, operator).await
}

/// How the empty key stands: what a request would come to. Charges nothing
///
/// For operators.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The name of a limit or a rule.", example = "free"), Look),
    responses(
        (status = 200, description = "What a request would come to.", body = KeyAnswer),
        PathProblems,
        OperatorProblems,
        StoreProblems,
    ),
    security(("operator" = [])),
)]
pub(super) async fn peek_empty(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(refused): State<Arc<Refused>>,
    path: Result<Path<String>, PathRejection>,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<KeyAnswer>, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    look_at(rules.rules(), &refused, &name, "", look).await
}

/// Forgets the empty key: it has spent nothing
///
/// For operators. It may spend all of its limit again. Receipts from before stay good for as long as they were:
/// once each, and for no more than was spent since.
#[utoipa::path(
    delete,
    path = "/v1/limits/{name}/keys/",
    tag = "keys",
    params(("name" = String, Path, description = "The name of a limit or a rule.", example = "free")),
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
    State(rules): State<Arc<RuleSet>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let Path(name) = path.map_err(|_| Problem::bad_path())?;
    forget(&scope(rules.rules(), &name, "")?, "", operator).await
}

/// Where a key is reset. A rule's key has one state under all of its limits.
fn scope(rules: &Rules, name: &str, key: &str) -> Result<Scope, Problem> {
    if let (None, Some(rule)) = (rules.limit(name), rules.rule(name)) {
        check_form(&rule, key)?;
    }
    rules.scope(name).ok_or_else(|| match rules.rule(name) {
        Some(_) => Problem::new(StatusCode::NOT_FOUND, NO_STATE),
        None => Problem::unknown_limit(name),
    })
}

/// Refuses a key that no request can have under the rule: it would be shown with its whole quota, or be reset in vain.
fn check_form(rule: &RuleInfo, key: &str) -> Result<(), Problem> {
    if rule.is_key(key.as_bytes()) {
        return Ok(());
    }
    Err(Problem::bad_request(match &*rule.key_form() {
        "" => "key: the rule has one key for all requests; use the empty key".to_owned(),
        form => format!("key: no request has such a key under this rule; use {}", told(form)),
    }))
}

/// Forgives what a key has spent, and logs whose.
async fn forget(scope: &Scope, key: &str, operator: Operator) -> Result<StatusCode, Problem> {
    scope.reset(key).await?;
    let (limit, peer) = (scope.name(), operator.peer());
    let key = ShownKey(key.as_bytes()).to_string();
    tracing::info!(limit, key, peer, "an operator reset a key");
    Ok(StatusCode::NO_CONTENT)
}

async fn look_at(
    rules: &Rules,
    refused: &Refused,
    name: &str,
    key: &str,
    look: Result<Query<Look>, QueryRejection>,
) -> Result<Json<KeyAnswer>, Problem> {
    let Query(look) = look.map_err(|error| {
        let problem = error.body_text();
        let problem = problem.split_once(": ").map_or(&*problem, |(_, problem)| problem);
        let detail = format!("{}; use such as ?cost=1&entries=true", told(problem));
        Problem::bad_request(detail)
    })?;
    let scope = match (rules.limit(name), rules.rule(name)) {
        (Some(scope), _) => scope,
        (None, Some(rule)) => {
            return Ok(Json(KeyAnswer::Rule(under_rule(refused, &rule, key, &look).await?)));
        }
        (None, None) => return Err(Problem::unknown_limit(name)),
    };
    if look.limit.as_deref().is_some_and(|chosen| chosen != name) {
        return Err(Problem::new(StatusCode::NOT_FOUND, NOT_SPENT));
    }
    let scope = scope.on_failure(OnFailure::Closed);
    let decision = scope.peek(key).cost(look.cost.unwrap_or(1)).await?;
    Ok(Json(KeyAnswer::Limit(with_entries(&scope, key, &look, &decision).await?)))
}

/// Looks at a key under every limit that the rule may spend for it, or under the one that is chosen.
async fn under_rule(
    refused: &Refused,
    rule: &RuleInfo,
    key: &str,
    look: &Look,
) -> Result<RuleKeyJson, Problem> {
    check_form(rule, key)?;
    let mut limits = rule.limits_of(key.as_bytes());
    // An answer that was made without the store would show an untouched quota.
    for own in &mut limits {
        own.scope = own.scope.take().map(|scope| scope.on_failure(OnFailure::Closed));
    }
    let is_override = rule.has_override(key.as_bytes());
    if let Some(chosen) = &look.limit {
        limits.retain(|own| own.spends.name() == chosen);
    }
    let count = limits.len();
    if count == 0 {
        return Err(Problem::new(StatusCode::NOT_FOUND, NOT_SPENT));
    }
    if count > MAX_LIMITS || (count > 1 && look.entries == Some(true)) {
        let detail =
            format!("the rule may spend {count} limits for this key; choose one: ?limit=NAME");
        return Err(Problem::bad_request(detail));
    }
    // All are on their way before the first is waited for.
    let cost = look.cost.unwrap_or(1);
    let peeks: Vec<_> = limits
        .iter()
        .map(|own| own.scope.as_ref().map(|scope| scope.peek(key).cost(cost).into_future()))
        .collect();
    let mut shown = Vec::with_capacity(count);
    for (own, peek) in limits.into_iter().zip(peeks) {
        let decision = match (&own.scope, peek) {
            (Some(scope), Some(peek)) => Some(with_entries(scope, key, look, &peek.await?).await?),
            _ => None,
        };
        let (limit_name, r#override) = (own.spends.name().to_owned(), is_override);
        let (default, tiers) = (own.is_default, own.tiers);
        shown.push(KeyUnderJson { limit_name, default, tiers, r#override, decision });
    }
    let last_refused_under = refused.last_limit(rule.name(), key.as_bytes());
    Ok(RuleKeyJson {
        rule: rule.name().to_string(),
        last_refused_under: last_refused_under.map(String::from),
        limits: shown,
    })
}

async fn with_entries(
    scope: &Scope,
    key: &str,
    look: &Look,
    decision: &Decision,
) -> Result<DecisionJson, Problem> {
    let answer = DecisionJson::from(decision);
    Ok(match look.entries {
        Some(true) => answer.with_entries(&scope.entries(key).await?),
        _ => answer,
    })
}
