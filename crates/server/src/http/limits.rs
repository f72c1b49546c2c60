//! `GET /v1/limits`: the limits, and the most that each admits.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Serialize;
use tollgate::rules::{RuleInfo, RuleLimit};
use tollgate::{LeaseOptions, Limit, Scope};
use utoipa::ToSchema;

use super::ApiProblem;
use super::api::PageBudget;
use super::check::json;
use super::json_object::append;
use super::openapi::PathProblems;
use crate::lease_bounds::LeaseBounds;
use crate::ruleset::RuleSet;

/// The limits that checks can name.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Limits)]
pub(super) struct LimitsJson {
    /// The limits, in alphabetical order of their names.
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
    /// How the limit is leased; absent if the store decides each check.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lease: Option<LeaseBounds>,
}

/// The most that a key is admitted over one window, or over the time in which a spent bucket recovers completely. For a
/// concurrency limit this is the most units that are held at any instant.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Bound)]
struct BoundJson {
    /// The length of that interval. For a concurrency limit this is the time that a unit is held by default.
    #[schema(example = 60_000_000)]
    interval_us: u64,
    /// The most units, if the store loses no state. Each loss of state adds at most one full burst.
    #[schema(example = 119)]
    max: u64,
    /// The formula of `max`. In it, t is the interval in microseconds.
    #[schema(example = "capacity + floor(rate * (t - 1))")]
    formula: &'static str,
}

/// A rule, with all limits that it may spend.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleLimits)]
pub(super) struct RuleLimitsJson {
    /// The rule, with its domain.
    #[schema(example = "api/per-client")]
    rule: String,
    /// Whether this is a shadow rule, which refuses nothing.
    shadow: bool,
    /// The limits that the rule may spend, the default first.
    limits: Vec<RuleLimitJson>,
}

/// A limit that a rule may spend, and the requests that spend it. `allow` and `block` have no numbers.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RuleLimit)]
pub(super) struct RuleLimitJson {
    /// The limit's name, `allow` or `block`.
    #[schema(example = "free")]
    limit_name: String,
    /// Whether requests without a tier of the rule spend it.
    default: bool,
    /// The tiers that spend it.
    tiers: Vec<String>,
    /// The number of overrides that choose it.
    overrides: usize,
    /// The algorithm with its numbers.
    #[schema(required, example = "token-bucket capacity=60 refill=1/s")]
    limit: Option<String>,
    /// The algorithm.
    #[schema(required, example = "token-bucket")]
    algorithm: Option<&'static str>,
    #[schema(required)]
    bound: Option<BoundJson>,
    /// How the limit is leased; absent if the store decides each check.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lease: Option<LeaseBounds>,
}

/// A limit, or a rule with the limits that it may spend.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum LimitAnswer {
    Limit(LimitJson),
    Rule(RuleLimitsJson),
}

impl From<&Limit> for BoundJson {
    fn from(limit: &Limit) -> BoundJson {
        let tollgate_core::Bound { interval_us, max_units, formula } = limit.bound();
        BoundJson { interval_us, max: max_units, formula }
    }
}

impl From<&RuleInfo> for RuleLimitsJson {
    fn from(rule: &RuleInfo) -> RuleLimitsJson {
        RuleLimitsJson {
            rule: rule.name().to_string(),
            shadow: rule.is_shadow(),
            limits: rule.limits().into_iter().map(RuleLimitJson::from).collect(),
        }
    }
}

impl From<RuleLimit> for RuleLimitJson {
    fn from(own: RuleLimit) -> RuleLimitJson {
        let limit = own.scope.as_ref().map(Scope::limit);
        RuleLimitJson {
            limit_name: own.spends.name().to_owned(),
            default: own.is_default,
            overrides: own.overrides,
            limit: limit.map(ToString::to_string),
            algorithm: limit.map(|limit| limit.name().as_str()),
            bound: limit.map(BoundJson::from),
            lease: own.scope.as_ref().and_then(|scope| lease_bounds(scope, own.lease)),
            tiers: own.tiers,
        }
    }
}

impl LimitJson {
    fn new(name: &str, rules: &RuleSet, scope: &Scope) -> LimitJson {
        let limit = scope.limit();
        let bound = BoundJson::from(limit);
        let lease = lease_bounds(scope, rules.rules().lease_of(name));
        let (name, algorithm) = (name.to_owned(), limit.name().as_str());
        LimitJson { name, limit: limit.to_string(), algorithm, bound, lease }
    }
}

/// Returns how a limit is leased; `None` in strict mode, and on a store without leases.
fn lease_bounds(scope: &Scope, options: Option<LeaseOptions>) -> Option<LeaseBounds> {
    LeaseBounds::of(options.filter(|_| scope.is_leased())?, scope.limit())
}

/// The limits that checks can name
#[utoipa::path(
    get,
    path = "/v1/limits",
    tag = "limits",
    responses((status = 200, description = "The limits.", body = LimitsJson)),
)]
pub(super) async fn limits(
    State(rules): State<Arc<RuleSet>>,
    State(PageBudget(budget)): State<PageBudget>,
) -> Result<Response, ApiProblem> {
    let each = rules.limits().into_iter();
    let limits = each.map(|(name, named)| LimitJson::new(&name, &rules, &named.scope));
    let mut answer = Vec::new();
    append(&mut answer, &LimitsJson { limits: limits.collect() });
    Ok(json(budget.body(answer)?))
}

/// A limit, and the most that it admits; or a rule, with all limits that it may spend
///
/// The name of a rule includes its domain: `api%2Fper-client`.
#[utoipa::path(
    get,
    path = "/v1/limits/{name}",
    tag = "limits",
    params(("name" = String, Path, description = "The name of a limit or a rule.", example = "free")),
    responses((status = 200, description = "The limit or the rule.", body = LimitAnswer), PathProblems),
)]
pub(super) async fn limit(
    State(rules): State<Arc<RuleSet>>,
    State(PageBudget(budget)): State<PageBudget>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiProblem> {
    let Path(name) = path.map_err(|_| ApiProblem::bad_path())?;
    let answer = match (rules.limit(&name), rules.rules().rule(&name)) {
        (Some(named), _) => LimitAnswer::Limit(LimitJson::new(&name, &rules, &named.scope)),
        (None, Some(rule)) => LimitAnswer::Rule(RuleLimitsJson::from(&rule)),
        (None, None) => return Err(ApiProblem::unknown_limit(&name)),
    };
    let mut body = Vec::new();
    append(&mut body, &answer);
    Ok(json(budget.body(body)?))
}
