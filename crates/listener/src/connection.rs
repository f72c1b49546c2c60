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

use super::reason::Reason;
use super::room::Place;
use super::watch::{Hold, Look, Watch};
use super::wire::{Leaving, MAX_HEAD_BYTES, Wire, arriving};
use crate::lifecycle::{Lifecycle, Phase};

/// The most that hyper keeps of what was read, and of what is to be written.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// How long, and for how many bytes, a client is heard out that has its last answer.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LAST_WORDS_BYTES: usize = 4 * 1024 * 1024;

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

    /// Returns what ends the request when its client leaves, for an answer that is held back.
    pub fn hold(&self) -> Hold {
        Hold::new(self.watch)
    }
}

/// Serves one connection.
pub(super) async fn connection<S, D>(
    stream: TcpStream,
    peer: SocketAddr,
    service: S,
    describe: D,
    lifecycle: Lifecycle,
    place: Place,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
    D: Fn(&mut Request<Body>, &Connection<'_>),
{
    let _open = lifecycle.connected();
    // Without it an answer may wait for the client's acknowledgement of the one before; with an error, so be it.
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let mut request = request.map(|body| arriving(body, &place.watch));
        describe(&mut request, &Connection { peer, watch: &place.watch });
        answer(service.clone(), request, &place.watch, &lifecycle)
    });
    let mut connection = http1::Builder::new()
        // Who has sent all it has to say may close its side and wait; and what is charged is told, and counted.
        .half_close(true)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(MAX_BUFFER_BYTES)
        .serve_connection(
            TokioIo::new(Wire::new(stream, Arc::clone(&place.watch), Arc::clone(&place.account))),
            service,
        );
    match within_bounds(&mut connection, &place.watch).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) if place.account.is_closed() => {
            place.count_closed(Reason::Memory);
            return;
        }
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection failed"),
        Err(reason) => {
            let name = reason.map_or("closing", Reason::name);
            tracing::debug!(%peer, reason = name, "a connection is closed");
            reason.inspect(|reason| place.count_closed(*reason));
            return;
        }
    }
    if let Some(stream) = connection.into_parts().io.into_inner().into_open_stream()
        && place.watch.with(|progress| progress.leaves(Instant::now()))
    {
        let _ = timeout(LAST_WORDS, hear_out(stream)).await;
    }
}

/// Runs a connection until it ends, or until one of its bounds is up.
async fn within_bounds<C: Future + Unpin>(
    connection: &mut C,
    watch: &Watch,
) -> Result<C::Output, Option<Reason>> {
    poll_fn(|context| {
        watch.runs_in(context.waker());
        Poll::Ready(())
    })
    .await;
    let mut timer = pin!(sleep_until(Instant::now().into()));
    poll_fn(|context| {
        // First: what has arrived by now is in time.
        if let Poll::Ready(ended) = Pin::new(&mut *connection).poll(context) {
            return Poll::Ready(Ok(ended));
        }
        if watch.hears_last_call() {
            timer.as_mut().reset(Instant::now().into());
        }
        while timer.as_mut().poll(context).is_ready() {
            match watch.look(Instant::now()) {
                Look::Up(reason) => return Poll::Ready(Err(reason)),
                Look::AgainAt(at) => timer.as_mut().reset(at.into()),
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
) -> impl Future<Output = Result<Response<Leaving>, Infallible>>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let answer = service.call(request);
    async move {
        let mut response = answer.await?;
        if lifecycle.phase() >= Phase::Draining {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(|body| Leaving::new(body, Arc::clone(watch))))
    }
}

/// Reads what a client still sends, until it closes. A socket that is closed before it was read to its end is reset,
/// and the client may lose the answer that told it what was wrong.
async fn hear_out(mut stream: TcpStream) {
    if poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.is_err() {
        return;
    }
    let mut left = LAST_WORDS_BYTES;
    while stream.readable().await.is_ok() {
        // Not kept while it waits, which would make every connection that much larger.
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
