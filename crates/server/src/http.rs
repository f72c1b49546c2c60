//! The API: requests and answers over HTTP.
//!
//! - `api`: the state of the handlers
//! - `check`, `batch`: decide requests
//! - `holds`: sets units aside, and settles and extends the holds
//!   - `hold_body`: decodes their bodies; `hold_answers`: their answers as JSON
//!   - `check_body`: decodes a check; `decision`: decisions as JSON; `json_object`: writes JSON objects
//! - `authorize`: decides for proxies, which call it before they pass a request on
//! - `refund`: refunds charges by their receipts
//! - `limits`, `keys`: limits, and the state of keys
//! - `operator`: which requests may read and reset keys; `operations`: the state of the server, for operators
//! - `page`, `playground`: the web page, and the playground of algorithms on it
//! - `health`: liveness and readiness; `metrics`: the metrics for Prometheus
//! - `service`: the whole API as one service, which observes every request
//! - `host`: refuses requests without a valid `Host` before anything else
//! - `body`: reads bodies of bounded length; `problem`: errors (RFC 9457)
//! - `document`: the OpenAPI document; `openapi`: the bodies and problems in it

mod api;
mod authorize;
mod batch;
mod body;
mod check;
mod check_body;
mod decision;
mod document;
mod health;
mod hold_answers;
mod hold_body;
mod holds;
mod host;
mod json_object;
mod keys;
mod limits;
mod metrics;
mod openapi;
mod operations;
mod operator;
mod page;
mod playground;
mod problem;
mod refund;
mod service;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::any;
use hyper::{Method, Uri};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use api::{Api, ApiParts, PageBudget};
pub(crate) use batch::{decode as decode_batch, split as split_batch};
pub(crate) use check_body::decode as decode_check;
pub(crate) use hold_body::{decode_extend, decode_reserve, decode_settle};
pub(crate) use problem::ApiProblem;
pub(crate) use service::service;

/// Returns the router of the whole API.
fn router(state: Api) -> Router {
    let (mut router, _) = documented_routes().split_for_parts();
    // Some proxies call with the method of the original request.
    for path in authorize::PATHS {
        router = router.route(path, any(authorize::authorize));
    }
    let router = router.merge(page::routes());
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    router.with_state(state)
}

/// Returns the routes that are in the OpenAPI document, with their documentation.
fn documented_routes() -> OpenApiRouter<Api> {
    let mut api = OpenApiRouter::with_openapi(document::Document::openapi())
        .routes(routes!(check::check))
        .routes(routes!(batch::batch))
        .routes(routes!(holds::reserve))
        .routes(routes!(holds::reserve_batch))
        .routes(routes!(holds::settle))
        .routes(routes!(holds::settle_batch))
        .routes(routes!(holds::extend))
        .routes(routes!(holds::extend_batch))
        .routes(routes!(authorize::authorize))
        .routes(routes!(authorize::authorize_by_domain))
        .routes(routes!(authorize::authorize_with_settings))
        .routes(routes!(refund::refund))
        .routes(routes!(limits::limits))
        .routes(routes!(limits::limit))
        .routes(routes!(keys::peek, keys::reset))
        .routes(routes!(keys::peek_empty, keys::reset_empty))
        .routes(routes!(operations::operations))
        .routes(routes!(playground::reset))
        .routes(routes!(playground::state))
        .routes(routes!(playground::compare))
        .routes(routes!(playground::request))
        .routes(routes!(playground::burst))
        .routes(routes!(playground::reserve))
        .routes(routes!(playground::settle))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::page))
        .routes(routes!(document::document));
    authorize::document_posts(api.get_openapi_mut());
    api
}

async fn not_found(uri: Uri) -> impl IntoResponse {
    ApiProblem::unknown_path(uri.path())
}

/// Refuses the method of a request. The router adds the allowed methods in `Allow`.
async fn not_allowed(method: Method) -> impl IntoResponse {
    ApiProblem::wrong_method(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_in_the_document() {
        let (router, document) = documented_routes().split_for_parts();
        let debug = format!("{router:?}");
        let paths = debug.split("fallback_router").next().unwrap();
        let texts = paths.split('"').filter(|text| text.starts_with('/'));
        let mut routed: Vec<_> = texts.collect();
        routed.sort_unstable();
        routed.dedup();
        let documented: Vec<_> = document.paths.paths.keys().map(String::as_str).collect();
        assert_eq!(routed, documented);
        assert!(routed.contains(&"/v1/check"), "{routed:?}");
    }
}
