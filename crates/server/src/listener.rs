//! Connections, and how long each may take for what.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tollgate::http::Peer;
use tower::Service;

use crate::lifecycle::{Lifecycle, Phase};

/// How much of what a connection may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_connections: u32,
    pub(crate) first_byte: Duration,
    pub(crate) request: Duration,
    pub(crate) idle: Duration,
}

/// Serves connections until the server closes, and everything that is in flight then.
pub(crate) async fn serve<S>(
    listener: TcpListener,
    service: S,
    bounds: Bounds,
    lifecycle: Lifecycle,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(_) => continue,
            },
            () = lifecycle.reached(Phase::Closing) => break,
        };
        let (service, lifecycle) = (service.clone(), lifecycle.clone());
        connections.spawn(async move {
            let _open = lifecycle.connected();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(Peer(peer));
                let mut service = service.clone();
                service.call(request)
            });
            let mut connection = std::pin::pin!(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(bounds.request)
                    .serve_connection(TokioIo::new(stream), service)
            );
            tokio::select! {
                _ = connection.as_mut() => return,
                () = lifecycle.reached(Phase::Closing) => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}
