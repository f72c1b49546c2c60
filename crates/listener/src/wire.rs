//! A socket, the body of a request and the body of an answer, which report the progress of their connection.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::{Body, Bytes};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::watch::Watch;
use crate::budget::{MemoryAccount, MemoryCharge};

/// The largest head of a request; a larger one is answered with 431. hyper accepts 100 headers by default,
/// and setting another number costs an allocation per request.
pub(super) const MAX_HEAD_BYTES: usize = 32 * 1024;

/// The most bytes of one read that leave hyper's buffer as small as it begins. A longer read makes it grow, and hyper
/// keeps a large buffer for as long as the connection.
const READ_BYTES: usize = (8 << 10) - 1;

/// The bytes of a request's head, read and not yet parsed, that are not charged: they fit in the buffer that every
/// connection has.
const FREE_HEAD_BYTES: usize = 8 << 10;

/// A socket that reports the progress of its connection.
pub(super) struct ObservedSocket {
    stream: TcpStream,
    watch: Arc<Watch>,
    account: Arc<MemoryAccount>,
    /// The charge for a head that is longer than the first buffer. hyper keeps the buffer that it needed.
    head: MemoryCharge,
    /// The charge for an answer that the client does not read.
    unread: MemoryCharge,
    /// Whether a read was so long that further reads have to be cut.
    is_cut: bool,
    /// Whether bytes were written since the last flush.
    is_dirty: bool,
    /// Whether the client will send nothing more.
    has_ended: bool,
}

impl ObservedSocket {
    pub(super) fn new(
        stream: TcpStream,
        watch: Arc<Watch>,
        account: Arc<MemoryAccount>,
    ) -> ObservedSocket {
        let (head, unread) = (account.nothing(), account.nothing());
        let (is_cut, is_dirty, has_ended) = (false, false, false);
        ObservedSocket { stream, watch, account, head, unread, is_cut, is_dirty, has_ended }
    }

    /// Returns the socket, unless the client has closed it.
    pub(super) fn into_open_stream(self) -> Option<TcpStream> {
        (!self.has_ended).then_some(self.stream)
    }

    /// Whether the client has closed its side. hyper allows that, and does not check for it before it has
    /// answered.
    fn has_client_left(&mut self, context: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let peeked = self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
        self.has_ended = matches!(peeked, Poll::Ready(Ok(0) | Err(_)));
        self.has_ended
    }

    /// Returns an error if the connection has to be closed to free memory for others.
    fn check_memory(&self, context: &Context<'_>) -> io::Result<()> {
        if self.head.bytes() + self.unread.bytes() > 0 {
            self.account.wake_when_closed(context.waker());
        }
        match self.account.is_closed() {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// Reads from the socket, at most [`READ_BYTES`] once a client has sent more than that.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buffer.filled().len();
        if self.is_cut && buffer.remaining() > READ_BYTES {
            let mut cut = ReadBuf::new(buffer.initialize_unfilled_to(READ_BYTES));
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut cut))?;
            let bytes = cut.filled().len();
            buffer.advance(bytes);
            return Poll::Ready(Ok(bytes));
        }
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        // OK because a buffer is never less full than before.
        let bytes = buffer.filled().len() - before;
        self.is_cut |= bytes > READ_BYTES;
        Poll::Ready(Ok(bytes))
    }

    /// Charges a head that is longer than most: twice its length, because a buffer doubles when it grows.
    fn charge_head(&mut self, bytes: usize) -> io::Result<()> {
        // Bytes beyond the longest head belong to a body that is not read, and hyper drops them.
        let head_bytes = self.watch.count_head(bytes).min(MAX_HEAD_BYTES);
        let long_bytes = head_bytes.saturating_sub(FREE_HEAD_BYTES);
        match (2 * long_bytes).saturating_sub(self.head.bytes()) {
            0 => Ok(()),
            more => self.head.grow(more).map_err(|_| ErrorKind::OutOfMemory.into()),
        }
    }

    /// Charges an answer that could not be written. It may exceed the budget, because the answer exists
    /// already.
    fn charge_unread(&mut self, bytes: usize, context: &Context<'_>) {
        self.unread.grow_anyway(bytes.saturating_sub(self.unread.bytes()));
        self.account.wake_when_closed(context.waker());
    }

    fn written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.unread.clear();
                self.is_dirty = true;
                self.watch.with(|progress| progress.wrote(bytes));
            }
            Poll::Ready(Err(_)) => self.has_ended = true,
            Poll::Pending => self.watch.with(|progress| progress.stalled(Instant::now())),
        }
        written
    }
}

impl AsyncRead for ObservedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_memory(context)?;
        let bytes = match ready!(self.read(context, buffer)) {
            Ok(bytes @ 1..) => bytes,
            ended => {
                self.has_ended = true;
                return Poll::Ready(ended.map(drop));
            }
        };
        self.charge_head(bytes)?;
        // Under one lock: once a connection is chosen for eviction, its bytes are not read any more.
        let is_over = self.watch.with(|progress| {
            progress.received(Instant::now());
            progress.is_over()
        });
        Poll::Ready(if is_over { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) })
    }
}

impl AsyncWrite for ObservedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_memory(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_pending() {
            self.charge_unread(bytes.len(), context);
        }
        self.written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_memory(context)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if written.is_pending() {
            self.charge_unread(slices.iter().map(|slice| slice.len()).sum(), context);
        }
        self.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written everything, and a socket keeps nothing back; hyper also flushes
    /// whenever it checks for something to do.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::take(&mut self.is_dirty) {
            let is_gone = self.watch.is_delayed() && self.has_client_left(context);
            return Poll::Ready(if is_gone {
                Err(ErrorKind::ConnectionAborted.into())
            } else {
                Ok(())
            });
        }
        let is_over = self.watch.with(|progress| {
            progress.flushed(Instant::now());
            progress.is_over()
        });
        Poll::Ready(if is_over { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The body of a request. It reports when it is complete, or when it is dropped unread.
struct ArrivingBody {
    body: Incoming,
    /// `None` once it has reported.
    watch: Option<Arc<Watch>>,
}

/// Returns the body of a request that is being received.
pub(super) fn arriving(body: Incoming, watch: &Arc<Watch>) -> Body {
    watch.end_head();
    if body.is_end_stream() {
        watch.with(|progress| progress.complete());
        return Body::empty();
    }
    // The head of a pipelined request was read earlier.
    watch.with(|progress| progress.received(Instant::now()));
    Body::new(ArrivingBody { body, watch: Some(Arc::clone(watch)) })
}

impl ArrivingBody {
    fn report(&mut self) {
        if let Some(watch) = self.watch.take() {
            watch.with(|progress| progress.body_complete());
        }
    }
}

impl hyper::body::Body for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() {
            self.report();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ArrivingBody {
    fn drop(&mut self) {
        self.report();
    }
}

/// The body of an answer. It reports when its last byte is taken.
pub(super) struct AnswerBody {
    body: Body,
    watch: Arc<Watch>,
}

impl AnswerBody {
    pub(super) fn new(body: Body, watch: Arc<Watch>) -> AnswerBody {
        watch.with(|progress| progress.answered());
        watch.begin_head();
        AnswerBody { body, watch }
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// hyper drops a body as soon as it has taken all of it.
impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.watch.with(|progress| progress.taken(Instant::now()));
    }
}
