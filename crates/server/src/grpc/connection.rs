//! Connections to the gRPC port: not too many, and none that stays silent.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, Write};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::calls::Calls;
use super::{MAX_AGE, MAX_AGE_APART_S, MAX_AGE_GRACE};
use crate::lifecycle::{self, Lifecycle, Phase};
use crate::listener::{Bounds, Place, Reason, Room};
use crate::served::Served;

/// What every connection of HTTP/2 begins with is so long.
const PREFACE_BYTES: usize = 24;

/// Serves connections until the server closes, and everything that is in flight then.
pub(super) async fn serve(listener: TcpListener, bounds: Bounds, served: &Served, calls: Calls) {
    let Served { lifecycle, grpc_connections, .. } = served;
    let mut room = Room::new(bounds, Arc::clone(grpc_connections));
    let mut open = JoinSet::new();
    let http2 = super::http2();
    let accepted = async {
        loop {
            let connection = accept(&listener, &bounds, lifecycle, &mut room).await;
            let (calls, lifecycle) = (calls.clone(), lifecycle.clone());
            open.spawn(keep(http2.serve_connection(TokioIo::new(connection), calls), lifecycle));
            // Those that have ended are forgotten.
            while open.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = accepted => {}
        () = lifecycle.reached(Phase::Closing) => {}
    }
    drop(listener);
    // Also if one has panicked.
    while open.join_next().await.is_some() {}
}

/// The next connection for which there is room before long.
async fn accept(
    listener: &TcpListener,
    bounds: &Bounds,
    lifecycle: &Lifecycle,
    room: &mut Room,
) -> Connection {
    let stream = loop {
        match listener.accept().await {
            Ok((stream, _)) => break stream,
            Err(error) => room.after_accept_error(&error).await,
        }
    };
    // Answers are small. A connection that cannot be told so is about to end.
    let _ = stream.set_nodelay(true);
    let place = room.enter().await;
    let deadline = Box::pin(tokio::time::sleep(bounds.first_byte));
    let beginning = Some(Beginning { left_bytes: PREFACE_BYTES, deadline });
    Connection { stream, beginning, _open: lifecycle.connected(), place }
}

/// Keeps a connection until its client has done with it, or it is old, or the server closes. Then it is told that
/// there is no more to come, and what it has asked is answered.
async fn keep<I>(served: http2::Connection<I, Calls, TokioExecutor>, lifecycle: Lifecycle)
where
    I: Read + Write + Unpin + Send + 'static,
{
    let mut served = pin!(served);
    let apart = Duration::from_secs(RandomState::new().hash_one(()) % MAX_AGE_APART_S);
    let max_end = tokio::select! {
        ended = served.as_mut() => return said(ended),
        () = lifecycle.reached(Phase::Closing) => None,
        () = tokio::time::sleep(MAX_AGE + apart) => Some(MAX_AGE_GRACE),
    };
    served.as_mut().graceful_shutdown();
    match max_end {
        // Who drains the server knows how long that may take.
        None => said(served.await),
        Some(time) => said(tokio::time::timeout(time, served).await.unwrap_or(Ok(()))),
    }
}

fn said(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(?error, "a connection to the gRPC port ended");
    }
}

/// A connection that has to begin in time. Later on, who is silent is asked whether they are still there.
struct Connection {
    stream: TcpStream,
    /// `None` once it has begun.
    beginning: Option<Beginning>,
    _open: lifecycle::Connected,
    place: Place,
}

struct Beginning {
    left_bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Beginning {
    /// What was read is a part of it; `None` if it was the last.
    fn after(mut self, read_bytes: usize) -> Option<Beginning> {
        self.left_bytes = self.left_bytes.saturating_sub(read_bytes);
        (self.left_bytes > 0).then_some(self)
    }
}

impl Connection {
    /// An error if it was closed for others. Asked before reads and writes: who does not read is not read from.
    fn place_is_kept(&self, cx: &Context<'_>) -> io::Result<()> {
        match self.place.is_over(cx) {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.place_is_kept(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Some(mut beginning) = self.beginning.take() else { return read };
        if read.is_pending() && beginning.deadline.as_mut().poll(cx).is_ready() {
            self.place.count_closed(Reason::FirstByte);
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        // OK because a buffer is never less full than before.
        let read_bytes = buffer.filled().len() - before;
        self.beginning = beginning.after(read_bytes);
        match self.beginning {
            None => self.place.multiplexes(),
            Some(_) if read_bytes > 0 => self.place.received(),
            Some(_) => {}
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.place_is_kept(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.place_is_kept(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
