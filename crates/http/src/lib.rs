//! Responses to HTTP clients: the headers with the remaining quota, and the response to a refused request.
//!
//! Use it through the crate `tollgate`, as `tollgate::http`, which also re-exports [`tollgate_identity`].
//!
//! - `outcome`: what was decided about a request, by a limit or by rules
//! - `headers`: how an allowed and a refused client stand; `problem`: the answer to a refused one

mod headers;
mod outcome;
mod problem;

pub use headers::{HeaderFamilies, PreparedHeaders, QuotaHeaders};
pub use outcome::{Outcome, Policy};
pub use problem::{Reason, Refusal};
