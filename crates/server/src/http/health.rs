//! `GET /healthz` and `GET /readyz`: whether the process answers, and whether to send requests to it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use hyper::StatusCode;
use hyper::http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use super::operator::Operator;
use crate::lifecycle::Phase;
use crate::operators::OperatorAccess;
use crate::readiness::Readiness;
use crate::ruleset::RuleSet;
use crate::store::StoreKind;

/// The most characters of a problem with the rules in an answer. The log has the whole text.
const MAX_PROBLEM_CHARS: usize = 500;

/// The text of a problem with the rules for clients that are not operators. The full text names the rules file and may
/// quote it.
const HIDDEN_PROBLEM: &str =
    "there is a problem with the rules; operators see it here and in the log";

/// Whether requests should be sent here.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Readiness)]
pub(super) struct ReadinessJson {
    /// Whether requests should be sent here.
    ready: bool,
    store: StoreState,
    /// The generation of the rules: 1 for the first rules, and one more each time that they are replaced.
    generation: u64,
    /// A hash of the rules, as 16 hexadecimal digits: the same on every server that has the same rules.
    hash: String,
    /// The number of rules.
    rules: usize,
    /// The number of limits.
    limits: usize,
    phase: PhaseName,
    /// Set while the server has refused the current rules file, so that older rules decide; while a domain in use has
    /// no rules, so that its requests are not limited; and while the keys that verify tokens cannot be fetched.
    /// Operators get the reason. All other clients get a fixed text, which does not name or quote the file.
    #[schema(required)]
    rules_problem: Option<String>,
}

/// The state of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StoreState {
    /// The store is in the server itself.
    Memory,
    Reachable,
    Unreachable,
}

/// The phase of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PhaseName {
    Serving,
    /// The server is stopping.
    Draining,
}

/// Whether the process answers.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "operations",
    responses((status = 200, description = "The process answers", body = String, example = "ok"))
)]
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// Whether requests should be sent here: the store answers, and the server is not stopping
///
/// For all clients. The operator token is optional: with it, `rules_problem` says what is wrong with the rules.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "operations",
    responses(
        (status = 200, description = "Requests should be sent here", body = ReadinessJson),
        (status = 503, description = "Requests should not be sent here", body = ReadinessJson),
    ),
    security((), ("operator" = [])),
)]
pub(super) async fn readyz(
    State(readiness): State<Arc<Readiness>>,
    State(rules): State<Arc<RuleSet>>,
    State(operators): State<Arc<OperatorAccess>>,
    parts: Parts,
) -> (StatusCode, Json<ReadinessJson>) {
    let mut readiness = ReadinessJson::of(&readiness, &rules).await;
    // A wrong token is not an error here, because probes must get an answer in any case.
    if readiness.rules_problem.is_some() && Operator::admit(&parts, &operators, &rules).is_err() {
        readiness.rules_problem = Some(HIDDEN_PROBLEM.to_owned());
    }
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}

impl ReadinessJson {
    /// Returns the current state, for operators. Probes the store, unless the last probe was less than 100 ms ago.
    pub(super) async fn of(readiness: &Readiness, rules: &RuleSet) -> ReadinessJson {
        let store = match readiness.store().kind() {
            StoreKind::Memory => StoreState::Memory,
            StoreKind::Redis if readiness.store().is_answering().await => StoreState::Reachable,
            StoreKind::Redis => StoreState::Unreachable,
        };
        let phase = match readiness.lifecycle().phase() {
            Phase::Serving => PhaseName::Serving,
            Phase::Draining | Phase::Closing => PhaseName::Draining,
        };
        ReadinessJson {
            ready: readiness.is_ready(),
            store,
            generation: rules.rules().generation(),
            hash: rules.hash(),
            rules: rules.rules().counts().len(),
            limits: rules.limits().len(),
            phase,
            rules_problem: rules.problem().map(shortened),
        }
    }
}

/// Shortens the text of a problem with the rules.
fn shortened(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(MAX_PROBLEM_CHARS) {
        text.truncate(at);
        text.push('…');
    }
    text
}
