//! Why there is no answer (RFC 9457).

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use tollgate::{Error, StoreError};

/// Why there is no answer: what is wrong, and what to do.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        let (kind, status, detail) = ("about:blank", status.as_u16(), detail.into());
        Problem { kind, title, status, detail, retry_after: None }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The same in other words.
    pub(crate) fn saying(self, detail: impl Into<String>) -> Problem {
        Problem { detail: detail.into(), ..self }
    }

    pub(crate) fn unknown_limit(name: &str) -> Problem {
        let detail = format!("there is no limit `{}`; GET /v1/limits lists them", shown(name));
        Problem::new(StatusCode::NOT_FOUND, detail)
    }
}

/// What a client sent, short enough and printable.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    if text.chars().nth(64).is_some() {
        shown.push('…');
    }
    shown
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match &error {
            // What went wrong is for the log: it may name servers.
            Error::Store(problem) => {
                let detail = "the store of limits does not answer, and this limit is closed then";
                let retry_after = match problem {
                    StoreError::BreakerOpen { again_in, .. } => *again_in,
                    _ => Duration::from_secs(1),
                };
                let retry_after = Some(retry_after);
                Problem { retry_after, ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
            }
            _ => Problem::bad_request(error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(wait) = self.retry_after {
            let seconds = wait.as_micros().div_ceil(1_000_000).max(1);
            if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
                headers.insert(RETRY_AFTER, seconds);
            }
        }
        response
    }
}
