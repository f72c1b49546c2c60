//! `GET /healthz` and `GET /readyz`: whether the process lives, and whether to send it requests.

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

/// The most of a problem of the rules that operators get; the log has all of it.
const MAX_PROBLEM_CHARS: usize = 500;

/// For everybody else: the problem's text names the file, and may quote it.
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
    /// 1 for the first rules, one more whenever they are replaced.
    generation: u64,
    /// Of the rules, 16 hexadecimal digits: the same on every server that has the same ones.
    hash: String,
    /// How many rules there are.
    rules: usize,
    /// How many limits there are.
    limits: usize,
    phase: PhaseName,
    /// Set while the current rules file is one that was refused, so that older rules decide, while a domain in use
    /// has no rules, so that its requests are not limited, and while the keys of tokens cannot be fetched. Operators
    /// get the reason; for everybody else the text is always the same, and names neither the file nor its contents.
    #[schema(required)]
    rules_problem: Option<String>,
}

/// How the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StoreState {
    /// In the server itself.
    Memory,
    Reachable,
    Unreachable,
}

/// How far the server is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PhaseName {
    Serving,
    /// It was told to stop.
    Draining,
}

/// Whether the process answers.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "operations",
    responses((status = 200, description = "It does", body = String, example = "ok"))
)]
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// Whether requests should be sent here: the store answers, and the server was not told to stop
///
/// For everybody. A token is optional: with it, `rules_problem` says what is wrong with the rules.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "operations",
    responses(
        (status = 200, description = "They should", body = ReadinessJson),
        (status = 503, description = "They should not", body = ReadinessJson),
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
    // A wrong token does not make the answer an error: probes must get one in any case.
    if readiness.rules_problem.is_some() && Operator::admit(&parts, &operators, &rules).is_err() {
        readiness.rules_problem = Some(HIDDEN_PROBLEM.to_owned());
    }
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}

impl ReadinessJson {
    /// Returns the current state, for operators. Queries the store, unless that has just been done.
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

/// As much of a text as is told.
fn shortened(mut text: String) -> String {
    if let Some((at, _)) = text.char_indices().nth(MAX_PROBLEM_CHARS) {
        text.truncate(at);
        text.push('…');
    }
    text
}
