//! Connections, and how long each may take for what.
//!
//! - `connection`: one connection, from its first byte to its last
//!   - `progress`: what it is doing, and until when it may; `watch`: the same, shared
//!   - `wire`: a socket and bodies, which tell how far it is
//! - `room`: who is connected, at most so many at a time
//! - `connections`: how many there are and were
//! - `files`: how many the system allows; `seldom`: what is said once a minute

mod connection;
mod connections;
mod files;
mod progress;
mod room;
mod seldom;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;
use tower::Service;

pub(crate) use connections::{Connections, Port, Reason};
pub(crate) use files::allow_open_files;
pub(crate) use room::{Place, Room};
pub(crate) use watch::Hold;

use crate::lifecycle::{Lifecycle, Phase};
use connection::connection;
use seldom::Seldom;

/// How long to wait when the system has no more files or memory for connections.
const NO_RESOURCES: Duration = Duration::from_millis(50);

/// How many connections may wait to be accepted; the system may allow fewer. A client that finds no place there tries
/// again after a second, so a burst of new connections should fit.
const BACKLOG: u16 = 4096;

/// How much of what a connection may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_connections: u32,
    pub(crate) first_byte: Duration,
    pub(crate) request: Duration,
    pub(crate) idle: Duration,
}

/// Listens at an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that is started again need not wait until the connections of the last one are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.into())
}

/// Serves connections until the server closes, and everything that is in flight then. The service is always ready.
pub(crate) async fn serve<S>(
    listener: TcpListener,
    service: S,
    bounds: Bounds,
    lifecycle: Lifecycle,
    connections: Arc<Connections>,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    let mut room = Room::new(bounds, connections);
    let mut failing = Seldom::default();
    let mut closing = pin!(lifecycle.reached(Phase::Closing));
    let start = |stream, peer, place: Place, room: &Room| {
        let id = place.id();
        let served = connection(stream, peer, service.clone(), lifecycle.clone(), place);
        room.attach(id, tokio::spawn(served).abort_handle());
    };
    let mut waits = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.as_mut() => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                after(&error, &mut failing).await;
                continue;
            }
        };
        tokio::select! {
            place = room.enter() => start(stream, peer, place, &room),
            () = closing.as_mut() => {
                waits = Some((stream, peer));
                break;
            }
        }
    }
    // First: who is silent makes room for who waits.
    room.last_call();
    for (stream, peer) in waits.into_iter().chain(pending(listener)) {
        let place = room.enter().await;
        start(stream, peer, place, &room);
    }
    room.close().await;
}

/// Waits after an error of `accept`, unless it was that of one connection.
async fn after(error: &io::Error, failing: &mut Seldom) {
    if is_of_one_connection(error.kind()) {
        tracing::debug!(%error, "a connection was gone before it was accepted");
        return;
    }
    if failing.is_due(Instant::now()) {
        tracing::warn!(%error, "connections cannot be accepted; if files are too few, raise `ulimit -n`");
    }
    sleep(NO_RESOURCES).await;
}

/// Linux hands out errors of a new connection as those of `accept`.
fn is_of_one_connection(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::Interrupted
    )
}

/// What clients have connected to, though nobody has accepted it yet; then stops listening. Asks the system and not
/// the runtime, which hears of new connections a little later.
fn pending(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let accept = || {
        let (stream, peer) = listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, peer))
    };
    std::iter::from_fn(accept).take(BACKLOG.into()).collect()
}
