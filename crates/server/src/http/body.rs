//! Bodies of requests: JSON, and no longer than they may be.

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde::de::DeserializeOwned;

use super::Problem;
use super::asked::is_object;
use crate::body::{UnreadBody, read};
use crate::budget::Budget;

/// A body that says it is JSON, of at most `MOST` bytes.
///
/// A form that a browser sends by itself cannot say so: nobody's page charges for its visitors.
pub(super) struct JsonBody<const MOST: usize>(pub(super) Bytes);

impl<S, const MOST: usize> FromRequest<S> for JsonBody<MOST>
where
    S: Sync,
    Budget: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<JsonBody<MOST>, Problem> {
        let headers = request.headers();
        if !is_json(headers) || headers.contains_key(CONTENT_ENCODING) {
            return Err(Problem::no_json());
        }
        let budget = Budget::from_ref(state);
        let read = read(request.into_body(), MOST, &budget, None).await;
        read.map(JsonBody).map_err(unread)
    }
}

/// JSON of at most `MOST` bytes; or nothing, of whatever type, or `null`: then it is as if it were `{}`.
pub(super) struct OptionalJson<T, const MOST: usize>(pub(super) T);

impl<S, T: DeserializeOwned + Default, const MOST: usize> FromRequest<S> for OptionalJson<T, MOST>
where
    S: Sync,
    Budget: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<OptionalJson<T, MOST>, Problem> {
        let is_json = is_json(request.headers());
        let is_json = is_json && !request.headers().contains_key(CONTENT_ENCODING);
        let body = read(request.into_body(), MOST, &Budget::from_ref(state), None).await;
        match &*body.map_err(unread)? {
            b"" => Ok(OptionalJson(T::default())),
            _ if !is_json => Err(Problem::no_json()),
            body => decoded(body).map(OptionalJson),
        }
    }
}

fn decoded<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Problem> {
    if body.trim_ascii() == b"null" {
        return Ok(T::default());
    }
    if !is_object(body) {
        return Err(Problem::bad_request("the body is no object; send {\"config\":{}}, or none"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let decoded = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| Problem::at(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| Problem::in_json(&error))?;
    Ok(decoded)
}

/// `application/json`, whatever its parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// The rest of the body is not read, so the connection ends.
fn unread(why: UnreadBody) -> Problem {
    Problem::from(why).unread()
}

impl From<UnreadBody> for Problem {
    fn from(unread: UnreadBody) -> Problem {
        match unread {
            UnreadBody::TooLong { .. } => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, unread.to_string())
            }
            UnreadBody::OutOfMemory => Problem::no_memory(),
            UnreadBody::Incomplete => Problem::bad_request(unread.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_what_says_json_is_json() {
        for (content_type, want) in [
            ("application/json", true),
            ("Application/JSON ; charset=utf-8", true),
            ("application/jsonp", false),
            ("application/problem+json", false),
            ("text/plain", false),
            ("text/plain; application/json", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(is_json(&headers), want, "{content_type}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
