//! `GET /openapi.json`: the OpenAPI document, generated from the code.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::response::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use utoipa::Modify;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, OpenApi};

use super::ApiProblem;
use super::authorize::AuthorizeSettings;
use super::openapi::RefusalProblem;

/// The description of the API as a whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tollgate",
        description = "Exact rate limiting: decides whether a request is allowed, and how long a refused request must \
                       wait. Times and durations are whole microseconds."
    ),
    tags(
        (name = "decisions", description = "Decide requests, and refund their charges"),
        (name = "holds", description = "Set units aside for costs that are known only afterwards, and settle them"),
        (name = "limits", description = "The limits, and the most that each admits"),
        (name = "keys", description = "The state of keys, for operators"),
        (name = "playground", description = "The algorithms, to try out; each session has its own counters"),
        (name = "operations", description = "The state of the server"),
    ),
    components(schemas(ApiProblem, RefusalProblem, AuthorizeSettings)),
    modifiers(&OperatorScheme),
)]
pub(super) struct Document;

struct OperatorScheme;

impl Modify for OperatorScheme {
    fn modify(&self, document: &mut OpenApi) {
        let description = "The token that the server was started with. On a server without a token, only requests from \
                           its own machine are an operator's.";
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
    // OK because every struct of texts and numbers can be written as JSON.
    serde_json::to_vec(&document).unwrap_or_default().into()
});

/// The OpenAPI document of this API
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
