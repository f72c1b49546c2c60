//! A client that can send any bytes, and waits without a timeout.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::server::ServerProcess;

pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) struct RawClient {
    connection: SendRequest<PiecewiseBody>,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct CallAnswer {
    pub(crate) http: u16,
    /// The gRPC status, from the headers or the trailers.
    pub(crate) grpc: Option<u16>,
    pub(crate) message: String,
    pub(crate) body: Vec<u8>,
}

/// A body that is sent in pieces, and ends when its sender is dropped.
pub(crate) struct PiecewiseBody(mpsc::UnboundedReceiver<Bytes>);

impl Body for PiecewiseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

pub(crate) fn pieces() -> (mpsc::UnboundedSender<Bytes>, PiecewiseBody) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, PiecewiseBody(receiver))
}

/// Returns a body that is sent in one piece.
pub(crate) fn whole(body: impl Into<Bytes>) -> PiecewiseBody {
    let (sender, pieces) = pieces();
    sender.send(body.into()).unwrap();
    pieces
}

/// Returns a call of the service, with additional headers.
pub(crate) fn call(headers: &[(&str, &str)], body: PiecewiseBody) -> Request<PiecewiseBody> {
    let mut request = Request::post(format!("http://localhost{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body).unwrap()
}

/// Returns a message with its gRPC frame header.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

impl RawClient {
    pub(crate) async fn connect(server: &ServerProcess) -> RawClient {
        let stream = TcpStream::connect(&server.grpc).await.unwrap();
        // Without this option, a message waits 40 ms until the server has acknowledged its headers.
        stream.set_nodelay(true).unwrap();
        let (connection, driver) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(driver);
        RawClient { connection }
    }

    /// Waits until the connection can take another request.
    pub(crate) async fn connection(&mut self) {
        self.connection.ready().await.unwrap();
    }

    pub(crate) fn send(
        &mut self,
        request: Request<PiecewiseBody>,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        self.connection.send_request(request)
    }

    pub(crate) async fn ask(&mut self, request: Request<PiecewiseBody>) -> CallAnswer {
        self.connection().await;
        call_answer(self.send(request).await.unwrap()).await
    }

    pub(crate) async fn ask_message(&mut self, message: &[u8]) -> CallAnswer {
        self.ask(call(&[], whole(framed(message)))).await
    }
}

pub(crate) async fn call_answer(response: Response<Incoming>) -> CallAnswer {
    let (head, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let text = |name: &str| {
        let of = |headers: &HeaderMap| Some(headers.get(name)?.to_str().unwrap().to_owned());
        of(&head.headers).or_else(|| of(&trailers))
    };
    CallAnswer {
        http: head.status.as_u16(),
        grpc: text("grpc-status").map(|code| code.parse().unwrap()),
        message: text("grpc-message").unwrap_or_default().replace("%20", " "),
        body: collected.to_bytes().to_vec(),
    }
}
