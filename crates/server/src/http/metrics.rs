//! `GET /metrics`: the page that Prometheus reads.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::Problem;
use super::api::PageBudget;
use crate::metrics::MetricsPage;

/// What the server counts, as Prometheus reads it
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operations",
    responses((status = 200, description = "The text format of Prometheus", body = String, content_type = "text/plain"))
)]
pub(super) async fn page(
    State(page): State<MetricsPage>,
    State(PageBudget(budget)): State<PageBudget>,
) -> Result<Response, Problem> {
    let Some(body) = page.body(&budget).await else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no metrics now; ask again"));
    };
    let format = HeaderValue::from_static("text/plain; version=0.0.4");
    Ok(([(CONTENT_TYPE, format)], body?).into_response())
}
