//! Why there is no answer (RFC 9457).

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
use crate::pipeline::NoDecider;

/// About the most bytes of a client's own text that it is told again.
const SHOWN: usize = 64;

/// About the most bytes of a decoder's message, which may have any amount of the client's text.
const MESSAGE: usize = 400;

/// Why there is no answer: what is wrong, and what to do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Problem {
    /// `about:blank`: the status says it.
    #[serde(rename = "type")]
    kind: &'static str,
    /// What the status means.
    #[schema(example = "Bad Request")]
    title: &'static str,
    /// The status of the answer, or that of this request of a batch.
    #[schema(minimum = 400, maximum = 599, example = 400)]
    status: u16,
    /// What is wrong, where, and what to do.
    #[schema(value_type = String, max_length = 1024, example = "cost is 0; use at least 1")]
    detail: Cow<'static, str>,
    /// How long to wait before asking again, if that helps.
    #[serde(
        rename = "retry_after_us",
        skip_serializing_if = "Option::is_none",
        serialize_with = "micros"
    )]
    #[schema(value_type = u64, nullable = false, required = false)]
    retry_after: Option<Duration>,
    /// The body was not read to its end, so no other request can follow it.
    #[serde(skip)]
    is_last: bool,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        let (kind, status, detail) = ("about:blank", status.as_u16(), detail.into());
        Problem { kind, title, status, detail, retry_after: None, is_last: false }
    }

    pub(crate) fn bad_request(detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The same, and the client is told that the connection ends here.
    pub(super) fn unread(self) -> Problem {
        Problem { is_last: true, ..self }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST)
    }

    #[cfg(test)]
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The same in other words.
    pub(crate) fn saying(self, detail: impl Into<Cow<'static, str>>) -> Problem {
        Problem { detail: detail.into(), ..self }
    }

    /// What is no JSON, or not the JSON that is wanted: `line 1 column 9: unknown field `costs`, …`.
    pub(crate) fn in_json(error: &serde_json::Error) -> Problem {
        let message = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = message.strip_suffix(&place).unwrap_or(&message);
        let remedy = if error.is_data() { "" } else { "; send JSON" };
        let (line, column, message) = (error.line(), error.column(), told(message));
        Problem::bad_request(format!("line {line} column {column}: {message}{remedy}"))
    }

    /// The same where the place has a name: `config.maxTokens: invalid type: null, expected a number`.
    pub(super) fn at(place: &str, error: &serde_json::Error) -> Problem {
        let problem = Problem::in_json(error);
        let (_, message) = problem.detail.split_once(": ").unwrap_or_default();
        let message = if error.is_data() { message } else { &problem.detail };
        match place {
            "." => problem,
            _ => Problem::bad_request(format!("{}: {message}", shown(place))),
        }
    }

    pub(crate) fn unknown_limit(name: &str) -> Problem {
        let detail = format!("there is no limit `{}`; GET /v1/limits lists them", shown(name));
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    /// For a request that names a limit or a domain that does not exist. `how` shows how to name a domain.
    pub(super) fn no_decider(none: &NoDecider<'_>, how: &str) -> Problem {
        match none {
            NoDecider::UnknownLimit(name) => Problem::unknown_limit(name),
            NoDecider::UnknownDomain(domain) => {
                let detail = format!(
                    "there are no rules of a domain `{}`; add some to the server's configuration",
                    shown(domain)
                );
                Problem::new(StatusCode::NOT_FOUND, detail)
            }
            NoDecider::NoOnlyDomain => Problem::bad_request(format!(
                "no domain is named, which works only if all rules are of one domain; if they are of several, \
                 name one: {how}; if there are no rules, add some to the server's configuration"
            )),
        }
    }

    pub(super) fn unknown_path(path: &str) -> Problem {
        let detail = format!("there is no `{}`; GET /openapi.json lists what is", shown(path));
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn no_playground() -> Problem {
        let detail = "the playground is switched off; start the server without --no-playground";
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    /// For whoever plays while so many others do.
    pub(super) fn too_many_play(retry_after: Option<Duration>) -> Problem {
        let detail =
            "too many play at the moment; come back in a second, or start a server of your own";
        let retry_after = Some(retry_after.unwrap_or(Duration::from_secs(1)));
        Problem { retry_after, ..Problem::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    pub(super) fn bad_path() -> Problem {
        Problem::bad_request("the path is no UTF-8 once it is decoded; percent-encode UTF-8")
    }

    pub(super) fn wrong_method(method: &Method) -> Problem {
        let method = shown(method.as_str());
        let detail = format!("`{method}` does not go with this path; use one that Allow lists");
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
    }

    pub(super) fn no_json() -> Problem {
        let detail = "the body must be JSON, as it is; send it with Content-Type: application/json, \
                      and no Content-Encoding";
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// For whoever asks in the name of others, and is not known as a proxy.
    pub(super) fn untrusted_proxy() -> Problem {
        let detail = "only proxies that are trusted may ask for others; \
                      add the address of this one to identity.trusted_proxies in the server's configuration";
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// For a request that would have to wait for longer than the server stays.
    pub(super) fn stopping(left: Duration) -> Problem {
        let detail = "the server stops before it is this request's turn; ask another, or come back";
        let retry_after = Some(left);
        Problem { retry_after, ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }

    /// The same with another status.
    pub(super) fn with_status(self, status: StatusCode) -> Problem {
        Problem { status: status.as_u16(), ..self }
    }

    /// For whoever sends or asks for much while others do.
    pub(crate) fn no_memory() -> Problem {
        let retry_after = Some(Duration::from_secs(1));
        Problem { retry_after, ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, OUT_OF_MEMORY) }
    }

    /// For what is not decided any more, because there is no room for its answer.
    pub(super) fn long_answer() -> Problem {
        let detail = "the answers before this one are as long as answers may be together, and this one is not \
                      decided; send it again, in a smaller batch";
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// For whoever shows the wrong token, or none.
    pub(super) fn no_operator() -> Problem {
        let detail = "only operators may do this; send `Authorization: Bearer <token>` \
                      with the token that the server was started with";
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// For a token that was not compared, because its address sent too many wrong ones.
    pub(super) fn too_many_guesses(retry_after: Duration) -> Problem {
        let detail = "too many wrong operator tokens came from your address, and this one was not compared; wait as \
                      long as Retry-After says, or ask from another address";
        let retry_after = Some(retry_after);
        Problem { retry_after, ..Problem::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    /// For a request that is not local, on a server without an operator token.
    pub(super) fn not_local(reason: &str) -> Problem {
        let detail = format!(
            "only operators may do this; without an operator token they are on the server's own machine, at a \
             loopback address and without a proxy, but of this request: {reason}; set TOLLGATE_OPERATOR_TOKEN \
             (--operator-token) and send it"
        );
        Problem::new(StatusCode::FORBIDDEN, detail)
    }
}

fn micros<S: Serializer>(wait: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    let wait_us = wait.unwrap_or_default().as_micros();
    to.serialize_u64(u64::try_from(wait_us).unwrap_or(u64::MAX))
}

/// What a client sent, short enough and printable.
pub(crate) fn shown(text: &str) -> String {
    cut(text, SHOWN)
}

/// A decoder's message, short enough and printable.
pub(super) fn told(message: &str) -> String {
    cut(message, MESSAGE)
}

/// About so many bytes of it, printable.
fn cut(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        if shown.len() >= most {
            shown.push('…');
            break;
        }
        match letter {
            // They are part of messages, and harmless.
            '"' | '\'' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let Error::Store(problem) = &error else {
            return Problem::bad_request(error.to_string());
        };
        // What went wrong is for the log: it may name servers.
        let (detail, retry_after) = match problem {
            StoreError::Corrupt { .. } => {
                ("what the store has of this key is no state of this limit; reset the key", None)
            }
            StoreError::BreakerOpen { again_in, .. } => (FAILED, Some(*again_in)),
            _ => (FAILED, Some(Duration::from_secs(1))),
        };
        Problem { retry_after, ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }
}

impl From<BudgetExhausted> for Problem {
    fn from(_: BudgetExhausted) -> Problem {
        Problem::no_memory()
    }
}

const FAILED: &str = "the store of limits does not answer, and nothing is decided without it; \
                      come back later";

impl IntoResponse for Problem {
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
        if self.is_last {
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
    fn what_a_client_sent_is_told_again_short_and_printable() {
        for (sent, want) in [
            ("free", "free"),
            ("a\nb\u{1b}[31m\0", "a\\nb\\u{1b}[31m\\0"),
            ("say \"it's\"", "say \"it's\""),
            ("\u{202e}", "\\u{202e}"),
        ] {
            assert_eq!(shown(sent), want);
        }
        assert_eq!(shown(&"x".repeat(64)), "x".repeat(64));
        assert_eq!(shown(&"x".repeat(60_000)), format!("{}…", "x".repeat(64)));
        assert!(shown(&"\0".repeat(60_000)).len() < 80);
        assert!(shown(&"\u{10ffff}".repeat(60_000)).len() < 80);
    }

    #[test]
    fn a_store_that_fails_is_a_503_that_says_when_to_come_back_and_names_no_server() {
        let server = "10.0.0.1:6379".to_owned();
        let again_in = Duration::from_millis(2_001);
        let failure = "refused".to_owned();
        let open = StoreError::BreakerOpen { server: server.clone(), again_in, failure };
        let gone = StoreError::Unreachable { server, problem: "refused".to_owned() };
        let corrupt = StoreError::Corrupt { key: "tollgate:free".to_owned() };
        for (error, want) in [(open, Some("3")), (gone, Some("1")), (corrupt, None)] {
            let problem = Problem::from(Error::from(error));
            assert!(!problem.detail.contains("10.0.0.1"), "{problem:?}");
            let response = problem.into_response();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            let retry_after = response.headers().get(RETRY_AFTER);
            assert_eq!(retry_after.map(|value| value.to_str().unwrap()), want);
        }
    }
}
