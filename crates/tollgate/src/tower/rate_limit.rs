//! A layer that limits the requests to a service.
//!
//! - `layer`: how it is put together; `settings`: what it knows
//! - `service`: takes a request; `decide`: what becomes of it; `refuse`: how it is told
//! - `future`: its way through

mod decide;
mod future;
mod layer;
mod refuse;
mod service;
mod settings;

pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use service::RateLimit;
pub use settings::Decided;
