//! One call of `ShouldRateLimit`: receives the message, decides it and answers. This replaces tonic's handling of unary
//! calls, with tighter bounds on what a client can send.

use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tonic::{Code, Status};

use super::answer::{COVERED_BYTES, CallReply};
use super::body::CallBody;
use super::rate_limit::{CallOutcome, RateLimitService};
use super::timeout;
use crate::body::{self, UnreadBody};
use crate::budget::{Budget, MemoryCharge, SMALL_BYTES};

/// The most bytes of a message with its prefix. This is enough for the most descriptors, each of which may repeat all
/// headers of a client, and Envoy accepts 60 KiB of headers. So a client cannot make a message that is too long, get an
/// error, and be let pass because of it.
const MAX_BYTES: usize = 4 << 20;

/// The length of a message's prefix: one byte says whether the message is compressed, four have its length.
const PREFIX_BYTES: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The response to a call, and the HTTP status under which the call is counted.
pub(super) struct CallResponse {
    pub(super) response: Response<CallReply>,
    pub(super) status: StatusCode,
}

/// Receives the message of a call, decides it, and returns the response. The charge grows while a message is
/// incomplete.
pub(super) async fn should_rate_limit(
    envoy: &RateLimitService,
    request: Request<CallBody>,
    max_time: Duration,
    began: Instant,
    charge: &mut MemoryCharge,
) -> CallResponse {
    let (head, body) = request.into_parts();
    if let Err(status) = validate(&head.method, &head.headers) {
        return not_grpc(status);
    }
    let time = timeout::of_caller(&head.headers);
    // Dropped before the body is read, so that the headers are not kept in memory during that time.
    drop(head);
    let answered = match read(&envoy.budget, body, max_time, charge).await {
        Ok(body) => {
            charge.stop_waiting();
            let time_left = time.map(|time| time.saturating_sub(began.elapsed()));
            decide(envoy, &body, time_left).await
        }
        Err(error) => Err(error),
    };
    match answered {
        Ok((message, outcome)) => CallResponse {
            response: answer(message),
            status: match outcome {
                CallOutcome::Decided => StatusCode::OK,
                CallOutcome::Undecided => StatusCode::SERVICE_UNAVAILABLE,
            },
        },
        Err(error) => {
            let status = counted_as(error.code());
            let response: Response<()> = error.into_http();
            CallResponse { response: response.map(|()| CallReply::Nothing), status }
        }
    }
}

/// Returns the HTTP status under which a call with a gRPC error is counted.
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
        // A short body is copied. It shares the buffer that it was read into, and without the copy that whole buffer
        // would stay in memory during the wait for the store.
        Ok(Ok(body)) if body.len() <= SMALL_BYTES => Ok(Bytes::copy_from_slice(&body)),
        Ok(read) => read.map_err(unread),
        Err(_) => Err(too_slow(max_time)),
    }
}

/// Returns the error for a message that did not arrive in time.
pub(super) fn too_slow(max_time: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "the message was not complete within {max_time:?}; send it without pauses"
    ))
}

/// Decides the message in a body, and returns the body of the answer.
async fn decide(
    envoy: &RateLimitService,
    body: &[u8],
    time_left: Option<Duration>,
) -> Result<(Vec<u8>, CallOutcome), Status> {
    let message = message(body)?;
    let mut to = Vec::with_capacity(COVERED_BYTES);
    to.resize(PREFIX_BYTES, 0);
    let outcome = envoy.answer(message, time_left, &mut to).await;
    let outcome = outcome.map_err(Status::invalid_argument)?;
    // OK because the prefix is there, and no answer has 4 GiB.
    let length = (to.len() - PREFIX_BYTES) as u32;
    to[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok((to, outcome))
}

/// Returns an HTTP status as the error if a request is not gRPC.
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

/// Makes the response to a request that is not gRPC.
fn not_grpc(status: StatusCode) -> CallResponse {
    let mut response = Response::new(CallReply::Nothing);
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    }
    CallResponse { response, status }
}

/// Returns the message in a body.
fn message(body: &[u8]) -> Result<&[u8], Status> {
    let Some((&[compressed, ref length @ ..], message)) = body.split_first_chunk::<PREFIX_BYTES>()
    else {
        let problem =
            format!("the body has {} bytes and no complete prefix; send one message", body.len());
        return Err(Status::invalid_argument(problem));
    };
    if compressed != 0 {
        return Err(Status::unimplemented("the message is compressed; send it uncompressed"));
    }
    let length = u32::from_be_bytes(*length) as usize;
    if length != message.len() {
        let problem = format!(
            "the prefix says that the message has {length} bytes, but {} arrived; send one complete message",
            message.len()
        );
        return Err(Status::invalid_argument(problem));
    }
    Ok(message)
}

/// Returns the error for a body that was not read.
fn unread(why: UnreadBody) -> Status {
    match why {
        UnreadBody::TooLong { most } => Status::invalid_argument(format!(
            "the message is too long; send at most {most} bytes: fewer descriptors, or shorter values"
        )),
        UnreadBody::OutOfMemory => Status::resource_exhausted(why.to_string()),
        UnreadBody::Incomplete => Status::invalid_argument(why.to_string()),
    }
}

fn answer(message: Vec<u8>) -> Response<CallReply> {
    let mut response = Response::new(CallReply::Message(message.into()));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}
