//! Why a request is refused, and the response to its client (RFC 9457).

use std::time::Duration;

use ::http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use ::http::{Response, StatusCode};
use bytes::Bytes;
use serde_json::json;
use tollgate_core::Limit;
use tollgate_limiter::{Error, StoreError};

use super::outcome::Outcome;
use tollgate_identity::{InvalidToken, TokenRefusal};
use tollgate_rules::Ruling;

/// The IETF's problem type for a spent quota.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The wait to report when a failing store gives none.
const AGAIN_US: u64 = 1_000_000;

/// The refusal of a request.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'o> {
    reason: RefusalReason<'o>,
    /// Replaces the reason's own status.
    status: Option<StatusCode>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RefusalReason<'o> {
    /// A quota is spent: 429. Or a rule [blocks](Outcome::is_blocked) the request: 403, because a client retries after a
    /// 429.
    Quota(Outcome<'o>),
    /// The store could not decide, and the failure policy is to refuse requests then: 503.
    Undecided(&'o Error),
    /// The request's token is not valid, and the settings refuse such requests: 401.
    Token(InvalidToken),
}

impl<'o> From<&'o TokenRefusal> for RefusalReason<'o> {
    /// Gives 401, or 429 after too many invalid tokens from the same address.
    fn from(refusal: &'o TokenRefusal) -> RefusalReason<'o> {
        match (refusal.invalid(), refusal.refusal()) {
            (Some(invalid), _) => RefusalReason::Token(invalid),
            (None, Some((verifications, decision))) => {
                RefusalReason::Quota(Outcome::of_limit(verifications, decision, 1))
            }
            // Not reached: one of the two is always set.
            (None, None) => RefusalReason::Token(InvalidToken::Malformed),
        }
    }
}

impl RefusalReason<'_> {
    /// Returns the reason as one word, for a header or a log: `quota`, `blocked`, `token`, `store-failed` or `undecided`.
    pub fn word(&self) -> &'static str {
        match self {
            RefusalReason::Quota(outcome) if outcome.is_blocked() => "blocked",
            RefusalReason::Quota(_) => "quota",
            RefusalReason::Undecided(Error::Store(_)) => "store-failed",
            RefusalReason::Undecided(_) => "undecided",
            RefusalReason::Token(_) => "token",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            RefusalReason::Quota(outcome) if outcome.is_blocked() => StatusCode::FORBIDDEN,
            RefusalReason::Quota(_) => StatusCode::TOO_MANY_REQUESTS,
            RefusalReason::Undecided(_) => StatusCode::SERVICE_UNAVAILABLE,
            RefusalReason::Token(_) => StatusCode::UNAUTHORIZED,
        }
    }
}

impl<'o> Refusal<'o> {
    /// A refusal for this reason.
    pub fn new(reason: RefusalReason<'o>) -> Refusal<'o> {
        Refusal { reason, status: None }
    }

    /// Sets another status, for proxies that understand only a few.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Refusal<'o> {
        Refusal { status: Some(status), ..self }
    }

    /// The reason for the refusal.
    pub fn reason(&self) -> &RefusalReason<'o> {
        &self.reason
    }

    /// Returns 429, 403 for a blocked request, 503 or 401, unless [another status](Self::with_status) was set.
    pub fn status(&self) -> StatusCode {
        self.status.unwrap_or_else(|| self.reason.status())
    }

    /// How long to wait, if waiting helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_us().map(Duration::from_micros)
    }

    /// [`retry_after`](Self::retry_after) in microseconds.
    pub fn retry_after_us(&self) -> Option<u64> {
        match &self.reason {
            RefusalReason::Quota(outcome) => outcome.verdict().retry_after_us(),
            RefusalReason::Undecided(Error::Store(StoreError::BreakerOpen {
                again_in, ..
            })) => Some(u64::try_from(again_in.as_micros()).unwrap_or(u64::MAX)),
            RefusalReason::Undecided(Error::Store(_)) => Some(AGAIN_US),
            RefusalReason::Undecided(_) => None,
            RefusalReason::Token(_) => None,
        }
    }

    /// Returns the reason as a sentence, for a person.
    pub fn detail(&self) -> String {
        match &self.reason {
            RefusalReason::Quota(outcome) => quota_detail(outcome),
            // The cause is only logged, because it may name servers.
            RefusalReason::Undecided(Error::Store(_)) => {
                "the store failed, and this request is not decided without it".to_owned()
            }
            RefusalReason::Undecided(_) => "no limit can be decided for this request".to_owned(),
            RefusalReason::Token(invalid) => format!("the token is not accepted: {invalid}"),
        }
    }

    /// Returns the response, with the status and the [problem](Self::problem). The headers with the quota and the wait are
    /// added by [`HeaderFamilies`](super::HeaderFamilies).
    pub fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.problem());
        *response.status_mut() = self.status();
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        self.challenge(response.headers_mut());
        response
    }

    /// Adds `WWW-Authenticate` to the response to an invalid token, unless it has that header already.
    pub fn challenge(&self, headers: &mut HeaderMap) {
        if let RefusalReason::Token(_) = self.reason
            && !headers.contains_key(WWW_AUTHENTICATE)
        {
            let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
            let _ = headers.try_insert(WWW_AUTHENTICATE, challenge);
        }
    }

    /// Returns the refusal as `application/problem+json`, with the rule that refuses the request, the limit that this
    /// rule spends for the client's tier, and all policies that refuse.
    ///
    /// ```json
    /// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests",
    ///  "status":429,"detail":"`per-client` is spent (limit `free`); come back in 1 s","rule":"per-client",
    ///  "limit_name":"free","violated-policies":["per-client"],"retry_after_us":400000}
    /// ```
    ///
    /// A limit that is used without rules has no `rule`. The problem of a blocked request has a `rule` and no
    /// `limit_name`, no `violated-policies` and no wait.
    pub fn problem(&self) -> Bytes {
        let mut problem = json!({
            "type": "about:blank",
            // The title of the reason, also when another status was set.
            "title": self.reason.status().canonical_reason(),
            "status": self.status().as_u16(),
            "detail": self.detail(),
        });
        if let RefusalReason::Quota(outcome) = &self.reason {
            if let Some(rule) = outcome.ruling().and_then(Ruling::refused_by) {
                problem["rule"] = rule.name().name().into();
            }
            if !outcome.is_blocked() {
                problem["type"] = QUOTA_EXCEEDED.into();
                problem["limit_name"] = outcome.refusing_limit().into();
                problem["violated-policies"] = outcome.refusers().collect();
                problem["retry_after_us"] = self.retry_after_us().into();
            }
        }
        problem.to_string().into()
    }
}

fn quota_detail(outcome: &Outcome<'_>) -> String {
    let name = outcome.refused_by().unwrap_or_default();
    // The limit that a rule spends for the client's tier; a limit without rules is `name` itself.
    let limit = outcome.refusing_limit().filter(|_| outcome.ruling().is_some());
    let limit = limit.map(|limit| format!(" (limit `{limit}`)")).unwrap_or_default();
    let is = |kind: fn(&Limit) -> bool| {
        outcome.policies().any(|policy| policy.name() == name && kind(policy.limit()))
    };
    match outcome.retry_after().map(|wait| wait.as_micros().div_ceil(1_000_000)) {
        Some(wait_s) if is(Limit::is_shaping) => {
            format!("the delay by `{name}` would be too long{limit}; come back in {wait_s} s")
        }
        Some(wait_s) if is(Limit::only_holds) => {
            format!("`{name}` has no free place{limit}; come back in {wait_s} s")
        }
        Some(wait_s) => format!("`{name}` is spent{limit}; come back in {wait_s} s"),
        None if outcome.is_blocked() => format!("`{name}` blocks such requests"),
        None => format!(
            "the request costs more than `{name}` ever allows{limit}; waiting does not help"
        ),
    }
}
