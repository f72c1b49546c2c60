//! `GET /v1/operations`: the state of the server and the counts of its rules, for operators.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use serde::Serialize;
use tollgate::rules::{Counts, RuleAction, RuleLimit};
use tollgate::{BreakerState, LeaseCounters, Scope};
use utoipa::ToSchema;

use super::ApiProblem;
use super::api::PageBudget;
use super::check::json;
use super::health::ReadinessJson;
use super::json_object::append;
use super::openapi::{OperatorProblems, StoreProblems};
use super::operator::Operator;
use crate::readiness::Readiness;
use crate::refusals::{RefusalCount, Refusals};
use crate::ruleset::RuleSet;

/// The most refused keys in an answer.
const MAX_REFUSED_KEYS: usize = 20;

/// The state of the server and the counts of its rules.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Operations)]
pub(super) struct OperationsJson {
    /// `memory` or `redis`.
    #[schema(example = "memory")]
    store: &'static str,
    /// The same as from `/readyz`.
    readiness: ReadinessJson,
    /// The servers of the store; empty if it is in memory.
    servers: Vec<ServerJson>,
    /// The counters of this server's leases since it started; absent if no rule and no limit is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    leases: Option<LeasesJson>,
    /// The rules, in the order of the rules file.
    rules: Vec<DeciderJson>,
    /// The limits that checks can name, in alphabetical order.
    limits: Vec<DeciderJson>,
    /// The keys with the most recent refusals, the most refused first.
    refused: Vec<RefusedKeyJson>,
}

/// A server of the store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StoreServer)]
struct ServerJson {
    /// Its address.
    server: String,
    /// `closed`: requests are sent to it; `open`: none are; `half_open`: one batch probes it.
    breaker: &'static str,
    /// The work that waits to be sent to it: 1 for each charge, and more for requests on logs of more than 64 units.
    waiting: usize,
}

/// The counters of this server's leases since it started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Leases)]
struct LeasesJson {
    /// The leases that are open now.
    held: u64,
    /// Units that the store set aside.
    leased_units: u64,
    /// Units that checks spent, also if they were refunded later.
    used_units: u64,
    /// Units that were given back unused.
    returned_units: u64,
    /// Unused units of leases that ended by their time, which the store has charged.
    expired_units: u64,
    /// Checks that were admitted with leased units.
    hits: u64,
    /// Checks that were refused because the lease was empty and the store had answered just before.
    refusals: u64,
    /// Calls of the store that were saved: hits and refusals, less calls in the background.
    calls_saved: u64,
}

/// A rule or a limit, and the counts of its decisions since the server started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decider)]
struct DeciderJson {
    /// `api/per-client`, or the limit's name.
    name: String,
    /// The limits that it may spend; the default of a rule comes first.
    limits: Vec<SpendableLimitJson>,
    allowed: u64,
    denied: u64,
    /// Requests that a shadow rule would have refused.
    shadow_denied: u64,
    /// How many of the allowed, denied and shadow-denied requests were decided without the store.
    degraded: u64,
    /// Requests that failed with an error.
    failed: u64,
}

/// A limit that a rule may spend, or a limit by itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SpentLimit)]
struct SpendableLimitJson {
    /// The limit's name, `allow` or `block`.
    #[schema(example = "free")]
    limit_name: String,
    /// The algorithm with its numbers; null for `allow` and `block`.
    #[schema(required, example = "token-bucket capacity=60 refill=1/s")]
    limit: Option<String>,
    /// Whether this server leases the keys of the limit.
    #[serde(skip_serializing_if = "is_false")]
    leased: bool,
}

/// A key that was refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Refused)]
struct RefusedKeyJson {
    /// The rule or limit that refuses the key.
    by: String,
    /// The limit that refused the key last, or `block`. For a rule with tiers, this is the limit of the client's tier.
    limit_name: String,
    /// The key. Bytes that are not UTF-8 are replaced.
    key: String,
    /// Whether `key` is complete, so that it can be looked up.
    whole: bool,
    /// An upper bound of the recent refusals. Counts are halved every minute.
    times: u64,
    /// The most by which `times` may be too high.
    excess: u64,
}

/// The state of the server and the counts of its rules
///
/// For operators.
#[utoipa::path(
    get,
    path = "/v1/operations",
    tag = "operations",
    responses((status = 200, description = "The state and the counts.", body = OperationsJson), OperatorProblems, StoreProblems),
    security(("operator" = [])),
)]
pub(super) async fn operations(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(readiness): State<Arc<Readiness>>,
    State(most_refused): State<Arc<Refusals>>,
    State(PageBudget(budget)): State<PageBudget>,
) -> Result<Response, ApiProblem> {
    let health = rules.limiter().health();
    let servers = health.into_iter().flat_map(|health| health.servers).map(|own| ServerJson {
        server: own.server,
        breaker: match own.breaker {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        },
        waiting: own.waiting,
    });
    let each_rule = rules.rules().rules().into_iter().map(|rule| {
        let limits = rule.limits().iter().map(SpendableLimitJson::from).collect();
        decider(rule.name().to_string(), limits, rule.counts())
    });
    let limits = rules.limits().into_iter().map(|(name, named)| {
        let (name, limit) = (String::from(name), Some(named.scope.limit().to_string()));
        let leased = named.scope.is_leased();
        let limits = vec![SpendableLimitJson { limit_name: name.clone(), limit, leased }];
        decider(name, limits, named.tally.counts())
    });
    let (each_rule, limits): (Vec<_>, Vec<_>) = (each_rule.collect(), limits.collect());
    let is_leased = |decider: &DeciderJson| decider.limits.iter().any(|limit| limit.leased);
    let has_leases = each_rule.iter().chain(&limits).any(is_leased);
    let mut body = Vec::new();
    append(
        &mut body,
        &OperationsJson {
            store: readiness.store().kind().name(),
            readiness: ReadinessJson::of(&readiness, &rules).await,
            servers: servers.collect(),
            leases: has_leases.then(|| LeasesJson::from(rules.limiter().lease_counters())),
            rules: each_rule,
            limits,
            refused: most_refused.most(MAX_REFUSED_KEYS).into_iter().map(refused_key).collect(),
        },
    );
    let mut response = json(budget.body(body)?);
    // The answer has keys, which may be secrets.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

// Serde passes references.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
}

impl From<&RuleLimit> for SpendableLimitJson {
    fn from(own: &RuleLimit) -> SpendableLimitJson {
        let limit = match &own.spends {
            RuleAction::Limit { limit, .. } => Some(limit.to_string()),
            _ => None,
        };
        let leased = own.scope.as_ref().is_some_and(Scope::is_leased);
        SpendableLimitJson { limit_name: own.spends.name().to_owned(), limit, leased }
    }
}

impl From<LeaseCounters> for LeasesJson {
    fn from(counters: LeaseCounters) -> LeasesJson {
        LeasesJson {
            held: counters.held,
            leased_units: counters.leased_units,
            used_units: counters.used_units,
            returned_units: counters.returned_units,
            expired_units: counters.expired_units,
            hits: counters.hits,
            refusals: counters.refusals,
            calls_saved: counters.calls_saved(),
        }
    }
}

/// Writes a rule or a limit with its counts.
fn decider(name: String, limits: Vec<SpendableLimitJson>, counts: Counts) -> DeciderJson {
    DeciderJson {
        name,
        limits,
        allowed: counts.allowed,
        denied: counts.denied,
        shadow_denied: counts.shadow_denied,
        degraded: counts.degraded,
        failed: counts.failed,
    }
}

/// Writes a refused key.
fn refused_key(
    RefusalCount { by, limit, key, is_cut, times, excess, .. }: RefusalCount,
) -> RefusedKeyJson {
    let text = String::from_utf8_lossy(&key);
    let whole = !is_cut && matches!(text, Cow::Borrowed(_));
    let (by, limit_name, key) = (by.into(), limit.into(), text.into_owned());
    RefusedKeyJson { by, limit_name, key, whole, times, excess }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_is_not_utf_8_is_shown_with_replacements() {
        let key = Box::new(*b"a\xff\n");
        let (by, limit) = ("api/each".into(), "free".into());
        let count = RefusalCount { by, limit, key, is_cut: false, times: 3, excess: 1, hash: 0 };
        let shown = refused_key(count);
        let want = "{\"by\":\"api/each\",\"limit_name\":\"free\",\"key\":\"a\u{fffd}\\n\",\"whole\":false,\"times\":3,\"excess\":1}";
        assert_eq!(serde_json::to_string(&shown).unwrap(), want);
    }
}
