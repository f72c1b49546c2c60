//! Middleware for tower: one layer limits the requests to a service, another paces the requests of a client.
//!
//! One line limits requests by their address:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tollgate::tower::RateLimitLayer;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?);
//! # Ok(())
//! # }
//! ```
//!
//! - `rate_limit`: for servers; `body`, `grpc`: the bodies and gRPC statuses of refusals
//! - `hold`: units that a layer for servers sets aside until the response has ended
//! - `pace`: for clients

mod body;
#[cfg(feature = "tonic")]
mod grpc;
mod hold;
mod log_interval;
mod pace;
mod rate_limit;

pub use body::RefusalBody;
pub use hold::{ActualCost, BodyHold, BodyMeter, HeldBody, RequestHold};
pub use pace::{Pace, PaceError, PaceFuture, PaceLayer, ResponseHead};
#[cfg(feature = "axum")]
pub use rate_limit::MissingAdmission;
pub use rate_limit::{
    Admission, GlobalKeyExtractor, KeyExtractor, LayerDecision, RateLimit, RateLimitLayer,
    ResponseFuture,
};
