//! Connections to the gRPC port.
//!
//! - `socket`: reads no faster than calls are taken; `frames`: finds header blocks that have not ended
//! - `driver`: takes calls, runs them and sends their answers
//! - `resets`: bounds the calls that a client may reset; `keepalive`: finds clients that are gone

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
use super::{MAX_AGE, MAX_AGE_GRACE, MAX_AGE_JITTER_S};
use crate::lifecycle::{Lifecycle, Phase};
use crate::listener::{Bounds, ConnectionSlot, ConnectionTable, Connections};
use driver::ConnectionDriver;
use socket::Socket;

/// Serves connections until the server closes, and then until their calls in flight have ended.
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
            let (socket, slot) = accept(&listener, &bounds, lifecycle, &mut room).await;
            open.spawn(keep(http2.clone(), socket, slot, calls.clone(), lifecycle.clone()));
            // Removes the tasks of connections that have ended.
            while open.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = accepted => {}
        () = lifecycle.reached(Phase::Closing) => {}
    }
    drop(listener);
    // An error means that a connection's task has panicked: wait for the others all the same.
    while open.join_next().await.is_some() {}
}

/// Accepts the next connection, and waits until the table has a free slot for it.
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
    // Without delay, because answers are small. An error means that the connection is about to end.
    let _ = stream.set_nodelay(true);
    let slot = Arc::new(room.enter().await);
    (Socket::new(stream, Arc::clone(&slot), lifecycle.connected(), bounds.first_byte), slot)
}

/// Serves a connection until its client closes it, it has reached its maximum age, or the server closes. In the last
/// two cases the client gets a GOAWAY, so that it makes no more calls here, and the calls in flight are answered.
async fn keep<S: AsyncRead + AsyncWrite + Unpin>(
    http2: Builder,
    socket: Socket<S>,
    slot: Arc<ConnectionSlot>,
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
    let mut driver = ConnectionDriver::new(http2, gate, slot, calls);
    let jitter = Duration::from_secs(RandomState::new().hash_one(()) % MAX_AGE_JITTER_S);
    let max_end = tokio::select! {
        () = driver.run() => return,
        () = lifecycle.reached(Phase::Closing) => None,
        () = tokio::time::sleep(MAX_AGE + jitter) => Some(MAX_AGE_GRACE),
    };
    driver.shut_down();
    match max_end {
        // The server as a whole bounds how long this takes.
        None => driver.run().await,
        Some(time) => drop(tokio::time::timeout(time, driver.run()).await),
    }
}
