//! How long connections are kept, on a clock that is not waited for.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::Routes;

use super::*;
use crate::grpc::{ANSWER_WITHIN, ASK_EVERY, GrpcParts, http2};
use crate::lifecycle;

/// What a client begins with, and its settings: none.
const BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const PING: u8 = 6;
const GOAWAY: u8 = 7;

/// A client on a connection that is kept; whoever tells the server to close; and what keeps it.
async fn connected() -> (DuplexStream, watch::Sender<Phase>, JoinHandle<()>) {
    let (phases, lifecycle) = lifecycle::lifecycle();
    let GrpcParts { envoy, connections, .. } = crate::parts::tests::in_memory("rules: []").grpc;
    let calls = Calls::new(Routes::default(), Arc::new(envoy), Duration::from_secs(10));
    let (mut client, server) = duplex(64 << 10);
    let minute = Duration::from_secs(60);
    let bounds = Bounds { max_connections: 1, first_byte: minute, request: minute, idle: minute };
    let place = Arc::new(ConnectionTable::new(bounds, connections).enter().await);
    let socket = Socket::new(server, Arc::clone(&place), lifecycle.connected(), minute);
    let kept = tokio::spawn(keep(http2(), socket, place, calls, lifecycle));
    client.write_all(BEGINNING).await.unwrap();
    (client, phases, kept)
}

/// A frame: its kind, its flags and what is in it; `None` once the connection is closed.
async fn frame(client: &mut DuplexStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.ok()?;
    let mut payload = vec![0; usize::from(head[2]) | usize::from(head[1]) << 8];
    client.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], payload))
}

#[tokio::test(start_paused = true)]
async fn one_who_says_nothing_any_more_is_gone() {
    let (mut client, _phases, kept) = connected().await;
    let began = Instant::now();
    while frame(&mut client).await.unwrap().0 != PING {}
    assert_eq!(began.elapsed().as_secs(), ASK_EVERY.as_secs());
    kept.await.unwrap();
    assert_eq!(began.elapsed().as_secs(), (ASK_EVERY + ANSWER_WITHIN).as_secs());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_old_is_told_to_go_elsewhere() {
    let (mut client, _phases, kept) = connected().await;
    let (began, mut told) = (Instant::now(), None);
    while let Some((kind, flags, payload)) = frame(&mut client).await {
        match kind {
            // Who answers is still there. After the last one the server may be gone before it hears that.
            PING if flags == 0 => {
                let answer = [&[0, 0, 8, PING, 1, 0, 0, 0, 0][..], &payload].concat();
                let sent = client.write_all(&answer).await;
                assert!(sent.is_ok() || told.is_some(), "{sent:?}");
            }
            GOAWAY => told = told.or(Some(began.elapsed())),
            _ => {}
        }
    }
    let latest = MAX_AGE + Duration::from_secs(MAX_AGE_APART_S);
    assert!((MAX_AGE..=latest).contains(&told.unwrap()), "{told:?}");
    kept.await.unwrap();
}
