//! Problems: the errors of the API (RFC 9457).

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use serde::{Serialize, Serializer};
use tollgate::{Error, StoreError};
use utoipa::ToSchema;

use crate::body::OUT_OF_MEMORY;
use crate::budget::BudgetExhausted;
use crate::pipeline::UnknownTarget;

/// The most bytes of a client's own text in a problem, approximately.
const MAX_EXCERPT_BYTES: usize = 64;

/// The most bytes of a decoder's message in a problem, approximately. The message may quote any amount of the client's
/// text.
const MAX_MESSAGE_BYTES: usize = 400;

/// An error: what is wrong, and what to do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Problem)]
pub(crate) struct ApiProblem {
    /// Always `about:blank`: the status is the type.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The meaning of the status.
    #[schema(example = "Bad Request")]
    title: &'static str,
    /// The status of the answer, or of this request of a batch.
    #[schema(minimum = 400, maximum = 599, example = 400)]
    status: u16,
    /// The description of the error: what is wrong, where, and what to do.
    #[schema(value_type = String, max_length = 1024, example = "cost is 0; use at least 1")]
    detail: Cow<'static, str>,
    /// How long to wait before trying again, if that helps.
    #[serde(
        rename = "retry_after_us",
        skip_serializing_if = "Option::is_none",
        serialize_with = "micros"
    )]
    #[schema(value_type = u64, nullable = false, required = false)]
    retry_after: Option<Duration>,
    /// Whether the connection is closed after this answer, because the body was not read to its end.
    #[serde(skip)]
    is_closing: bool,
}

impl ApiProblem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> ApiProblem {
        let title = status.canonical_reason().unwrap_or("Error");
        let (kind, status, detail) = ("about:blank", status.as_u16(), detail.into());
        ApiProblem { kind, title, status, detail, retry_after: None, is_closing: false }
    }

    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> ApiProblem {
        ApiProblem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Closes the connection after this answer, and announces that to the client.
    pub(super) fn closing(self) -> ApiProblem {
        ApiProblem { is_closing: true, ..self }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST)
    }

    #[cfg(test)]
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Replaces the detail.
    pub(crate) fn with_detail(self, detail: impl Into<Cow<'static, str>>) -> ApiProblem {
        ApiProblem { detail: detail.into(), ..self }
    }

    /// Makes the problem of a body that is not valid JSON or has other fields than expected:
    /// `line 1 column 9: unknown field `costs`, …`.
    pub(crate) fn in_json(error: &serde_json::Error) -> ApiProblem {
        let message = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = message.strip_suffix(&place).unwrap_or(&message);
        let remedy = if error.is_data() { "" } else { "; send JSON" };
        let (line, column, message) = (error.line(), error.column(), message_excerpt(message));
        ApiProblem::bad_request(format!("line {line} column {column}: {message}{remedy}"))
    }

    /// Makes the same problem as [`in_json`](Self::in_json), with the path of the field instead of line and column:
    /// `config.maxTokens: invalid type: null, expected a number`.
    pub(super) fn at(place: &str, error: &serde_json::Error) -> ApiProblem {
        let problem = ApiProblem::in_json(error);
        let (_, message) = problem.detail.split_once(": ").unwrap_or_default();
        let message = if error.is_data() { message } else { &problem.detail };
        match place {
            "." => problem,
            _ => ApiProblem::bad_request(format!("{}: {message}", excerpt(place))),
        }
    }

    pub(crate) fn unknown_limit(name: &str) -> ApiProblem {
        let detail =
            format!("there is no limit `{}`; GET /v1/limits lists the limits", excerpt(name));
        ApiProblem::new(StatusCode::NOT_FOUND, detail)
    }

    /// Makes the problem of a request to a limit or a domain that does not exist. `example` shows how to name a domain.
    pub(super) fn unknown_target(target: &UnknownTarget<'_>, example: &str) -> ApiProblem {
        match target {
            UnknownTarget::Limit(name) => ApiProblem::unknown_limit(name),
            UnknownTarget::Domain(domain) => {
                let detail = format!(
                    "the domain `{}` has no rules; add rules for it to the rules file of the server",
                    excerpt(domain)
                );
                ApiProblem::new(StatusCode::NOT_FOUND, detail)
            }
            UnknownTarget::DomainNotGiven => ApiProblem::bad_request(format!(
                "the request names no domain, which works only if the rules have exactly one; if they have several, \
                 name one: {example}; if there are no rules, add rules to the rules file of the server"
            )),
        }
    }

    /// Makes the problem of a check of a concurrency limit, or of rules with one.
    fn must_reserve(scope: &str) -> ApiProblem {
        ApiProblem::bad_request(format!(
            "`{}` limits what runs at the same time, so it cannot be checked; reserve with POST /v1/reserve, and settle the \
             hold with POST /v1/settle when the work has ended",
            excerpt(scope)
        ))
    }

    pub(super) fn unknown_path(path: &str) -> ApiProblem {
        let detail =
            format!("there is no path `{}`; GET /openapi.json lists the paths", excerpt(path));
        ApiProblem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn playground_off() -> ApiProblem {
        let detail = "the playground is switched off; start the server without --no-playground";
        ApiProblem::new(StatusCode::NOT_FOUND, detail)
    }

    /// Makes the problem of a request to a playground that has too many users.
    pub(super) fn playground_busy(retry_after: Option<Duration>) -> ApiProblem {
        let detail = "the playground has too many users at the moment; try again in a second, or start a \
                      server of your own";
        let retry_after = Some(retry_after.unwrap_or(Duration::from_secs(1)));
        ApiProblem { retry_after, ..ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    pub(super) fn bad_path() -> ApiProblem {
        ApiProblem::bad_request("the decoded path is not UTF-8; send percent-encoded UTF-8")
    }

    pub(super) fn wrong_method(method: &Method) -> ApiProblem {
        let method = excerpt(method.as_str());
        let detail = format!(
            "this path does not support `{method}`; use one of the methods in the header Allow"
        );
        ApiProblem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
    }

    pub(super) fn not_json() -> ApiProblem {
        let detail = "the body must be JSON that is not compressed; send it with Content-Type: application/json, \
                      and without Content-Encoding";
        ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// Makes the problem of a proxy's call from an address that is not trusted.
    pub(super) fn untrusted_proxy() -> ApiProblem {
        let detail = "only trusted proxies may call this path; \
                      add the address of this proxy to identity.trusted_proxies in the rules file of the server";
        ApiProblem::new(StatusCode::FORBIDDEN, detail)
    }

    /// Makes the problem of a delayed request when the server closes before the delay has passed.
    pub(super) fn stopping(left: Duration) -> ApiProblem {
        let detail = "the server stops before the delay of this request has passed; use another server, \
                      or try again later";
        let retry_after = Some(left);
        ApiProblem { retry_after, ..ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }

    /// Replaces the status.
    pub(super) fn with_status(self, status: StatusCode) -> ApiProblem {
        ApiProblem { status: status.as_u16(), ..self }
    }

    /// Makes the problem of a request for which there is no memory at the moment.
    pub(crate) fn out_of_memory() -> ApiProblem {
        let retry_after = Some(Duration::from_secs(1));
        ApiProblem {
            retry_after,
            ..ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, OUT_OF_MEMORY)
        }
    }

    /// Makes the problem of a batch's request that is not decided, because its answer would not fit.
    pub(super) fn answer_too_long() -> ApiProblem {
        let detail = "the answers of this batch have reached their maximum length, and this request was not decided; \
                      send it again in a smaller batch";
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// Makes the problem of a request with a wrong operator token, or with none.
    pub(super) fn not_operator() -> ApiProblem {
        let detail = "only operators may do this; send `Authorization: Bearer <token>` \
                      with the token that the server was started with";
        ApiProblem::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// Makes the problem of a token that was not compared, because its client's address has sent too many wrong tokens.
    pub(super) fn too_many_guesses(retry_after: Duration) -> ApiProblem {
        let detail = "too many wrong operator tokens came from your address, and this one was not compared; wait \
                      for the time in Retry-After, or send the request from another address";
        let retry_after = Some(retry_after);
        ApiProblem { retry_after, ..ApiProblem::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    /// Makes the problem of a request that is not from this machine, on a server without an operator token.
    pub(super) fn not_local(reason: &str) -> ApiProblem {
        let detail = format!(
            "only operators may do this; this server has no operator token, so it accepts only requests from its own \
             machine, at a loopback address and without a proxy, and this request is not one: {reason}; set \
             TOLLGATE_OPERATOR_TOKEN (--operator-token) and send that token"
        );
        ApiProblem::new(StatusCode::FORBIDDEN, detail)
    }
}

fn micros<S: Serializer>(wait: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    let wait_us = wait.unwrap_or_default().as_micros();
    to.serialize_u64(u64::try_from(wait_us).unwrap_or(u64::MAX))
}

/// Makes an excerpt of a text that a client sent: short and printable.
pub(crate) fn excerpt(text: &str) -> String {
    shorten(text, MAX_EXCERPT_BYTES)
}

/// Makes an excerpt of a decoder's message: short and printable.
pub(super) fn message_excerpt(message: &str) -> String {
    shorten(message, MAX_MESSAGE_BYTES)
}

/// Shortens a text to about `max_bytes`, and escapes letters that are not printable.
fn shorten(text: &str, max_bytes: usize) -> String {
    let mut excerpt = String::new();
    for letter in text.chars() {
        if excerpt.len() >= max_bytes {
            excerpt.push('…');
            break;
        }
        match letter {
            // Not escaped, because messages contain these characters, and they are harmless.
            '"' | '\'' | '\\' => excerpt.push(letter),
            _ => excerpt.extend(letter.escape_debug()),
        }
    }
    excerpt
}

impl From<Error> for ApiProblem {
    fn from(error: Error) -> ApiProblem {
        let problem = match &error {
            Error::Store(problem) => problem,
            Error::MustReserve { scope } => return ApiProblem::must_reserve(scope),
            _ => return ApiProblem::bad_request(error.to_string()),
        };
        // The cause is only in the log, because it may name servers.
        let (detail, retry_after) = match problem {
            StoreError::Corrupt { .. } => (
                "the store has data for this key that is not a state of this limit; reset the key",
                None,
            ),
            StoreError::BreakerOpen { again_in, .. } => (FAILED, Some(*again_in)),
            _ => (FAILED, Some(Duration::from_secs(1))),
        };
        ApiProblem { retry_after, ..ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }
}

impl From<BudgetExhausted> for ApiProblem {
    fn from(_: BudgetExhausted) -> ApiProblem {
        ApiProblem::out_of_memory()
    }
}

const FAILED: &str =
    "the store failed, and this request is not decided without it; try again later";

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.is_closing {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_micros().div_ceil(1_000_000).max(1);
            if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
                headers.insert(RETRY_AFTER, seconds);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_short_and_printable() {
        for (sent, want) in [
            ("free", "free"),
            ("a\nb\u{1b}[31m\0", "a\\nb\\u{1b}[31m\\0"),
            ("say \"it's\"", "say \"it's\""),
            ("\u{202e}", "\\u{202e}"),
        ] {
            assert_eq!(excerpt(sent), want);
        }
        assert_eq!(excerpt(&"x".repeat(64)), "x".repeat(64));
        assert_eq!(excerpt(&"x".repeat(60_000)), format!("{}…", "x".repeat(64)));
        assert!(excerpt(&"\0".repeat(60_000)).len() < 80);
        assert!(excerpt(&"\u{10ffff}".repeat(60_000)).len() < 80);
    }

    #[test]
    fn store_failure_is_a_503_with_a_retry_time_and_without_a_server_name() {
        let server = "10.0.0.1:6379".to_owned();
        let again_in = Duration::from_millis(2_001);
        let failure = "refused".to_owned();
        let open = StoreError::BreakerOpen { server: server.clone(), again_in, failure };
        let gone = StoreError::Unreachable { server, problem: "refused".to_owned() };
        let corrupt = StoreError::Corrupt { key: "tollgate:free".to_owned() };
        for (error, want) in [(open, Some("3")), (gone, Some("1")), (corrupt, None)] {
            let problem = ApiProblem::from(Error::from(error));
            assert!(!problem.detail.contains("10.0.0.1"), "{problem:?}");
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let retry_after = response.headers().get(RETRY_AFTER);
            assert_eq!(retry_after.map(|value| value.to_str().unwrap()), want);
        }
    }
}
