//! Bodies of requests: JSON, and no longer than they may be.

use std::sync::Arc;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, Request};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde::de::DeserializeOwned;

use super::Problem;
use super::asked::is_object;
use crate::budget::{Budget, MemoryCharge, SMALL_BYTES};
use crate::served::Served;

/// A body that says it is JSON, of at most `MOST` bytes.
///
/// A form that a browser sends by itself cannot say so: nobody's page charges for its visitors.
pub(super) struct JsonBody<const MOST: usize>(pub(super) Bytes);

impl<const MOST: usize> FromRequest<Arc<Served>> for JsonBody<MOST> {
    type Rejection = Problem;

    async fn from_request(
        request: Request,
        served: &Arc<Served>,
    ) -> Result<JsonBody<MOST>, Problem> {
        let headers = request.headers();
        if !is_json(headers) || headers.contains_key(CONTENT_ENCODING) {
            return Err(Problem::no_json());
        }
        let read = read(request.into_body(), MOST, &served.budget, None).await;
        read.map(JsonBody).map_err(Problem::unread)
    }
}

/// JSON of at most `MOST` bytes; or nothing, of whatever type, or `null`: then it is as if it were `{}`.
pub(super) struct OptionalJson<T, const MOST: usize>(pub(super) T);

impl<T: DeserializeOwned + Default, const MOST: usize> FromRequest<Arc<Served>>
    for OptionalJson<T, MOST>
{
    type Rejection = Problem;

    async fn from_request(
        request: Request,
        served: &Arc<Served>,
    ) -> Result<OptionalJson<T, MOST>, Problem> {
        let is_json = is_json(request.headers());
        let is_json = is_json && !request.headers().contains_key(CONTENT_ENCODING);
        let body = read(request.into_body(), MOST, &served.budget, None).await;
        match &*body.map_err(Problem::unread)? {
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

/// Reads a whole body of at most `most` bytes. A body whose declared length exceeds that is refused unread.
///
/// The part above [`SMALL_BYTES`] is taken from the budget as it arrives, whatever length was declared. A body that
/// does not arrive at once is also charged to `small`, if there is such a charge.
pub(crate) async fn read<B>(
    mut body: B,
    most: usize,
    budget: &Budget,
    small: Option<&mut MemoryCharge>,
) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > most as u64 {
        return Err(Problem::too_long(most));
    }
    let first = next(&mut body).await?.unwrap_or_default();
    if first.len() > most {
        return Err(Problem::too_long(most));
    }
    // Most bodies arrive whole: nothing is copied.
    if body.is_end_stream() && first.len() <= SMALL_BYTES {
        return Ok(first);
    }
    if let Some(small) = small {
        small.grow(SMALL_BYTES)?;
    }
    let mut held = budget.held();
    held.grow_to(first.len())?;
    let mut all = Vec::from(first);
    while let Some(data) = next(&mut body).await? {
        // OK because neither is longer than a body in memory.
        let length = all.len() + data.len();
        if length > most {
            return Err(Problem::too_long(most));
        }
        if length > all.capacity() {
            // Double the capacity, so that a body in many pieces is not copied once for each piece.
            let room = (2 * length).max(SMALL_BYTES).min(most);
            held.grow_to(room)?;
            all.reserve_exact(room - all.len());
        }
        all.extend_from_slice(&data);
    }
    match all.capacity() <= SMALL_BYTES {
        true => Ok(all.into()),
        false => Ok(held.bytes(all)),
    }
}

/// What comes next; trailers say nothing.
async fn next<B>(body: &mut B) -> Result<Option<Bytes>, Problem>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| unread())?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// One that comes too slowly has no answer: its connection is closed.
fn unread() -> Problem {
    Problem::bad_request("the body broke off, or its chunks are malformed; send all of it")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Body;
    use axum::response::IntoResponse;
    use hyper::StatusCode;
    use hyper::body::Frame;
    use hyper::header::HeaderValue;

    use super::*;

    /// A body that comes in pieces, and then to an end or to nothing.
    struct Pieces(VecDeque<io::Result<&'static [u8]>>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            let data = |piece| Frame::data(Bytes::from_static(piece));
            Poll::Ready(self.0.pop_front().map(|piece| piece.map(data)))
        }
    }

    fn read_all(pieces: Vec<io::Result<&'static [u8]>>, most: usize) -> Result<Bytes, StatusCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let budget = Budget::new(4 << 20);
        let read = runtime.block_on(read(Body::new(Pieces(pieces.into())), most, &budget, None));
        read.map_err(|problem| problem.into_response().status())
    }

    #[test]
    fn pieces_come_together_up_to_the_bound() {
        assert_eq!(read_all(vec![], 4).unwrap(), "");
        assert_eq!(read_all(vec![Ok(b"ab"), Ok(b""), Ok(b"cd")], 4).unwrap(), "abcd");
        let one_more = read_all(vec![Ok(b"ab"), Ok(b"cd"), Ok(b"e")], 4);
        assert_eq!(one_more, Err(StatusCode::PAYLOAD_TOO_LARGE));
        assert_eq!(read_all(vec![Ok(b"abcde")], 4), Err(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[test]
    fn a_million_pieces_are_not_copied_for_each_of_them() {
        // That would be 500 GB.
        let pieces = (0..1 << 20).map(|_| Ok(&b" "[..])).collect();
        assert_eq!(read_all(pieces, 1 << 20).unwrap().len(), 1 << 20);
    }

    #[test]
    fn what_is_not_small_is_paid_for_as_it_comes() {
        let kib =
            |count: usize| (0..count).map(|_| Ok(&[b' '; 1 << 10][..])).collect::<VecDeque<_>>();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let nothing = Budget::new(0);
        let read = |pieces, budget| {
            let read = read(Body::new(Pieces(pieces)), 1 << 20, budget, None);
            let read = runtime.block_on(read);
            read.map_err(|problem| problem.into_response().status())
        };
        assert_eq!(read(kib(4), &nothing).unwrap().len(), 4 << 10);
        assert_eq!(read(kib(5), &nothing), Err(StatusCode::SERVICE_UNAVAILABLE));
        let at_once = VecDeque::from([Ok(&[b' '; 5 << 10][..])]);
        assert_eq!(read(at_once, &nothing), Err(StatusCode::SERVICE_UNAVAILABLE));

        let one = Budget::new(1 << 20);
        let body = read(kib(1024), &one).unwrap();
        assert_eq!(body.len(), 1 << 20);
        assert_eq!(read(kib(5), &one), Err(StatusCode::SERVICE_UNAVAILABLE));
        drop(body);
        assert_eq!(read(kib(1024), &one).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_body_that_breaks_off_is_its_clients_fault() {
        let gone = || Err(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(read_all(vec![Ok(b"ab"), gone()], 4), Err(StatusCode::BAD_REQUEST));
    }

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
