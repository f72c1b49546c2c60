//! Servers on free ports, and connections to them.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use bytes::Bytes;
use http::header::HOST;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tollgate::http::Peer;
use tollgate::tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

/// Long enough for any machine: a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

/// Listens on a free port.
pub(crate) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves an application with axum, with the addresses of clients.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let (listener, address) = listener().await;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// Serves `hello` with plain hyper, with the address of every connection.
pub(crate) async fn serve_hyper(layer: RateLimitLayer) -> SocketAddr {
    let (listener, address) = listener().await;
    let service = layer.layer(service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    }));
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = service.clone().map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(peer));
                request
            });
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(service);
                // The client may end the connection in any way.
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// A connection, which is closed when dropped.
pub(crate) struct Connection {
    to: SocketAddr,
    sender: Sender,
    _driver: JoinSet<()>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    pub(crate) async fn open(to: SocketAddr, version: Version) -> Connection {
        Connection::from([127, 0, 0, 1].into(), to, version).await
    }

    /// Opens a connection from another address of this machine.
    pub(crate) async fn from(own: IpAddr, to: SocketAddr, version: Version) -> Connection {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(own, 0)).unwrap();
        let stream = TokioIo::new(socket.connect(to).await.unwrap());
        let mut driver = JoinSet::new();
        let sender = if version == Version::HTTP_2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            driver.spawn(async { drop(connection.await) });
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            driver.spawn(async { drop(connection.await) });
            Sender::Http1(sender)
        };
        Connection { to, sender, _driver: driver }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Response<Bytes> {
        self.send(Request::get(path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        tokio::time::timeout(PATIENCE, self.sent(request)).await.unwrap()
    }

    async fn sent(&mut self, mut request: Request<Full<Bytes>>) -> Response<Bytes> {
        let host = self.to.to_string();
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                request.headers_mut().insert(HOST, host.parse().unwrap());
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Sender::Http2(sender) => {
                *request.uri_mut() = format!("http://{host}{}", request.uri()).parse().unwrap();
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
        };
        let (head, body) = response.into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }
}

/// A connection on which a test writes and reads the bytes itself.
pub(crate) struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    pub(crate) async fn open(to: SocketAddr) -> Wire {
        Wire { stream: BufReader::new(TcpStream::connect(to).await.unwrap()) }
    }

    /// Sends a request without a body. Returns the head of the response.
    pub(crate) async fn ask(&mut self, method: &str, path: &str) -> String {
        self.write(&format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await;
        self.head().await
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// The head of a response, in lower case.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let line = self.stream.read_line(&mut head);
            let read = tokio::time::timeout(PATIENCE, line).await.unwrap().unwrap();
            assert!(read > 0, "closed after {head:?}");
        }
        assert!(head.starts_with("HTTP/1.1 "), "{head:?}");
        head.to_ascii_lowercase()
    }

    pub(crate) async fn body(&mut self, bytes: usize) -> String {
        let mut body = vec![0; bytes];
        let read = self.stream.read_exact(&mut body);
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
        String::from_utf8(body).unwrap()
    }

    /// Whether the server has closed the connection without sending more.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let read = self.stream.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, read).await.unwrap().is_ok_and(|read| read == 0)
    }
}

/// The value of a header in a head that was read from the wire.
pub(crate) fn in_head<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Waits until `is_so` returns true.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::task::yield_now().await;
    }
}
