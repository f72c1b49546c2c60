//! A listener that bounds its connections: how many there are, how long each may take, and how much memory they hold.
//!
//! [`serve`] accepts HTTP/1 connections and calls a service with their requests. A port that speaks another
//! protocol applies the same bounds with [`ConnectionTable`] and [`ConnectionSlot`]. The listener knows neither routes
//! nor limits: its caller passes a function that adds to a request what its handler needs to know of the
//! [`Connection`].
//!
//! - `connection`: one connection, from its first byte to its last
//!   - `progress`: the stage of a connection, and its deadline; `watch`: the same, shared between tasks
//!   - `wire`: a socket and bodies, which report the progress
//! - `connection_table`: the open connections, at most a fixed number, and which of them is evicted for a new one
//! - `connections`: counts of connections, open and closed; `reason`: why the listener closes one
//! - `files`: how many connections there are file descriptors for; `shortage`: eviction when they run out
//! - `once_per_minute`: events that are logged at most once a minute
//! - [`budget`]: the memory that connections and requests share
//! - [`lifecycle`]: the phases serving, draining and closing
//! - `bounds`: the settings of the listener

mod bounds;
pub mod budget;
mod connection;
mod connection_table;
mod connections;
mod files;
pub mod lifecycle;
mod once_per_minute;
mod progress;
mod reason;
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

use axum::body::Body;
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower_service::Service;

pub use bounds::Bounds;
pub use connection::Connection;
pub use connection_table::{ConnectionSlot, ConnectionTable};
pub use connections::{Connections, Port};
pub use files::{TooFewFiles, allow_open_files};
pub use reason::CloseReason;
pub use watch::{ClientWatch, DelayedAnswer};

use connection::connection;
use lifecycle::{Lifecycle, Phase};

/// How many connections may wait to be accepted; the system may allow fewer. A client that does not fit tries
/// again after a second, so a burst of new connections should fit.
const BACKLOG: u16 = 4096;

/// Listens at an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted server need not wait until the system has forgotten the connections of the previous one.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.into())
}

/// Serves connections until the server closes, and then the requests in flight. The service is always ready.
/// `describe` is called with each request before the service is, to add what the service needs to know of the
/// connection.
pub async fn serve<S, D>(
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
    let mut table = ConnectionTable::new(bounds, connections);
    let mut closing = pin!(lifecycle.reached(Phase::Closing));
    let start = |stream, peer, place: ConnectionSlot, table: &ConnectionTable| {
        let id = place.id();
        let (service, describe) = (service.clone(), describe.clone());
        let served = connection(stream, peer, service, describe, lifecycle.clone(), place);
        table.attach(id, tokio::spawn(served).abort_handle());
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
                table.after_accept_error(&error).await;
                continue;
            }
        };
        tokio::select! {
            place = table.enter() => start(stream, peer, place, &table),
            () = closing.as_mut() => {
                waits = Some((stream, peer));
                break;
            }
        }
    }
    // First, because silent connections then end, which frees slots for the waiting ones.
    table.announce_close();
    for (stream, peer) in waits.into_iter().chain(pending(listener)) {
        let place = table.enter().await;
        start(stream, peer, place, &table);
    }
    table.close().await;
}

/// Returns the connections that clients have opened and that were not accepted yet; then stops listening.
/// Asks the system instead of the runtime, which learns of new connections slightly later.
fn pending(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let Ok(listener) = listener.into_std() else { return Vec::new() };
    let accept = || {
        let (stream, peer) = listener.accept().ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((TcpStream::from_std(stream).ok()?, peer))
    };
    std::iter::from_fn(accept).take(BACKLOG.into()).collect()
}
