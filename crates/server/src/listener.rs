//! Connections, and how long each may take for what.
//!
//! - `connection`: one connection, from its first byte to its last
//!   - `progress`: what it is doing, and until when it may; `watch`: the same, shared
//!   - `wire`: a socket and bodies, which tell how far it is
//! - `room`: who is connected, at most so many at a time
//! - `connections`: how many there are and were
//! - `files`: how many connections there are file descriptors for; `shortage`: eviction when they run out
//! - `seldom`: events that are logged at most once a minute

mod connection;
mod connections;
mod files;
mod progress;
mod room;
mod seldom;
mod shortage;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower::Service;

pub(crate) use connection::Connection;
#[cfg(test)]
pub(crate) use connections::Port;
pub(crate) use connections::{Connections, Reason};
pub(crate) use files::allow_open_files;
pub(crate) use room::{Place, Room};
pub(crate) use watch::Hold;

use crate::lifecycle::{Lifecycle, Phase};
use connection::connection;

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
/// `describe` tells it of the connection that a request came on: it is called with each request before the service is.
pub(crate) async fn serve<S, D>(
    listener: TcpListener,
    service: S,
    describe: D,
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
    D: Fn(&mut Request<Body>, &Connection<'_>) + Clone + Send + Sync + 'static,
{
    let mut room = Room::new(bounds, connections);
    let mut closing = pin!(lifecycle.reached(Phase::Closing));
    let start = |stream, peer, place: Place, room: &Room| {
        let id = place.id();
        let (service, describe) = (service.clone(), describe.clone());
        let served = connection(stream, peer, service, describe, lifecycle.clone(), place);
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
                room.after_accept_error(&error).await;
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
