//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tower_service::Service;

use super::connection_table::ConnectionSlot;
use super::reason::CloseReason;
use super::watch::{ClientWatch, DeadlineCheck, Watch};
use super::wire::{AnswerBody, MAX_HEAD_BYTES, ObservedSocket, arriving};
use crate::lifecycle::{Lifecycle, Phase};

/// The most bytes that hyper buffers of a request, and of an answer.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// The time and the number of bytes for which the listener still reads from a client after the last answer.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 4 * 1024 * 1024;

/// The connection that a request came on.
pub struct Connection<'c> {
    peer: SocketAddr,
    watch: &'c Arc<Watch>,
}

impl Connection<'_> {
    /// Returns the address at the other end of the socket: the client's, or that of a proxy.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns a watch on the client: a delayed answer ends when the client leaves.
    pub fn client_watch(&self) -> ClientWatch {
        ClientWatch::new(self.watch)
    }
}

/// Serves one connection.
pub(super) async fn connection<S, D>(
    stream: TcpStream,
    peer: SocketAddr,
    service: S,
    describe: D,
    lifecycle: Lifecycle,
    place: ConnectionSlot,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
    D: Fn(&mut Request<Body>, &Connection<'_>),
{
    let _open = lifecycle.connected();
    // Without this an answer may wait for the acknowledgement of the previous one. An error does not matter.
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let mut request = request.map(|body| arriving(body, &place.watch));
        describe(&mut request, &Connection { peer, watch: &place.watch });
        answer(service.clone(), request, &place.watch, &lifecycle)
    });
    let mut connection = http1::Builder::new()
        // A client may close its side after its last request and wait: a charge is then answered, and
        // counted.
        .half_close(true)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(
            TokioIo::new(ObservedSocket::new(
                stream,
                Arc::clone(&place.watch),
                Arc::clone(&place.account),
            )),
            service,
        );
    match within_bounds(&mut connection, &place.watch).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) if place.account.is_closed() => {
            place.count_closed(CloseReason::Memory);
            return;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection failed"),
        Err(reason) => {
            let name = reason.map_or("closing", CloseReason::name);
            tracing::debug!(%peer, reason = name, "a connection is closed");
            reason.inspect(|reason| place.count_closed(*reason));
            return;
        }
    }
    if let Some(stream) = connection.into_parts().io.into_inner().into_open_stream()
        && place.watch.with(|progress| progress.leaves(Instant::now()))
    {
        let _ = timeout(LINGER_TIME, drain_input(stream)).await;
    }
}

/// Runs a connection until it ends, or until its deadline passes.
async fn within_bounds<C: Future + Unpin>(
    connection: &mut C,
    watch: &Watch,
) -> Result<C::Output, Option<CloseReason>> {
    poll_fn(|context| {
        watch.runs_in(context.waker());
        Poll::Ready(())
    })
    .await;
    let mut timer = pin!(sleep_until(Instant::now().into()));
    poll_fn(|context| {
        // First, because bytes that have been received by now are in time.
        if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(context) {
            return Poll::Ready(Ok(ended));
        }
        if watch.learn_of_close() {
            timer.as_mut().reset(Instant::now().into());
        }
        while timer.as_mut().poll(context).is_ready() {
            match watch.check_deadline(Instant::now()) {
                DeadlineCheck::Passed(reason) => return Poll::Ready(Err(reason)),
                DeadlineCheck::AgainAt(at) => timer.as_mut().reset(at.into()),
            }
        }
        Poll::Pending
    })
    .await
}

/// Answers one request.
fn answer<S>(
    mut service: S,
    request: Request<Body>,
    watch: &Arc<Watch>,
    lifecycle: &Lifecycle,
) -> impl Future<Output = Result<Response<AnswerBody>, Infallible>>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let answer = service.call(request);
    async move {
        let mut response = answer.await?;
        if lifecycle.phase() >= Phase::Draining {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| AnswerBody::new(body, Arc::clone(watch))))
    }
}

/// Reads and drops what a client still sends, until it closes. A socket that is closed with unread bytes is reset, and the
/// client may then lose the last answer.
async fn drain_input(mut stream: TcpStream) {
    if poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.is_err() {
        return;
    }
    let mut left = LINGER_BYTES;
    while stream.readable().await.is_ok() {
        // Not kept across the wait, which would make the task of every connection that much larger.
        let mut bytes = [0; 8 * 1024];
        match stream.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(count) if count >= left => return,
            Ok(count) => left -= count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
