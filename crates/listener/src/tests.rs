//! Connections to a listener, over real sockets.

mod bounds;
mod cap;
mod closing;
mod described;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::Request;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use super::shortage::is_of_one_connection;
use super::{Bounds, ClientWatch, CloseReason, Connection, Connections, Port, serve};
use crate::lifecycle::{Phase, lifecycle};

/// Long enough for any machine; nothing takes that long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A bound that the test waits for.
const SHORT: Duration = Duration::from_millis(300);

/// The size of the answer of `/big`: more than sockets buffer.
const BIG_BYTES: usize = 32 << 20;

const AMPLE: Bounds =
    Bounds { max_connections: 100, first_byte: PATIENCE, request: PATIENCE, idle: PATIENCE };

struct TestListener {
    address: SocketAddr,
    phase: watch::Sender<Phase>,
    connections: Arc<Connections>,
    /// `/slow` and `/delayed` answer once for each permit.
    gate: Arc<Semaphore>,
    serving: JoinHandle<()>,
    runtime: Runtime,
}

impl TestListener {
    fn start(bounds: Bounds) -> TestListener {
        TestListener::start_after(bounds, |_, _| {})
    }

    /// Calls `before` while the listener does not accept yet.
    fn start_after(
        bounds: Bounds,
        before: impl FnOnce(SocketAddr, &watch::Sender<Phase>),
    ) -> TestListener {
        let runtime = Runtime::new().unwrap();
        let _entered = runtime.enter();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (phase, lifecycle) = lifecycle();
        before(address, &phase);
        let connections =
            Arc::new(Connections::new(Port::Http, crate::budget::Budget::new(1 << 20)));
        let gate = Arc::new(Semaphore::new(0));
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let counts = Arc::clone(&connections);
        let served = serve(listener, router(&gate), describe, bounds, lifecycle, counts);
        let serving = runtime.spawn(served);
        drop(_entered);
        TestListener { address, phase, connections, gate, serving, runtime }
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }

    fn closed(&self, reason: CloseReason) -> u64 {
        self.connections.closed().find(|(each, _)| *each == reason).unwrap().1
    }

    /// Waits until all connections and the listener have ended.
    fn finish(self) {
        let TestListener { runtime, serving, .. } = self;
        let finished = runtime.block_on(async { tokio::time::timeout(PATIENCE, serving).await });
        finished.expect("the listener did not end").unwrap();
    }
}

/// Adds the peer to every request, and to requests for `/delayed` the handle that ends them when the client
/// leaves.
fn describe(request: &mut Request<Body>, connection: &Connection<'_>) {
    request.extensions_mut().insert(connection.peer());
    if request.uri().path() == "/delayed" {
        request.extensions_mut().insert(connection.client_watch());
    }
}

fn router(gate: &Arc<Semaphore>) -> Router {
    let (gate, delayed_gate) = (Arc::clone(gate), Arc::clone(gate));
    let slow = async move || {
        gate.acquire().await.unwrap().forget();
        "slow"
    };
    let delayed = async move |Extension(client): Extension<ClientWatch>| {
        let _delayed = client.begin();
        delayed_gate.acquire().await.unwrap().forget();
        "delayed"
    };
    Router::new()
        .route("/", get(async || "hello"))
        .route("/slow", get(slow))
        .route("/delayed", get(delayed))
        .route("/peer", get(async |Extension(peer): Extension<SocketAddr>| peer.to_string()))
        .route("/length", post(async |body: Bytes| body.len().to_string()))
        .route("/unread", post(async |_: Request<Body>| "unread"))
        .route("/big", get(async || vec![b'x'; BIG_BYTES]))
}

struct Client {
    stream: TcpStream,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream }
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    }

    /// Reads one answer: its head and its body, which has a length.
    fn answer(&mut self) -> String {
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\n") {
            let count = self.stream.read(&mut byte).unwrap();
            let so_far = String::from_utf8_lossy(&answer);
            assert_eq!(count, 1, "closed instead of an answer, after {so_far:?}");
            answer.extend(byte);
        }
        let head = String::from_utf8(answer).unwrap();
        let (_, length) = head.split_once("content-length: ").unwrap();
        let length = length.split_once("\r\n").unwrap().0.parse().unwrap();
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// Reads everything until the server closes.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => {
                panic!("not closed: {error}")
            }
            _ => String::from_utf8(rest).unwrap(),
        }
    }

    /// Asserts that the server closes without sending anything.
    fn is_closed(&mut self) {
        assert_eq!(self.rest(), "");
    }

    /// Asserts that nothing is received for this long, and that the connection stays open.
    fn hears_nothing_for(&mut self, time: Duration) {
        self.stream.set_read_timeout(Some(time)).unwrap();
        let error = self.stream.read(&mut [0]).expect_err("something came, or it was closed");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// Sends byte after byte, a few milliseconds apart, until the server closes.
    fn dribbles(&mut self, bytes: impl IntoIterator<Item = u8>) {
        self.stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        for byte in bytes {
            let sent = self.stream.write_all(&[byte]);
            match self.stream.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => sent.unwrap(),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Ok(0) => return,
                other => panic!("neither closed nor silent: {other:?}"),
            }
        }
        panic!("the server took all of it");
    }
}

/// Asserts that it took this long, and not much longer.
fn took(start: Instant, at_least: Duration) {
    let took = start.elapsed();
    assert!(took >= at_least, "{took:?} is before {at_least:?}");
    assert!(took < at_least + Duration::from_secs(5), "{took:?} is long after {at_least:?}");
}

/// Waits for something that happens without the client.
fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not yet: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn errors_of_one_connection_are_recognised() {
    for (errno, want) in [
        (rustix::io::Errno::CONNABORTED, true),
        (rustix::io::Errno::CONNRESET, true),
        (rustix::io::Errno::NETUNREACH, true),
        (rustix::io::Errno::INTR, true),
        (rustix::io::Errno::MFILE, false),
        (rustix::io::Errno::NFILE, false),
        (rustix::io::Errno::NOMEM, false),
        (rustix::io::Errno::NOBUFS, false),
    ] {
        assert_eq!(is_of_one_connection(errno.kind()), want, "{errno}");
    }
}
