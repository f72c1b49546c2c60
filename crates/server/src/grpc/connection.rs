//! Connections to the gRPC port.
//!
//! - `socket`: reads no faster than calls are taken; `frames`: finds header blocks that do not end
//! - `driver`: takes calls, runs them and sends their answers
//! - `resets`: how many calls a client may reset; `keepalive`: whether a silent client is there

mod driver;
mod frames;
mod keepalive;
mod resets;
mod socket;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use h2::server::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::calls::Calls;
use super::{MAX_AGE, MAX_AGE_APART_S, MAX_AGE_GRACE};
use crate::lifecycle::{Lifecycle, Phase};
use crate::listener::{Bounds, ConnectionSlot, ConnectionTable, Connections};
use driver::ConnectionDriver;
use socket::Socket;

/// Serves connections until the server closes, and everything that is in flight then.
pub(super) async fn serve(
    listener: TcpListener,
    bounds: Bounds,
    connections: Arc<Connections>,
    lifecycle: &Lifecycle,
    calls: Calls,
) {
    let mut room = ConnectionTable::new(bounds, connections);
    let mut open = JoinSet::new();
    let http2 = super::http2();
    let accepted = async {
        loop {
            let (socket, place) = accept(&listener, &bounds, lifecycle, &mut room).await;
            open.spawn(keep(http2.clone(), socket, place, calls.clone(), lifecycle.clone()));
            // Forgets connections that have ended.
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

/// Accepts the next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    bounds: &Bounds,
    lifecycle: &Lifecycle,
    room: &mut ConnectionTable,
) -> (Socket<TcpStream>, Arc<ConnectionSlot>) {
    let stream = loop {
        match listener.accept().await {
            Ok((stream, _)) => break stream,
            Err(error) => room.after_accept_error(&error).await,
        }
    };
    // Answers are small. An error is that the connection is about to end.
    let _ = stream.set_nodelay(true);
    let place = Arc::new(room.enter().await);
    (Socket::new(stream, Arc::clone(&place), lifecycle.connected(), bounds.first_byte), place)
}

/// Keeps a connection until its client closes it, or it is old, or the server closes. Then the client learns that it
/// may make no more calls, and the calls under way are answered.
async fn keep<S: AsyncRead + AsyncWrite + Unpin>(
    http2: Builder,
    socket: Socket<S>,
    place: Arc<ConnectionSlot>,
    calls: Calls,
    lifecycle: Lifecycle,
) {
    let gate = socket.gate();
    let http2 = match http2.handshake(socket).await {
        Ok(http2) => http2,
        Err(error) => {
            tracing::debug!(%error, "a connection to the gRPC port did not begin");
            return;
        }
    };
    let mut driver = ConnectionDriver::new(http2, gate, place, calls);
    let apart = Duration::from_secs(RandomState::new().hash_one(()) % MAX_AGE_APART_S);
    let max_end = tokio::select! {
        () = driver.run() => return,
        () = lifecycle.reached(Phase::Closing) => None,
        () = tokio::time::sleep(MAX_AGE + apart) => Some(MAX_AGE_GRACE),
    };
    driver.shut_down();
    match max_end {
        // The time that draining may take is a bound of the whole server.
        None => driver.run().await,
        Some(time) => drop(tokio::time::timeout(time, driver.run()).await),
    }
}
