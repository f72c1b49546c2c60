//! The API: requests and answers over HTTP.
//!
//! - `check`: decides requests
//! - `problem`: why there is no answer (RFC 9457)

mod check;
mod problem;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;

pub(crate) use problem::Problem;

use crate::served::Served;

/// The whole API.
pub(crate) fn router(served: Arc<Served>) -> Router {
    Router::new().route("/v1/check", post(check::check)).with_state(served)
}
