//! Extractors of JSON bodies, which bound their length.

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, Request};
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde::de::DeserializeOwned;

use super::ApiProblem;
use super::check_body::is_object;
use crate::body::{UnreadBody, read};
use crate::budget::Budget;

/// A body of at most `MOST` bytes that is declared as JSON.
///
/// A form on another site cannot declare that, so a web page cannot make its visitors' browsers spend limits.
pub(super) struct JsonBody<const MOST: usize>(pub(super) Bytes);

impl<S, const MOST: usize> FromRequest<S> for JsonBody<MOST>
where
    S: Sync,
    Budget: FromRef<S>,
{
    type Rejection = ApiProblem;

    async fn from_request(request: Request, state: &S) -> Result<JsonBody<MOST>, ApiProblem> {
        let headers = request.headers();
        if !is_json(headers) || headers.contains_key(CONTENT_ENCODING) {
            return Err(ApiProblem::not_json());
        }
        let budget = Budget::from_ref(state);
        let read = read(request.into_body(), MOST, &budget, None).await;
        read.map(JsonBody).map_err(unread)
    }
}

/// JSON of at most `MOST` bytes. An empty body of any content type, and `null`, count as `{}`.
pub(super) struct OptionalJson<T, const MOST: usize>(pub(super) T);

impl<S, T: DeserializeOwned + Default, const MOST: usize> FromRequest<S> for OptionalJson<T, MOST>
where
    S: Sync,
    Budget: FromRef<S>,
{
    type Rejection = ApiProblem;

    async fn from_request(
        request: Request,
        state: &S,
    ) -> Result<OptionalJson<T, MOST>, ApiProblem> {
        let is_json = is_json(request.headers());
        let is_json = is_json && !request.headers().contains_key(CONTENT_ENCODING);
        let body = read(request.into_body(), MOST, &Budget::from_ref(state), None).await;
        match &*body.map_err(unread)? {
            b"" => Ok(OptionalJson(T::default())),
            _ if !is_json => Err(ApiProblem::not_json()),
            body => decode(body).map(OptionalJson),
        }
    }
}

fn decode<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiProblem> {
    if body.trim_ascii() == b"null" {
        return Ok(T::default());
    }
    if !is_object(body) {
        return Err(ApiProblem::bad_request(
            "the body is not a JSON object; send one such as {\"config\":{}}, or no body",
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let decoded = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| ApiProblem::at(&error.path().to_string(), error.inner()))?;
    json.end().map_err(|error| ApiProblem::in_json(&error))?;
    Ok(decoded)
}

/// Returns whether the content type is `application/json`, with any parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let essence = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Makes the problem of a body that was not read to its end, after which the connection is closed.
fn unread(why: UnreadBody) -> ApiProblem {
    ApiProblem::from(why).closing()
}

impl From<UnreadBody> for ApiProblem {
    fn from(unread: UnreadBody) -> ApiProblem {
        match unread {
            UnreadBody::TooLong { .. } => {
                ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, unread.to_string())
            }
            UnreadBody::OutOfMemory => ApiProblem::out_of_memory(),
            UnreadBody::Incomplete => ApiProblem::bad_request(unread.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_the_content_type_application_json_is_json() {
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
