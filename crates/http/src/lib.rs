//! What an HTTP client is told: the headers that say how it stands, and the answer to a refused request.
//!
//! Use it through the crate `tollgate`, as `tollgate::http`, which has [who sent a request](tollgate_identity) too.
//!
//! - `outcome`: what was decided about a request, by a limit or by rules
//! - `headers`: how an allowed and a refused client stand; `problem`: the answer to a refused one

mod headers;
mod outcome;
mod problem;

pub use headers::{HeaderFamilies, PreparedHeaders, QuotaHeaders};
pub use outcome::{Outcome, Policy};
pub use problem::{Reason, Refusal};
