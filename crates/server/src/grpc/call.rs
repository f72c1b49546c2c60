//! One call of `ShouldRateLimit`: a message is received, decided and answered. Replaces tonic's handling of a unary
//! call, with bounds of its own on what a client can send.

use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tonic::{Code, Status};

use super::answer::{Answer, COVERED_BYTES};
use super::body::CallBody;
use super::rate_limit::{Became, RateLimitService};
use super::timeout;
use crate::body::{self, UnreadBody};
use crate::budget::{Budget, MemoryCharge, SMALL_BYTES};

/// The most bytes of a message, with the five before it: as many as the most descriptors have that each repeat all
/// headers of a client, which Envoy takes 60 KiB of. A client cannot make it longer, be told an error, and so pass.
const MAX_BYTES: usize = 4 << 20;

/// Whether a message is compressed, and its length.
const PREFIX_BYTES: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// An answer, and what is counted of it: HTTP's words for it.
pub(super) struct Answered {
    pub(super) response: Response<Answer>,
    pub(super) status: StatusCode,
}

/// Receives a call's message, decides it, and returns the answer. The charge grows with a message that is incomplete.
pub(super) async fn should_rate_limit(
    envoy: &RateLimitService,
    request: Request<CallBody>,
    max_time: Duration,
    began: Instant,
    charge: &mut MemoryCharge,
) -> Answered {
    let (head, body) = request.into_parts();
    if let Err(status) = validate(&head.method, &head.headers) {
        return not_grpc(status);
    }
    let time = timeout::of_caller(&head.headers);
    // Before the body is read: headers are not kept for as long as that takes.
    drop(head);
    let answered = match read(&envoy.budget, body, max_time, charge).await {
        Ok(body) => {
            charge.stop_waiting();
            let time_left = time.map(|time| time.saturating_sub(began.elapsed()));
            decided(envoy, &body, time_left).await
        }
        Err(error) => Err(error),
    };
    match answered {
        Ok((message, became)) => Answered {
            response: answer(message),
            status: match became {
                Became::Decided => StatusCode::OK,
                Became::Undecided => StatusCode::SERVICE_UNAVAILABLE,
            },
        },
        Err(error) => {
            let status = counted_as(error.code());
            let response: Response<()> = error.into_http();
            Answered { response: response.map(|()| Answer::Nothing), status }
        }
    }
}

/// In HTTP's words.
fn counted_as(code: Code) -> StatusCode {
    match code {
        Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Reads the whole body, if it arrives in time.
async fn read(
    budget: &Budget,
    body: CallBody,
    max_time: Duration,
    charge: &mut MemoryCharge,
) -> Result<Bytes, Status> {
    let read = body::read(body, MAX_BYTES, budget, Some(charge));
    match tokio::time::timeout(max_time, read).await {
        // Copied if it is short: it shares the buffer that it was read into, and would keep all of that while the store
        // is waited for.
        Ok(Ok(body)) if body.len() <= SMALL_BYTES => Ok(Bytes::copy_from_slice(&body)),
        Ok(read) => read.map_err(unread),
        Err(_) => Err(too_slow(max_time)),
    }
}

/// A message that did not come.
pub(super) fn too_slow(max_time: Duration) -> Status {
    Status::deadline_exceeded(format!("no whole message within {max_time:?}; send it at once"))
}

/// The answer to a message, as it is in a body.
async fn decided(
    envoy: &RateLimitService,
    body: &[u8],
    time_left: Option<Duration>,
) -> Result<(Vec<u8>, Became), Status> {
    let message = message(body)?;
    let mut to = Vec::with_capacity(COVERED_BYTES);
    to.resize(PREFIX_BYTES, 0);
    let became = envoy.answer(message, time_left, &mut to).await;
    let became = became.map_err(Status::invalid_argument)?;
    // OK because the prefix is there, and no answer has 4 GiB.
    let length = (to.len() - PREFIX_BYTES) as u32;
    to[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok((to, became))
}

/// HTTP's own answer to what is no gRPC.
fn validate(method: &Method, headers: &HeaderMap) -> Result<(), StatusCode> {
    if method != Method::POST {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    match kind.strip_prefix(b"application/grpc") {
        Some([] | [b'+' | b';', ..]) => Ok(()),
        _ => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE),
    }
}

fn not_grpc(status: StatusCode) -> Answered {
    let mut response = Response::new(Answer::Nothing);
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    Answered { response, status }
}

/// The message of a body that has one.
fn message(body: &[u8]) -> Result<&[u8], Status> {
    let Some((&[compressed, ref length @ ..], message)) = body.split_first_chunk::<PREFIX_BYTES>()
    else {
        let problem = format!("the body has {} bytes, which are no message; send one", body.len());
        return Err(Status::invalid_argument(problem));
    };
    if compressed != 0 {
        return Err(Status::unimplemented("the message is compressed; send it as it is"));
    }
    let length = u32::from_be_bytes(*length) as usize;
    if length != message.len() {
        let problem = format!(
            "the message says that it has {length} bytes, and {} came; send one message, whole",
            message.len()
        );
        return Err(Status::invalid_argument(problem));
    }
    Ok(message)
}

/// Why there is no body.
fn unread(why: UnreadBody) -> Status {
    match why {
        UnreadBody::TooLong { most } => Status::invalid_argument(format!(
            "the message is too long; send at most {most} bytes: fewer descriptors, or shorter values"
        )),
        UnreadBody::OutOfMemory => Status::resource_exhausted(why.to_string()),
        UnreadBody::Incomplete => Status::invalid_argument(why.to_string()),
    }
}

fn answer(message: Vec<u8>) -> Response<Answer> {
    let mut response = Response::new(Answer::Message(message.into()));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}
