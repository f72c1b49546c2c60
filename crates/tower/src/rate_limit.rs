//! A layer that limits the requests to a service.
//!
//! - `layer`: how it is put together; `settings`: what it knows
//! - `service`: takes a request; `decide`: what becomes of it; `extract`, `key`: with whom it is limited; `refuse`: how it is told
//! - `future`: its way through; `line`, `charge`: while it is delayed
//! - `admission`: the decision as the service inside has it, to refund it; `axum`: as an extractor

mod admission;
// The types of axum.
#[cfg(feature = "axum")]
mod axum;
mod charge;
mod decide;
mod extract;
mod future;
mod key;
mod layer;
mod line;
mod refuse;
mod service;
mod settings;
mod store_answer;

pub use admission::Admission;
#[cfg(feature = "axum")]
pub use axum::MissingAdmission;
pub use extract::{GlobalKeyExtractor, KeyExtractor};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use service::RateLimit;
pub use settings::LayerDecision;
