//! One fetch, from a server on a free port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use http_body::Frame;
use tokio::net::TcpListener;

use super::set_text;
use crate::jwks::fetch::{FetchError, Fetcher};
use crate::jwt::{Jwks, JwksError, KeySet};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn fetch(address: SocketAddr, path: &str) -> Result<KeySet, FetchError> {
    let url = format!("http://{address}{path}").parse().unwrap();
    Fetcher::new(url).unwrap().fetch().await
}

#[tokio::test]
async fn a_set_is_fetched_with_bounds() {
    let app = Router::new()
        .route(
            "/keys",
            get(|headers: HeaderMap| async move {
                let accept = headers["accept"].to_str().unwrap().to_owned();
                assert!(accept.contains("application/jwk-set+json"), "{accept}");
                assert!(!headers.contains_key("authorization") && !headers.contains_key("cookie"));
                set_text("a")
            }),
        )
        .route("/endless", get(|| async { Body::new(Endless) }))
        .route("/large", get(|| async { " ".repeat((256 << 10) + 1) }))
        .route("/text", get(|| async { "\u{1b}[31mhush" }))
        .route("/gone", get(|| async { (StatusCode::GONE, set_text("a")) }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }));
    let address = serve(app).await;
    assert_eq!(fetch(address, "/keys?api-version=2").await.unwrap().keys().len(), 1);
    for (path, request_fetch) in [
        ("/endless", FetchError::Set(JwksError::TooLarge)),
        ("/large", FetchError::Set(JwksError::TooLarge)),
        ("/text", FetchError::Set(JwksError::Malformed)),
        ("/gone", FetchError::Status(StatusCode::GONE)),
        ("/empty", FetchError::Status(StatusCode::NO_CONTENT)),
        ("/missing", FetchError::Status(StatusCode::NOT_FOUND)),
    ] {
        assert_eq!(fetch(address, path).await.unwrap_err(), request_fetch, "{path}");
    }
}

/// A body without an end.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b' '; 4096])))))
    }
}

#[tokio::test]
async fn redirects_lead_nowhere_but_to_the_same_host_and_port() {
    let elsewhere = serve(Router::new().route("/keys", get(|| async { set_text("b") }))).await;
    let to = move |place: String| {
        get(move || async move { Redirect::temporary(&place).into_response() })
    };
    let app = Router::new()
        .route("/keys", get(|| async { set_text("a") }))
        .route("/moved", to("/keys".into()))
        .route("/away", to(format!("http://{elsewhere}/keys")))
        .route("/name", to(format!("http://localhost:{}/keys", elsewhere.port())))
        .route("/file", to("file:///etc/passwd".into()))
        .route("/round", to("/round".into()));
    let address = serve(app).await;
    assert_eq!(fetch(address, "/moved").await.unwrap().keys().len(), 1);
    for path in ["/away", "/name", "/round"] {
        assert_eq!(fetch(address, path).await.unwrap_err(), FetchError::Redirect, "{path}");
    }
    assert!(fetch(address, "/file").await.is_err());
}

#[tokio::test]
async fn unreachable_issuer_is_reported_in_one_short_line_without_the_query() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = fetch(address, "/keys?token=hush").await.unwrap_err();
    let config = error.to_string();
    assert!(matches!(error, FetchError::Unreachable(_)), "{error:?}");
    assert!(config.contains("refused") && !config.contains("hush"), "{config}");
    assert!(config.chars().count() <= 400 && !config.contains('\n'), "{config}");
    // A server that speaks something else, and tries to write into the log.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 \x1b[31m\nERROR all is lost\r\n\r\n").await;
    });
    let config = fetch(address, "/keys").await.unwrap_err().to_string();
    assert!(!config.contains("all is lost") && !config.contains('\n'), "{config}");
}

#[test]
fn a_url_has_a_host_and_no_password() {
    for url in ["https://id.example/keys", "http://127.0.0.1:8080/keys?v=2", "https://[::1]/"] {
        assert!(Jwks::url(url).is_ok(), "{url}");
    }
    let long = format!("https://id.example/{}", "x".repeat(2_048));
    for url in [
        "",
        "id.example/keys",
        "file:///etc/keys",
        "ftp://id.example/",
        "https://",
        "https://ada@id.example/",
        "https://ada:hush@id.example/",
        "data:application/json,{}",
        &long,
    ] {
        assert_eq!(Jwks::url(url).unwrap_err(), JwksError::Url, "{url}");
    }
}
