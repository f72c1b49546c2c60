//! The types of body that a refusal can have.

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};

/// A response body that can be made from the bytes of a refusal.
///
/// Refusals have the same type of body as the service's own responses, so that no body has to be wrapped or boxed. The
/// bodies of axum and tonic implement this trait (features `axum`, `tonic`); for your own type it takes one line.
///
/// # Body types of other layers
///
/// Some layers change the type of the response body, such as tower-http's `TraceLayer`. If such a layer is inside of
/// the `RateLimitLayer`, a line between the two converts its body to one that implements this trait:
///
/// ```
/// use axum::{Router, body::Body, http::Response, routing::get};
/// use tollgate::tower::RateLimitLayer;
/// use tower::ServiceBuilder;
/// use tower_http::trace::TraceLayer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layers = ServiceBuilder::new()
///     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?)
///     .map_response(|response: Response<_>| response.map(Body::new)) // this one
///     .layer(TraceLayer::new_for_http());
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layers);
/// # Ok(())
/// # }
/// ```
///
/// The same in tonic, where interceptors change the body type:
///
/// ```
/// use http::Response;
/// use tollgate::tower::RateLimitLayer;
/// use tonic::service::InterceptorLayer;
/// use tonic::{Request, Status, body::Body, transport::Server};
/// use tower::ServiceBuilder;
///
/// fn authenticate(request: Request<()>) -> Result<Request<()>, Status> {
///     // ...
/// #   Ok(request)
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_, health) = tonic_health::server::health_reporter();
/// let layers = ServiceBuilder::new()
///     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?)
///     .map_response(|response: Response<_>| response.map(Body::new)) // this one
///     .layer(InterceptorLayer::new(authenticate));
/// let server = Server::builder().layer(layers).add_service(health);
/// # let serving = server.serve(([127, 0, 0, 1], 0).into());
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "a refusal cannot have the body `{Self}`",
    label = "no body for refusals",
    note = "put a line between `RateLimitLayer` and what is inside of it: \
            `.map_response(|response: Response<_>| response.map(Body::new))`, with the `Body` of axum (feature `axum`) or of \
            tonic (feature `tonic`)",
    note = "a body type of your own needs one function: implement `tollgate::tower::RefusalBody` for it"
)]
pub trait RefusalBody {
    /// Makes a body of these bytes.
    fn of(bytes: Bytes) -> Self;
}

impl RefusalBody for Bytes {
    fn of(bytes: Bytes) -> Bytes {
        bytes
    }
}

impl RefusalBody for Full<Bytes> {
    fn of(bytes: Bytes) -> Full<Bytes> {
        Full::new(bytes)
    }
}

impl<E> RefusalBody for BoxBody<Bytes, E> {
    fn of(bytes: Bytes) -> BoxBody<Bytes, E> {
        Full::new(bytes).map_err(|never| match never {}).boxed()
    }
}

impl<E> RefusalBody for UnsyncBoxBody<Bytes, E> {
    fn of(bytes: Bytes) -> UnsyncBoxBody<Bytes, E> {
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    }
}

impl RefusalBody for String {
    fn of(bytes: Bytes) -> String {
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

// Uses types of axum.
#[cfg(feature = "axum")]
impl RefusalBody for axum::body::Body {
    fn of(bytes: Bytes) -> axum::body::Body {
        bytes.into()
    }
}

#[cfg(feature = "tonic")]
impl RefusalBody for tonic::body::Body {
    fn of(bytes: Bytes) -> tonic::body::Body {
        tonic::body::Body::new(Full::new(bytes))
    }
}
