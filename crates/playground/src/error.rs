//! Why there is no answer.

use std::time::Duration;

/// Why the playground has no answer. Not `#[non_exhaustive]`: a server has to turn each of them into an answer.
#[derive(Debug, thiserror::Error)]
pub enum PlaygroundError {
    /// A number is out of range: the message says which, and what to use.
    #[error("{0}")]
    Invalid(String),
    /// Too many sessions are active at the moment.
    #[error("too many play at the moment")]
    Busy {
        /// How long to wait, if that is known.
        retry_after: Option<Duration>,
    },
    /// The limiter has no answer, because its store failed.
    #[error(transparent)]
    Limiter(#[from] tollgate::Error),
}
