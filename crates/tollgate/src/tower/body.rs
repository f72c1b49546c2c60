//! Bodies that a refusal can have.

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};

/// A response body that can be made of the few bytes of a refusal.
///
/// Refusals have the same type of body as the service's own responses, so that nothing need be wrapped or
/// boxed. Frameworks' bodies have it (features `axum`, `tonic`); for one of your own it is one line.
pub trait RefusalBody {
    /// A body of these bytes.
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
