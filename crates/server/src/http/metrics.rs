//! `GET /metrics`: the metrics for Prometheus.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::ApiProblem;
use super::api::PageBudget;
use crate::metrics::MetricsPage;

/// The metrics of the server, for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "operations",
    responses((status = 200, description = "The text format of Prometheus", body = String, content_type = "text/plain"))
)]
pub(super) async fn page(
    State(page): State<MetricsPage>,
    State(PageBudget(budget)): State<PageBudget>,
) -> Result<Response, ApiProblem> {
    let Some(body) = page.body(&budget).await else {
        return Err(ApiProblem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the metrics could not be written; try again",
        ));
    };
    let format = HeaderValue::from_static("text/plain; version=0.0.4");
    Ok(([(CONTENT_TYPE, format)], body?).into_response())
}
