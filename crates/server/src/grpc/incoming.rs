//! Connections to the gRPC port: not too many, and none that stays silent.

use std::convert::Infallible;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::lifecycle::{self, Lifecycle, Phase};
use crate::listener::{Bounds, Connections, Place, Reason, Room};

/// What every connection of HTTP/2 begins with is so long.
const PREFACE_BYTES: usize = 24;

/// If the system has no more connections to give, it is asked again after this.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections as they come, until the server closes.
pub(super) struct Incoming {
    accepted: mpsc::Receiver<Connection>,
}

impl Incoming {
    pub(super) fn new(
        listener: TcpListener,
        bounds: Bounds,
        lifecycle: Lifecycle,
        connections: Arc<Connections>,
    ) -> Incoming {
        let (sender, accepted) = mpsc::channel(1);
        tokio::spawn(async move {
            let closing = lifecycle.clone();
            tokio::select! {
                () = accept(listener, bounds, &lifecycle, connections, sender) => {}
                () = closing.reached(Phase::Closing) => {}
            }
        });
        Incoming { accepted }
    }
}

impl Stream for Incoming {
    type Item = Result<Connection, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.accepted.poll_recv(cx).map(|connection| connection.map(Ok))
    }
}

/// Accepts connections, for each of which there is room before long; returns when nobody wants them any more.
async fn accept(
    listener: TcpListener,
    bounds: Bounds,
    lifecycle: &Lifecycle,
    connections: Arc<Connections>,
    sender: mpsc::Sender<Connection>,
) {
    let mut room = Room::new(bounds, connections);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to the gRPC port was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Answers are small. A connection that cannot be told so is about to end.
        let _ = stream.set_nodelay(true);
        let place = room.enter().await;
        let connection = Connection {
            stream,
            beginning: Some(Beginning {
                left_bytes: PREFACE_BYTES,
                deadline: Box::pin(tokio::time::sleep(bounds.first_byte)),
            }),
            _open: lifecycle.connected(),
            place,
        };
        if sender.send(connection).await.is_err() {
            return;
        }
    }
}

/// A connection that has to begin in time. Later on, who is silent is asked whether they are still there.
pub(super) struct Connection {
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

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}
