//! `GET /page/server.json`: the features that the page can show to its user.
//!
//! The page reads this file instead of sending requests that may be refused, because browsers log each refusal as an
//! error in their console.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CACHE_CONTROL, HeaderValue};
use hyper::http::request::Parts;
use serde::Serialize;

use crate::http::operator::{Operator, OperatorStatus};
use crate::operators::OperatorAccess;
use crate::store::StoreKind;
use tollgate_playground::Playground;

/// The features that the page can show.
#[derive(Debug, Serialize)]
struct PageFeatures {
    /// Whether the playground is switched on.
    playground: bool,
    /// Whether the playground has holds.
    holds: bool,
    operations: OperatorStatus,
    /// `memory` or `redis`.
    store: &'static str,
}

pub(super) async fn features(
    State(playground): State<Option<Playground>>,
    State(operators): State<Arc<OperatorAccess>>,
    State(store): State<StoreKind>,
    parts: Parts,
) -> Response {
    let features = PageFeatures {
        playground: playground.is_some(),
        holds: playground.is_some_and(|playground| playground.has_holds()),
        operations: Operator::status(&parts, &operators),
        store: store.name(),
    };
    let mut response = Json(features).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
