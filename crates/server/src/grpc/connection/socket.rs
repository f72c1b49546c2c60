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

/// A socket whose client has to send the preface in time. After that, pings find out whether the client is connected.
pub(super) struct Socket<S> {
    stream: S,
    /// `None` once the preface is complete.
    preface: Option<PendingPreface>,
    scan: FrameScan,
    gate: Arc<SocketGate>,
    slot: Arc<ConnectionSlot>,
    _open: lifecycle::ConnectionGuard,
}

/// The rest of a preface that has not arrived yet.
struct PendingPreface {
    left_bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl PendingPreface {
    /// Counts bytes of the preface. Returns `None` once the preface is complete.
    fn after(mut self, read_bytes: usize) -> Option<PendingPreface> {
        self.left_bytes = self.left_bytes.saturating_sub(read_bytes);
        (self.left_bytes > 0).then_some(self)
    }
}

/// The state that a socket, which h2 owns, shares with the task that drives h2.
///
/// Without a gate, h2 reads a socket until it is empty before it returns the first call. The gate allows one read at a
/// time, of about 16 KiB at most, and the driver takes the calls of a read before it allows the next. This bounds how
/// many streams can wait inside h2.
#[derive(Debug)]
pub(super) struct SocketGate {
    start: Instant,
    last_read_us: AtomicU64,
    may_read: AtomicBool,
    /// Whether a read was refused after the last allowed read. There may then be bytes to read.
    was_refused: AtomicBool,
    /// Whether the client does not read, so that bytes could not be written.
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

    /// Returns whether another read could find bytes. If not, the task is woken when bytes arrive, or when the client
    /// reads again.
    pub(super) fn is_worth_another_read(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed) && !self.is_blocked()
    }

    /// Returns whether the client does not read what is written.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Returns whether a header block has begun and not ended.
    pub(super) fn is_block_open(&self) -> bool {
        self.is_block_open.load(Ordering::Relaxed)
    }

    /// Returns the time of the last read.
    pub(super) fn last_read(&self) -> Instant {
        // OK because the sum is a time in the past.
        self.start + Duration::from_micros(self.last_read_us.load(Ordering::Relaxed))
    }

    /// Returns whether the socket may be read. While the client reads no answers, its calls are not read either: they
    /// would only add more answers that wait.
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
        slot: Arc<ConnectionSlot>,
        open: lifecycle::ConnectionGuard,
        first_byte: Duration,
    ) -> Socket<S> {
        let deadline = Box::pin(tokio::time::sleep(first_byte));
        Socket {
            stream,
            preface: Some(PendingPreface { left_bytes: PREFACE_BYTES, deadline }),
            scan: FrameScan::new(PREFACE_BYTES),
            gate: Arc::new(SocketGate::new()),
            slot,
            _open: open,
        }
    }

    pub(super) fn gate(&self) -> Arc<SocketGate> {
        Arc::clone(&self.gate)
    }

    /// Returns an error if the connection was closed to make room for another one.
    fn check_slot(&self, cx: &Context<'_>) -> io::Result<()> {
        match self.slot.is_over(cx) {
            true => Err(ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// Notes whether the client reads, by the result of a write.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        self.gate.is_blocked.store(written.is_pending(), Ordering::Relaxed);
        written
    }

    /// Counts the bytes of an incomplete preface, and returns an error once its deadline has passed.
    fn count_preface(
        &mut self,
        mut preface: PendingPreface,
        is_pending: bool,
        read_bytes: usize,
        cx: &mut Context<'_>,
    ) -> io::Result<()> {
        if is_pending && preface.deadline.as_mut().poll(cx).is_ready() {
            self.slot.count_closed(CloseReason::FirstByte);
            return Err(ErrorKind::TimedOut.into());
        }
        self.preface = preface.after(read_bytes);
        match self.preface {
            None => self.slot.multiplexes(),
            Some(_) if read_bytes > 0 => self.slot.received(),
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
        self.check_slot(cx)?;
        if !self.gate.is_open() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // OK because a read only adds to the buffer.
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.gate.count_read();
            self.scan.read(bytes);
            let is_block_open = self.scan.is_block_open();
            self.gate.is_block_open.store(is_block_open, Ordering::Relaxed);
        }
        if let Some(preface) = self.preface.take() {
            let read_bytes = bytes.len();
            self.count_preface(preface, read.is_pending(), read_bytes, cx)?;
            // The handshake of h2 takes no calls, so it may read again.
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
        self.check_slot(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_slot(cx)?;
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
