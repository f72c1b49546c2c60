//! The types of body that a refusal can have.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Body;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};

use crate::hold::BodyHold;

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

    /// Returns this body, which keeps the hold of its request until the body has ended or is dropped. Called only for
    /// requests whose units are [reserved](crate::RateLimitLayer::reserve).
    ///
    /// The bodies of `http-body-util`, axum and tonic do so. The default ends the hold at once, and logs a warning. A
    /// body type that can box other bodies needs one line: `OwnBody::boxed(hold.wrap(self))`.
    fn holding(self, hold: BodyHold) -> Self
    where
        Self: Sized,
    {
        hold.end_unseen();
        self
    }
}

/// A body in memory: its hold ends with the response, because the service has done its work.
impl RefusalBody for Bytes {
    fn of(bytes: Bytes) -> Bytes {
        bytes
    }

    fn holding(self, hold: BodyHold) -> Bytes {
        hold.end_with(&self);
        self
    }
}

/// A body in memory: its hold ends with the response, because the service has done its work.
impl RefusalBody for Full<Bytes> {
    fn of(bytes: Bytes) -> Full<Bytes> {
        Full::new(bytes)
    }

    fn holding(self, hold: BodyHold) -> Full<Bytes> {
        let mut copy = self.clone();
        let polled = Pin::new(&mut copy).poll_frame(&mut Context::from_waker(Waker::noop()));
        let data = match polled {
            Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            _ => Bytes::new(),
        };
        hold.end_with(&data);
        self
    }
}

impl<E: 'static> RefusalBody for BoxBody<Bytes, E> {
    fn of(bytes: Bytes) -> BoxBody<Bytes, E> {
        Full::new(bytes).map_err(|never| match never {}).boxed()
    }

    fn holding(self, hold: BodyHold) -> BoxBody<Bytes, E> {
        hold.wrap(self).boxed()
    }
}

impl<E: 'static> RefusalBody for UnsyncBoxBody<Bytes, E> {
    fn of(bytes: Bytes) -> UnsyncBoxBody<Bytes, E> {
        Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
    }

    fn holding(self, hold: BodyHold) -> UnsyncBoxBody<Bytes, E> {
        hold.wrap(self).boxed_unsync()
    }
}

/// A body in memory: its hold ends with the response, because the service has done its work.
impl RefusalBody for String {
    fn of(bytes: Bytes) -> String {
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn holding(self, hold: BodyHold) -> String {
        hold.end_with(self.as_bytes());
        self
    }
}

// Uses types of axum.
#[cfg(feature = "axum")]
impl RefusalBody for axum::body::Body {
    fn of(bytes: Bytes) -> axum::body::Body {
        bytes.into()
    }

    fn holding(self, hold: BodyHold) -> axum::body::Body {
        axum::body::Body::new(hold.wrap(self))
    }
}

#[cfg(feature = "tonic")]
impl RefusalBody for tonic::body::Body {
    fn of(bytes: Bytes) -> tonic::body::Body {
        tonic::body::Body::new(Full::new(bytes))
    }

    fn holding(self, hold: BodyHold) -> tonic::body::Body {
        tonic::body::Body::new(hold.wrap(self))
    }
}
