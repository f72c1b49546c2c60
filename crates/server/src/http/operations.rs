//! `GET /v1/operations`: how the server and its rules do, for operators.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tollgate::{BreakerState, Limit};
use utoipa::ToSchema;

use super::Problem;
use super::check::{append, json};
use super::health::Readiness;
use super::openapi::OperatorProblems;
use super::operator::Operator;
use crate::refused::Count;
use crate::served::Served;

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
    readiness: Readiness,
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
    /// The algorithm with its numbers, of a rule the first; null if it has none.
    #[schema(required)]
    limit: Option<String>,
    allowed: u64,
    denied: u64,
    /// What a shadow would have refused.
    shadow_denied: u64,
    /// Of those that were allowed and denied, how many without the store.
    degraded: u64,
    /// Those that came to an error.
    failed: u64,
}

/// Somebody who is refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Refused)]
struct RefusedJson {
    /// The rule or limit that refuses.
    by: String,
    /// Who. What is no UTF-8 in it is replaced.
    key: String,
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
    responses((status = 200, description = "How they do.", body = OperationsJson), OperatorProblems),
    security(("operator" = [])),
)]
pub(super) async fn operations(
    _: Operator,
    State(served): State<Arc<Served>>,
) -> Result<Response, Problem> {
    let health = served.limiter().health();
    let servers = health.into_iter().flat_map(|health| health.servers).map(|own| ServerJson {
        server: own.server,
        breaker: match own.breaker {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        },
        waiting: own.waiting,
    });
    let rules = served.rules.counts().into_iter().map(|(name, counts)| {
        let name = name.to_string();
        let limit = served.rules.scope(&name).map(|scope| *scope.limit());
        decider(name, limit, counts)
    });
    let limits = served.limits().into_iter().map(|(name, named)| {
        decider(name.into(), Some(*named.scope.limit()), named.tally.counts())
    });
    let mut body = Vec::new();
    append(
        &mut body,
        &OperationsJson {
            store: served.store,
            readiness: Readiness::of(&served).await,
            servers: servers.collect(),
            rules: rules.collect(),
            limits: limits.collect(),
            refused: served.refused.most(MAX_REFUSED).into_iter().map(refused).collect(),
        },
    );
    Ok(json(served.page_budget.body(body)?))
}

fn decider(name: String, limit: Option<Limit>, counts: tollgate::rules::Counts) -> DeciderJson {
    DeciderJson {
        name,
        limit: limit.map(|limit| limit.to_string()),
        allowed: counts.allowed,
        denied: counts.denied,
        shadow_denied: counts.shadow_denied,
        degraded: counts.degraded,
        failed: counts.failed,
    }
}

fn refused(count: Count) -> RefusedJson {
    let key = String::from_utf8_lossy(&count.key).into_owned();
    RefusedJson { by: count.by.into(), key, times: count.times, excess: count.excess }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::Refused;

    #[test]
    fn a_key_that_is_no_utf_8_is_told_all_the_same() {
        let counts = Refused::default();
        counts.count("free", b"a\xff\n");
        let told = refused(counts.most(1).remove(0));
        let want = "{\"by\":\"free\",\"key\":\"a\u{fffd}\\n\",\"times\":1,\"excess\":0}";
        assert_eq!(serde_json::to_string(&told).unwrap(), want);
    }
}
