//! `GET /page/server.json`: what the page can show to whoever asks.
//!
//! It could ask for everything and see what is refused; but browsers write each such answer into their console as an error.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::http::request::Parts;
use serde::Serialize;

use crate::http::operator::{Known, Operator};
use crate::operators::OperatorAccess;
use crate::store::StoreKind;
use tollgate_playground::Playground;

/// What there is to see.
#[derive(Debug, Serialize)]
struct About {
    /// Whether there is anything to play with.
    playground: bool,
    operations: Known,
    /// `memory` or `redis`.
    store: &'static str,
}

pub(super) async fn about(
    State(playground): State<Option<Playground>>,
    State(operators): State<Arc<OperatorAccess>>,
    State(store): State<StoreKind>,
    parts: Parts,
) -> Response {
    let about = About {
        playground: playground.is_some(),
        operations: Operator::known(&parts, &operators),
        store: store.name(),
    };
    let mut response = Json(about).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
