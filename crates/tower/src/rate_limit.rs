//! A layer that limits the requests to a service.
//!
//! - `layer`: the layer and its builder methods, `reserve`: those for costs that are known only afterwards; `settings`:
//!   the settings that it shares with its services
//! - `service`: the service; `decide`: the decision about a request, `pending`: while the store decides; `extract`, `key`:
//!   the key it is limited by; `refuse`: the headers and the response for the client
//! - `future`: the future of a request; `waiting`, `charge`: the state of a delayed request
//! - `admission`: the decision as the inner service sees it, with the refund; `axum`: the same as an extractor

mod admission;
// Uses types of axum.
#[cfg(feature = "axum")]
mod axum;
mod charge;
mod decide;
mod extract;
mod future;
mod key;
mod layer;
mod pending;
mod refuse;
mod reserve;
mod service;
mod settings;
mod store_answer;
mod waiting;

pub use admission::Admission;
#[cfg(feature = "axum")]
pub use axum::MissingAdmission;
pub use extract::{GlobalKeyExtractor, KeyExtractor};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use service::RateLimit;
pub use settings::LayerDecision;
