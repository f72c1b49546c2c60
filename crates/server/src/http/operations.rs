//! `GET /v1/operations`: how the server and its rules do, for operators.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hyper::header::{CACHE_CONTROL, HeaderValue};
use serde::Serialize;
use tollgate::BreakerState;
use tollgate::rules::{Counts, RuleAction};
use utoipa::ToSchema;

use super::Problem;
use super::api::PageBudget;
use super::check::{append, json};
use super::health::ReadinessJson;
use super::openapi::{OperatorProblems, StoreProblems};
use super::operator::Operator;
use crate::readiness::Readiness;
use crate::refused::{Count, Refused};
use crate::ruleset::RuleSet;

/// The most who are told of that are refused.
const MAX_REFUSED: usize = 20;

/// How the server and its rules do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Operations)]
pub(super) struct OperationsJson {
    /// `memory` or `redis`.
    #[schema(example = "memory")]
    store: &'static str,
    /// As `/readyz` has it.
    readiness: ReadinessJson,
    /// The servers of the store, if it has any.
    servers: Vec<ServerJson>,
    /// In the order of the file.
    rules: Vec<DeciderJson>,
    /// Limits that are asked for by their names, in alphabetical order.
    limits: Vec<DeciderJson>,
    /// Who is refused most of late, the most first.
    refused: Vec<RefusedJson>,
}

/// A server of the store.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StoreServer)]
struct ServerJson {
    /// Its address.
    server: String,
    /// `closed`: it is asked; `open`: it is left alone; `half_open`: it is tried.
    breaker: &'static str,
    /// How many charges wait to be sent to it.
    waiting: usize,
}

/// A rule or a limit, and how often it decided what since the server began.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Decider)]
struct DeciderJson {
    /// `api/per-client`, or the limit's name.
    name: String,
    /// The limits that it may spend; the default of a rule comes first.
    limits: Vec<SpentJson>,
    allowed: u64,
    denied: u64,
    /// What a shadow would have refused.
    shadow_denied: u64,
    /// Of those that were allowed and denied, how many without the store.
    degraded: u64,
    /// Those that came to an error.
    failed: u64,
}

/// A limit that a rule may spend, or a limit by itself.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SpentLimit)]
struct SpentJson {
    /// The limit's name, `allow` or `block`.
    #[schema(example = "free")]
    limit_name: String,
    /// The algorithm with its numbers; null for `allow` and `block`.
    #[schema(required, example = "token-bucket capacity=60 refill=1/s")]
    limit: Option<String>,
}

/// Somebody who is refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Refused)]
struct RefusedJson {
    /// The rule or limit that refuses.
    by: String,
    /// The limit that refused the key last: of a rule with tiers, the limit of the client's tier; or `block`.
    limit_name: String,
    /// Who. What is no UTF-8 in it is replaced.
    key: String,
    /// Whether that is all of it, and can be looked up.
    whole: bool,
    /// At most so often of late: counts are halved every minute.
    times: u64,
    /// By which that may be too high.
    excess: u64,
}

/// How the server and its rules do
///
/// For operators.
#[utoipa::path(
    get,
    path = "/v1/operations",
    tag = "operations",
    responses((status = 200, description = "How they do.", body = OperationsJson), OperatorProblems, StoreProblems),
    security(("operator" = [])),
)]
pub(super) async fn operations(
    _: Operator,
    State(rules): State<Arc<RuleSet>>,
    State(readiness): State<Arc<Readiness>>,
    State(most_refused): State<Arc<Refused>>,
    State(PageBudget(budget)): State<PageBudget>,
) -> Result<Response, Problem> {
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
        let limits = rule.limits().into_iter().map(|own| SpentJson::from(&own.spends)).collect();
        decider(rule.name().to_string(), limits, rule.counts())
    });
    let limits = rules.limits().into_iter().map(|(name, named)| {
        let (name, limit) = (String::from(name), Some(named.scope.limit().to_string()));
        let limits = vec![SpentJson { limit_name: name.clone(), limit }];
        decider(name, limits, named.tally.counts())
    });
    let mut body = Vec::new();
    append(
        &mut body,
        &OperationsJson {
            store: readiness.store().kind().name(),
            readiness: ReadinessJson::of(&readiness, &rules).await,
            servers: servers.collect(),
            rules: each_rule.collect(),
            limits: limits.collect(),
            refused: most_refused.most(MAX_REFUSED).into_iter().map(refused).collect(),
        },
    );
    let mut response = json(budget.body(body)?);
    // It has keys, which may be secrets.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl From<&RuleAction> for SpentJson {
    fn from(spends: &RuleAction) -> SpentJson {
        let limit = match spends {
            RuleAction::Limit { limit, .. } => Some(limit.to_string()),
            _ => None,
        };
        SpentJson { limit_name: spends.name().to_owned(), limit }
    }
}

fn decider(name: String, limits: Vec<SpentJson>, counts: Counts) -> DeciderJson {
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

fn refused(Count { by, limit, key, is_cut, times, excess, .. }: Count) -> RefusedJson {
    let text = String::from_utf8_lossy(&key);
    let whole = !is_cut && matches!(text, Cow::Borrowed(_));
    let (by, limit_name, key) = (by.into(), limit.into(), text.into_owned());
    RefusedJson { by, limit_name, key, whole, times, excess }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_no_utf_8_is_told_all_the_same() {
        let key = Box::new(*b"a\xff\n");
        let (by, limit) = ("api/each".into(), "free".into());
        let count = Count { by, limit, key, is_cut: false, times: 3, excess: 1, hash: 0 };
        let told = refused(count);
        let want = "{\"by\":\"api/each\",\"limit_name\":\"free\",\"key\":\"a\u{fffd}\\n\",\"whole\":false,\"times\":3,\"excess\":1}";
        assert_eq!(serde_json::to_string(&told).unwrap(), want);
    }
}
