//! `GET /openapi.json`: the API as a document, made of the code.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, OpenApi};

use super::Problem;
use super::authorize::AuthorizeSettings;
use super::openapi::RefusalProblem;

/// What is said of the API as a whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tollgate",
        description = "Exact rate limiting: whether a request may go, and if not, when. Times and durations are \
                       whole microseconds."
    ),
    tags(
        (name = "decisions", description = "May this request go?"),
        (name = "limits", description = "What limits there are"),
        (name = "keys", description = "How keys stand: for operators"),
        (name = "playground", description = "The algorithms to play with, each session with counters of its own"),
        (name = "operations", description = "How the server is"),
    ),
    components(schemas(Problem, RefusalProblem, AuthorizeSettings)),
    modifiers(&OperatorScheme),
)]
pub(super) struct Document;

struct OperatorScheme;

impl Modify for OperatorScheme {
    fn modify(&self, document: &mut OpenApi) {
        let description = "The token that the server was started with. Without one, whoever asks from the \
                           server's own machine is an operator, and nobody else.";
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(description))
            .build();
        let components = document.components.get_or_insert_with(Components::new);
        components.add_security_scheme("operator", SecurityScheme::Http(scheme));
    }
}

static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let document = super::documented_routes().into_openapi();
    // OK because texts and numbers have a JSON.
    serde_json::to_vec(&document).unwrap_or_default().into()
});

/// This document
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1.", body = serde_json::Value)),
)]
pub(super) async fn document() -> Response {
    let mut response = Response::new(Body::from(DOCUMENT.clone()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
