//! The API: requests and answers over HTTP.
//!
//! - `api`: what handlers are given
//! - `check`, `batch`: decide requests
//!   - `asked`: what is asked, from JSON; `decision`: what is answered; `object`: how that is written
//! - `authorize`: decides for proxies that ask before they pass a request on
//! - `refund`: gives back what they charged
//! - `limits`, `keys`: what limits there are, and how keys stand
//! - `operator`: which requests may read and reset keys; `operations`: what else operators can see
//! - `page`, `playground`: the algorithms to play with, and the page to do so
//! - `health`: whether the process lives, and whether to send it requests; `metrics`: what Prometheus reads
//! - `service`: all of it as one service, observed
//! - `host`: requests without a valid `Host` are refused before anything else
//! - `body`: bodies of requests, bounded; `problem`: why there is no answer (RFC 9457)
//! - `document`: all of it as an OpenAPI document; `openapi`: what that says of bodies and problems

mod api;
mod asked;
mod authorize;
mod batch;
mod body;
mod check;
mod decision;
mod document;
mod health;
mod host;
mod keys;
mod limits;
mod metrics;
mod object;
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
pub(crate) use asked::decode as decode_check;
pub(crate) use batch::each as decode_batch;
pub(crate) use problem::Problem;
pub(crate) use service::service;

/// The whole API.
fn router(state: Api) -> Router {
    let (mut router, _) = documented_routes().split_for_parts();
    // Some proxies ask with the method of the request that they were sent.
    for path in authorize::PATHS {
        router = router.route(path, any(authorize::authorize));
    }
    let router = router.merge(page::routes());
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    router.with_state(state)
}

/// Every path, and what is said of it.
fn documented_routes() -> OpenApiRouter<Api> {
    let mut api = OpenApiRouter::with_openapi(document::Document::openapi())
        .routes(routes!(check::check))
        .routes(routes!(batch::batch))
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
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(metrics::page))
        .routes(routes!(document::document));
    authorize::document_posts(api.get_openapi_mut());
    api
}

async fn not_found(uri: Uri) -> impl IntoResponse {
    Problem::unknown_path(uri.path())
}

/// What is allowed, the router says in `Allow`.
async fn not_allowed(method: Method) -> impl IntoResponse {
    Problem::wrong_method(&method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_in_the_document() {
        let (router, document) = documented_routes().split_for_parts();
        let shown = format!("{router:?}");
        let paths = shown.split("fallback_router").next().unwrap();
        let texts = paths.split('"').filter(|text| text.starts_with('/'));
        let mut routed: Vec<_> = texts.collect();
        routed.sort_unstable();
        routed.dedup();
        let documented: Vec<_> = document.paths.paths.keys().map(String::as_str).collect();
        assert_eq!(routed, documented);
        assert!(routed.contains(&"/v1/check"), "{routed:?}");
    }
}
