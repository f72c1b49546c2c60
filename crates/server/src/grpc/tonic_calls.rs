//! Calls of the services that tonic implements: health and reflection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use h2::SendStream;
use h2::server::SendResponse;
use hyper::body::{Body as _, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, TE};
use hyper::{Request, Response, Uri};
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

use super::answer::{AnswerBytes, CallEnd};
use super::body::CallBody;
use super::call;
use crate::budget::MemoryCharge;

/// The memory of such a call, besides the memory that every call needs. A health watch lasts as long as its connection.
const TONIC_CALL_BYTES: usize = 12 << 10;

/// The headers that matter to these services. Others are dropped at once, so that a call keeps none of them.
const HEADERS: [HeaderName; 5] = [
    CONTENT_TYPE,
    TE,
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static("grpc-encoding"),
    HeaderName::from_static("grpc-accept-encoding"),
];

/// The longest value of such a header that is kept.
const MAX_HEADER_BYTES: usize = 256;

/// Answers a call, and sends the answer.
pub(super) async fn answer(
    mut routes: Routes,
    request: Request<CallBody>,
    mut respond: SendResponse<AnswerBytes>,
    max_time: Duration,
    mut charge: MemoryCharge,
) -> CallEnd {
    let is_charged = charge.grow(TONIC_CALL_BYTES).is_ok();
    let answered = async {
        if !is_charged {
            return Ok(Status::resource_exhausted("out of memory for calls; try again").into_http());
        }
        let Some(request) = with_few_headers(request) else {
            return Ok(Status::unimplemented("unknown path").into_http());
        };
        match timeout(max_time, routes.call(request.map(Body::new))).await {
            Ok(answered) => answered,
            Err(_) => Ok(call::too_slow(max_time).into_http()),
        }
    };
    let mut answered = pin!(answered);
    let answered = poll_fn(|context| match respond.poll_reset(context) {
        Poll::Ready(reset) => Poll::Ready(Err(CallEnd::of(&reset))),
        Poll::Pending => answered.as_mut().poll(context).map(Ok),
    })
    .await;
    match answered {
        Err(end) => end,
        Ok(answered) => send(answered, respond, &charge).await,
    }
}

/// Copies the parts of a request that the services use. Returns `None` if its path is invalid.
fn with_few_headers(request: Request<CallBody>) -> Option<Request<CallBody>> {
    let (head, body) = request.into_parts();
    // Copied, because the parts from h2 share the buffer that they were read into, and would keep that whole buffer.
    let uri = Uri::try_from(head.uri.path()).ok()?;
    let mut few = Request::new(body);
    *few.uri_mut() = uri;
    *few.method_mut() = head.method;
    *few.version_mut() = head.version;
    for name in HEADERS {
        let value = head.headers.get(&name).map_or(&b""[..], HeaderValue::as_bytes);
        if (1..=MAX_HEADER_BYTES).contains(&value.len())
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            few.headers_mut().insert(name, value);
        }
    }
    Some(few)
}

/// Sends an answer, part by part.
async fn send(
    answered: Result<Response<Body>, Infallible>,
    mut respond: SendResponse<AnswerBytes>,
    charge: &MemoryCharge,
) -> CallEnd {
    let Ok(response) = answered;
    let (head, mut body) = response.into_parts();
    let is_over = body.is_end_stream();
    let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), is_over) else {
        return CallEnd::Lost;
    };
    if is_over {
        return CallEnd::Sent;
    }
    loop {
        let frame = poll_fn(|context| match stream.poll_reset(context) {
            Poll::Ready(reset) => Poll::Ready(Err(CallEnd::of(&reset))),
            Poll::Pending => Pin::new(&mut body).poll_frame(context).map(Ok),
        });
        let frame = match frame.await {
            Err(end) => return end,
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                stream.send_reset(h2::Reason::INTERNAL_ERROR);
                return CallEnd::Sent;
            }
            Ok(None) => {
                let _ = stream.send_data(AnswerBytes::new(Bytes::new(), None), true);
                return CallEnd::Sent;
            }
        };
        if let Some(end) = send_frame(frame, &mut stream, charge).await {
            return end;
        }
    }
}

/// Sends a part of an answer once the client has room for it. Returns how the call ended if this was the last part.
async fn send_frame(
    frame: Frame<Bytes>,
    stream: &mut SendStream<AnswerBytes>,
    charge: &MemoryCharge,
) -> Option<CallEnd> {
    let data = match frame.into_data() {
        Ok(data) => data,
        Err(frame) => {
            let trailers = frame.into_trailers().unwrap_or_default();
            return Some(stream.send_trailers(trailers).map_or(CallEnd::Lost, |()| CallEnd::Sent));
        }
    };
    let mut part = charge.another();
    if part.grow(data.len()).is_err() {
        stream.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
        return Some(CallEnd::Sent);
    }
    stream.reserve_capacity(data.len());
    let end = poll_fn(|context| match stream.poll_reset(context) {
        Poll::Ready(reset) => Poll::Ready(Some(CallEnd::of(&reset))),
        Poll::Pending if stream.capacity() > 0 || data.is_empty() => Poll::Ready(None),
        Poll::Pending => stream.poll_capacity(context).map(|room| match room {
            Some(Ok(_)) => None,
            _ => Some(CallEnd::Lost),
        }),
    });
    if let Some(end) = end.await {
        return Some(end);
    }
    stream.send_data(AnswerBytes::new(data, Some(part)), false).err().map(|_| CallEnd::Lost)
}
