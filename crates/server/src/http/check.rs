//! `POST /v1/check`: decides a request.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use tollgate::rules::{Current, RulesAnswer};
use tollgate::{Answer, Decision};

use super::Problem;
use super::asked::{Asked, Of};
use super::body::JsonBody;
use super::decision::{DecisionJson, RulingJson};
use super::domain;
use super::openapi::{BodyProblems, CheckAnswer, CheckRequest, StoreProblems};
use crate::served::{Named, Served};
use crate::store::StoreKind;
use crate::traces;
use crate::trust::Description;

/// The longest body of a check.
const MAX_BYTES: usize = 64 << 10;

/// What a decision takes, as a rule.
const ANSWER_BYTES: usize = 256;

/// Decides a request, and charges it if it is allowed
///
/// By a limit that is named, or by all rules of a domain that apply to the request: those are charged together,
/// or none is. `domain` may be left out if all rules are of one domain. A refusal is an answer too, and costs nothing.
/// At most 64 KiB.
#[utoipa::path(
    post,
    path = "/v1/check",
    tag = "decisions",
    request_body(content = CheckRequest, examples(
        ("a limit" = (value = json!({"limit": "free", "key": "user:42", "cost": 1}))),
        ("rules" = (value = json!({
            "domain": "api",
            "attributes": {"method": "GET", "path": "/reports", "ip": "203.0.113.9", "api_key": "k_123"}
        }))),
        ("rules of the only domain" = (value = json!({"attributes": {"ip": "203.0.113.9"}}))),
    )),
    responses(
        (status = 200, description = "Allowed, or not.", body = CheckAnswer, example = json!({
            "allowed": true, "limit": 60, "remaining": 59,
            "retry_after_us": null, "reset_after_us": 1_000_000, "delay_us": 0,
            "receipt": "AQb2…"
        })),
        (
            status = 404, description = "There is no such limit, or no rule of that domain.",
            body = Problem, content_type = "application/problem+json"
        ),
        BodyProblems,
        StoreProblems,
    ),
)]
pub(super) async fn check(
    State(served): State<Arc<Served>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, Problem> {
    let mut answer = Vec::with_capacity(ANSWER_BYTES);
    let mut sent = Sent::new(Asked::decode(&body)?, &served)?;
    let answering = sent.answer(&served, &mut answer);
    match served.store {
        StoreKind::Memory => answering.await?,
        // On the heap: what a span takes, requests to a memory need not carry about.
        StoreKind::Redis => Box::pin(traces::store(&served, answering)).await?,
    }
    Ok(json(served.budget.body_anyway(answer)))
}

/// The same without a router: `POST` and the path are known.
pub(crate) async fn answer(served: Arc<Served>, request: Request) -> Response {
    match JsonBody::from_request(request, &served).await {
        Ok(body) => check(State(served), body).await.into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// A check on its way to the store.
pub(super) struct Sent<'a> {
    to: To<'a>,
    /// When, if that is across the network.
    at: Option<Instant>,
}

/// Who decides it.
enum To<'a> {
    Limit { named: Arc<Named>, key: Cow<'a, str>, answer: Answer<Decision> },
    Rules(RulesAnswer),
}

impl<'a> Sent<'a> {
    /// Sends it; the store may take its time to answer.
    pub(super) fn new(asked: Asked<'a>, served: &Served) -> Result<Sent<'a>, Problem> {
        let Asked { of, cost, max_wait } = asked;
        let at = served.metrics.store_call();
        let to = match of {
            Of::Limit { name, key } => {
                let named = served.limit(&name).ok_or_else(|| Problem::unknown_limit(&name))?;
                let mut check = named.scope.check(key.as_bytes());
                if let Some(cost) = cost {
                    check = check.cost(cost);
                }
                if let Some(max_wait) = max_wait {
                    check = check.max_wait(max_wait);
                }
                let answer = check.into_future();
                To::Limit { named, key, answer }
            }
            Of::Rules { domain, request } => {
                let now = served.rules.as_of_now();
                To::Rules(by_rules(&now, domain.as_deref(), request, cost, max_wait)?)
            }
        };
        Ok(Sent { to, at })
    }

    /// Appends what was decided. It comes once.
    pub(super) async fn answer(
        &mut self,
        served: &Served,
        to: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let Served { metrics, receipts, traces, .. } = served;
        match &mut self.to {
            To::Limit { named, key, answer } => {
                let decided = answer.await;
                if !decided.as_ref().is_ok_and(Decision::is_cached) {
                    metrics.store_answered(self.at);
                }
                let decision = decided.inspect_err(|_| named.tally.count_failure())?;
                named.tally.count(&decision);
                served.refused.count(named.scope.name(), key.as_bytes(), &decision);
                if traces.is_some() {
                    traces::decided(named.scope.name(), &decision);
                }
                let receipt = receipts.of_limit(&named.scope, key.as_bytes(), &decision);
                DecisionJson::from(&decision).with_receipt(receipt).write(to);
            }
            To::Rules(answer) => {
                let ruled = answer.await;
                metrics.store_answered(self.at);
                let ruling = ruled?;
                served.refused.count_of(&ruling);
                if traces.is_some() {
                    traces::ruled(&ruling);
                }
                let receipt = receipts.of_ruling(&ruling);
                RulingJson::from(&ruling).with_receipt(receipt).write(to);
            }
        }
        Ok(())
    }
}

/// Sends a request to the rules as they are `now`: a reload meanwhile changes neither whether the domain has rules, nor
/// which attributes the rules look at, nor which rules decide.
fn by_rules(
    now: &Current<'_>,
    domain: Option<&str>,
    request: Description<'_>,
    cost: Option<u64>,
    max_wait: Option<Duration>,
) -> Result<RulesAnswer, Problem> {
    let domain = domain::find(domain, now, r#"{"domain":"api", …}"#)?;
    let attributes = request.into_attributes(now);
    let mut check = now.check(domain, &attributes);
    if let Some(cost) = cost {
        check = check.cost(cost);
    }
    if let Some(max_wait) = max_wait {
        check = check.max_wait(max_wait);
    }
    Ok(check.into_future())
}

/// Appends JSON.
pub(super) fn append(to: &mut Vec<u8>, answer: &impl Serialize) {
    // OK because memory takes all of it, and structs of texts and numbers have a JSON.
    let _ = serde_json::to_writer(to, answer);
}

/// An answer of JSON.
pub(super) fn json(body: Body) -> Response {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use tollgate::Limiter;
    use tollgate::rules::{Config, Rules};

    use super::*;

    fn config(domain: &str, attribute: &str) -> Config {
        let text = format!(
            "limits: {{ one: fixed-window limit=1 window=1d }}\n\
             rules: [{{ name: each, domain: {domain}, key: [{attribute}], limit: one }}]"
        );
        Config::parse("rules.yaml", &text).unwrap()
    }

    /// Reloads between the moment that a check takes the rules and the decision; the new rules have another domain.
    #[tokio::test]
    async fn a_check_is_decided_by_one_version_of_the_rules() {
        let rules = Rules::new(&Limiter::memory(), &config("api", "user")).unwrap();
        let now = rules.as_of_now();
        rules.replace(&config("web", "ip")).unwrap();
        let body = br#"{"domain":"api","attributes":{"user":"a"}}"#;
        let decide = || {
            let Of::Rules { domain, request } = Asked::decode(body).unwrap().of else {
                panic!("it asks rules")
            };
            by_rules(&now, domain.as_deref(), request, None, None)
        };
        let first = decide().unwrap().await.unwrap();
        assert_eq!((first.is_allowed(), first.generation()), (true, 1));
        assert_eq!(first.rules().next().unwrap().key(), b"user=a");
        assert!(!decide().unwrap().await.unwrap().is_allowed());
        let now = rules.as_of_now();
        let Of::Rules { domain, request } = Asked::decode(body).unwrap().of else {
            panic!("it asks rules")
        };
        assert_eq!(
            by_rules(&now, domain.as_deref(), request, None, None).unwrap_err().status(),
            404
        );
    }
}
