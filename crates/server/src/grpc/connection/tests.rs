//! How long connections are kept, on a paused clock.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::Routes;

use super::*;
use crate::grpc::{GrpcParts, PING_AFTER, PING_TIMEOUT, http2};
use crate::lifecycle;

/// The preface of a client, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// Returns a client, the sender of the server's phases, and the task that serves the client's connection.
async fn connected() -> (DuplexStream, watch::Sender<Phase>, JoinHandle<()>) {
    let (phases, lifecycle) = lifecycle::lifecycle();
    let GrpcParts { envoy, connections, .. } = crate::parts::tests::in_memory("rules: []").grpc;
    let calls = Calls::new(Routes::default(), Arc::new(envoy), Duration::from_secs(10));
    let (mut client, server) = duplex(64 << 10);
    let minute = Duration::from_secs(60);
    let bounds = Bounds { max_connections: 1, first_byte: minute, request: minute, idle: minute };
    let slot = Arc::new(ConnectionTable::new(bounds, connections).enter().await);
    let socket = Socket::new(server, Arc::clone(&slot), lifecycle.connected(), minute);
    let kept = tokio::spawn(keep(http2(), socket, slot, calls, lifecycle));
    client.write_all(PREFACE).await.unwrap();
    (client, phases, kept)
}

/// Reads a frame: its type, its flags and its payload. Returns `None` once the connection is closed.
async fn frame(client: &mut DuplexStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; usize::from(head[2]) | usize::from(head[1]) << 8];
    client.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], payload))
}

#[tokio::test(start_paused = true)]
async fn silent_client_is_disconnected_after_an_unanswered_ping() {
    let (mut client, _phases, kept) = connected().await;
    let began = Instant::now();
    while frame(&mut client).await.unwrap().0 != PING {}
    assert_eq!(began.elapsed().as_secs(), PING_AFTER.as_secs());
    kept.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), (PING_AFTER + PING_TIMEOUT).as_secs());
}

#[tokio::test(start_paused = true)]
async fn old_connection_gets_a_goaway() {
    let (mut client, _phases, kept) = connected().await;
    let (began, mut goaway_after) = (Instant::now(), None);
    while let Some((kind, flags, payload)) = frame(&mut client).await {
        match kind {
            // Answers every ping. The server may have closed the connection before it reads the last answer.
            PING if flags == 0 => {
                let answer = [&[0, 0, 8, PING, 1, 0, 0, 0, 0][..], &payload].concat();
                let sent = client.write_all(&answer).await;
                assert!(sent.is_ok() || goaway_after.is_some(), "{sent:?}");
            }
            GOAWAY => goaway_after = goaway_after.or(Some(began.elapsed())),
            _ => {}
        }
    }
    let latest = MAX_AGE + Duration::from_secs(MAX_AGE_JITTER_S);
    assert!((MAX_AGE..=latest).contains(&goaway_after.unwrap()), "{goaway_after:?}");
    kept.await.unwrap();
}
