//! The socket of a gRPC connection, which reads no faster than its calls are taken.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::frames::FrameScan;
use crate::lifecycle;
use crate::listener::{CloseReason, ConnectionSlot};

/// The length of the preface that every connection of HTTP/2 begins with.
const PREFACE_BYTES: usize = 24;

/// A socket whose client has to send the preface in time. After that, pings find out whether the client is there.
pub(super) struct Socket<S> {
    stream: S,
    /// `None` once the preface is complete.
    beginning: Option<Beginning>,
    scan: FrameScan,
    gate: Arc<SocketGate>,
    place: Arc<ConnectionSlot>,
    _open: lifecycle::ConnectionGuard,
}

struct Beginning {
    left_bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Beginning {
    /// Counts bytes of the preface; `None` if they were the last.
    fn after(mut self, read_bytes: usize) -> Option<Beginning> {
        self.left_bytes = self.left_bytes.saturating_sub(read_bytes);
        (self.left_bytes > 0).then_some(self)
    }
}

/// The state that a socket, which h2 owns, shares with the task that drives h2.
///
/// h2 reads a socket until it is empty before it hands out the first call. Here it gets one read at a time, of at most
/// 16 KiB or so, and the calls in it are taken before the next: that bounds how many streams can wait inside h2.
#[derive(Debug)]
pub(super) struct SocketGate {
    start: Instant,
    last_read_us: AtomicU64,
    may_read: AtomicBool,
    /// A read was refused since the last look, though there may be bytes.
    was_refused: AtomicBool,
    /// The client does not read: bytes could not be written.
    is_blocked: AtomicBool,
    is_block_open: AtomicBool,
}

impl SocketGate {
    pub(super) fn new() -> SocketGate {
        SocketGate {
            start: Instant::now(),
            last_read_us: AtomicU64::new(0),
            may_read: AtomicBool::new(true),
            was_refused: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_block_open: AtomicBool::new(false),
        }
    }

    /// Allows one read.
    pub(super) fn allow_read(&self) {
        self.may_read.store(true, Ordering::Relaxed);
        self.was_refused.store(false, Ordering::Relaxed);
    }

    /// Whether another read could find bytes. If not, the task is woken when there are some.
    pub(super) fn is_worth_another_read(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed) && !self.is_blocked()
    }

    /// Whether the client does not read what is written.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Whether a header block has begun and not ended.
    pub(super) fn is_block_open(&self) -> bool {
        self.is_block_open.load(Ordering::Relaxed)
    }

    pub(super) fn last_read(&self) -> Instant {
        // OK because it was that time once.
        self.start + Duration::from_micros(self.last_read_us.load(Ordering::Relaxed))
    }

    /// Whether the socket may be read. A client that reads no answers is not read from: its calls would only add to
    /// the answers that wait.
    fn is_open(&self) -> bool {
        let is_open = self.may_read.load(Ordering::Relaxed) && !self.is_blocked();
        if !is_open {
            self.was_refused.store(true, Ordering::Relaxed);
        }
        is_open
    }

    fn count_read(&self) {
        self.may_read.store(false, Ordering::Relaxed);
        // OK because no process runs for 2^64 microseconds.
        let us = self.start.elapsed().as_micros() as u64;
        self.last_read_us.store(us, Ordering::Relaxed);
    }
}

impl<S> Socket<S> {
    /// Wraps a stream whose client has `first_byte` to send the whole preface.
    pub(super) fn new(
        stream: S,
        place: Arc<ConnectionSlot>,
        open: lifecycle::ConnectionGuard,
        first_byte: Duration,
    ) -> Socket<S> {
        let deadline = Box::pin(tokio::time::sleep(first_byte));
        Socket {
            stream,
            beginning: Some(Beginning { left_bytes: PREFACE_BYTES, deadline }),
            scan: FrameScan::new(PREFACE_BYTES),
            gate: Arc::new(SocketGate::new()),
            place,
            _open: open,
        }
    }

    pub(super) fn gate(&self) -> Arc<SocketGate> {
        Arc::clone(&self.gate)
    }

    /// Returns an error if the connection was closed to make room for another one.
    fn place_is_kept(&self, cx: &Context<'_>) -> io::Result<()> {
        match self.place.is_over(cx) {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        self.gate.is_blocked.store(written.is_pending(), Ordering::Relaxed);
        written
    }

    /// Follows the preface, for as long as it is incomplete.
    fn begin(
        &mut self,
        mut beginning: Beginning,
        is_pending: bool,
        read_bytes: usize,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        if is_pending && beginning.deadline.as_mut().poll(cx).is_ready() {
            self.place.count_closed(CloseReason::FirstByte);
            return Err(ErrorKind::TimedOut.into());
        }
        self.beginning = beginning.after(read_bytes);
        match self.beginning {
            None => self.place.multiplexes(),
            Some(_) if read_bytes > 0 => self.place.received(),
            Some(_) => {}
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.place_is_kept(cx)?;
        if !self.gate.is_open() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // OK because a buffer is never less full than before.
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.gate.count_read();
            self.scan.read(bytes);
            let is_block_open = self.scan.is_block_open();
            self.gate.is_block_open.store(is_block_open, Ordering::Relaxed);
        }
        if let Some(beginning) = self.beginning.take() {
            let read_bytes = bytes.len();
            self.begin(beginning, read.is_pending(), read_bytes, cx)?;
            // The handshake of h2 takes no calls: it may read on.
            self.gate.may_read.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.place_is_kept(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.place_is_kept(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(written)
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
