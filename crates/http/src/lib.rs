//! Responses to HTTP clients: the headers with the remaining quota, and the response to a refused request.
//!
//! Use it through the crate `tollgate`, as `tollgate::http`, which also re-exports [`tollgate_identity`].
//!
//! - `outcome`: the decision about a request, by a limit or by rules
//! - `headers`: the headers with the client's quota; `problem`: the response to a refused request

mod headers;
mod outcome;
mod problem;

pub use headers::{HeaderFamilies, PreparedHeaders, QuotaHeaders};
pub use outcome::{Outcome, Policy};
pub use problem::{Refusal, RefusalReason};
