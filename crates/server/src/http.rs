//! The API: requests and answers over HTTP.
//!
//! - `check`: decides requests
//! - `refund`: gives back what they charged
//! - `health`: whether the process lives, and whether to send it requests
//! - `problem`: why there is no answer (RFC 9457)

mod check;
mod health;
mod problem;
mod refund;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

pub(crate) use problem::Problem;

use crate::metrics;
use crate::served::Served;

/// The whole API.
pub(crate) fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/v1/check", post(check::check))
        .route("/v1/refund", post(refund::refund))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::page))
        .with_state(served)
}
