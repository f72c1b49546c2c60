//! A server that decides nothing: it uses the same libraries as ours, and always sends the same answer.

use std::net::Ipv4Addr;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::post;
use http::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tower_service::Service;

/// Serves on this port: reads each body, and always sends `answer`.
pub(crate) fn serve(port: u16, answer: String) -> Result<()> {
    let runtime = Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let router = router(answer.into());
        loop {
            let (stream, _) = listener.accept().await?;
            let router = router.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request: http::Request<_>| {
                    router.clone().call(request.map(Body::new))
                });
                let connection = http1::Builder::new();
                // An error means that the client has closed the connection.
                _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

fn router(answer: Bytes) -> Router {
    let constant = move |_: Bytes| {
        let answer = answer.clone();
        async { ([(CONTENT_TYPE, "application/json")], answer) }
    };
    Router::new().route("/v1/check", post(constant)).with_state(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use http::{Method, Request};

    use super::*;

    #[test]
    fn answer_is_the_same_for_every_request() {
        let mut router = router(Bytes::from_static(b"{}"));
        for body in ["", "{\"limit\":\"free\"}"] {
            let mut request = Request::new(Body::from(body));
            (*request.method_mut(), *request.uri_mut()) =
                (Method::POST, "/v1/check".parse().unwrap());
            let mut context = Context::from_waker(Waker::noop());
            let answer = pin!(router.call(request)).poll(&mut context);
            let Poll::Ready(Ok(response)) = answer else { panic!("not done at once") };
            assert_eq!(response.headers()["content-length"], "2");
            assert_eq!(response.headers()["content-type"], "application/json");
        }
    }
}
